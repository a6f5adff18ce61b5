"""`lerope watch`: the page, served only to this machine, with data that follows runs while they train."""

import errno
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lerope.core.run import HISTORY, METRICS, RUN, provenance
from lerope.report.collect import Bundle, RunFiles, collect, result_files
from lerope.report.page import as_json, render
from lerope.report.payload import OneRun, payload, run_payload

ADDRESS = "127.0.0.1"
REFRESH_SECONDS = 3.0
# A page elsewhere can give its own name our address, but the browser still sends that name.
_NAMES = ("127.0.0.1", "localhost", "::1")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_Stamp = list[tuple[Path, int, int]]
"""Files with their size and time: what has the same stamp need not be read again."""


class Source:
    """The page's data as the files are now."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._lock = threading.Lock()
        self._made = provenance()
        self._results: tuple[_Stamp, Bundle] | None = None
        self._runs: dict[Path, tuple[_Stamp, OneRun]] = {}

    def read(self) -> dict[str, Any]:
        """What `payload` gives, and the time that the page should wait between two looks."""
        with self._lock:
            bundle = self._bundle()
            found = payload(bundle, [self._run(files) for files in bundle.runs], self._made)
        return {**found, "live": {"seconds": REFRESH_SECONDS}}

    def _bundle(self) -> Bundle:
        """Comparisons take seconds and need no records of training, so they are kept while results stay the same."""
        stamp = _stamp(file for path in self._paths for file in _results(path))
        if self._results is None or self._results[0] != stamp:
            self._results = stamp, collect(self._paths)
        bundle = self._results[1]
        # Fresh objects, because each reads its records once.
        return replace(bundle, runs=[RunFiles(files.run, files.results) for files in bundle.runs])

    def _run(self, files: RunFiles) -> OneRun:
        folder = files.run.path
        stamp = _stamp([*_results(folder), folder / METRICS, folder / HISTORY])
        known = self._runs.get(folder)
        if known is None or known[0] != stamp:
            known = self._runs[folder] = stamp, run_payload(files)
        return known[1]


def _results(path: Path) -> Iterator[Path]:
    """Descriptions and results of all runs in a folder."""
    for run in [path / RUN] if (path / RUN).is_file() else sorted(path.rglob(RUN)):
        yield run
        yield from result_files(run.parent)


def _stamp(files: Iterable[Path]) -> _Stamp:
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((file, status.st_size, status.st_mtime_ns))
    return found


class Server(ThreadingHTTPServer):
    """Answers GET of / and of /data.json."""

    daemon_threads = True

    def __init__(self, source: Source, port: int) -> None:
        self.source = source
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is not an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def open_server(paths: Sequence[Path], port: int) -> Server:
    """Reads the runs once, so that anything wrong with them shows at once, and takes the port.

    Args:
        paths: run directories, or folders that hold some.
        port: 0 for any that is free.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535; got {port}.")
    source = Source(paths)
    source.read()
    try:
        return Server(source, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use by another program; name another with --port.") from None
        raise ValueError(f"port {port} cannot be used ({error.strerror}); name another with --port.") from None


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answers one request."""
        path = urlsplit(self.path).path
        if not self._is_local():
            self._answer(403, "text/plain", "this page is only for the machine it runs on")
        elif path not in ("/", "/data.json"):
            self._answer(404, "text/plain", "only / and /data.json exist")
        else:
            try:
                data = self.server.source.read()
            except (ValueError, OSError) as error:
                self._answer(503, "text/plain", str(error))
                return
            if path == "/":
                self._answer(200, "text/html", render(data, live=True))
            else:
                self._answer(200, "application/json", as_json(data))

    def _is_local(self) -> bool:
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in _NAMES
        except ValueError:
            return False

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        headers = {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a request every few seconds is not news."""
