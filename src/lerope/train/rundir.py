"""The run directory: who may write to it, what it says about the run, and its files of records.

run.json  metrics.jsonl  frequencies.jsonl  checkpoints/  model/  results/
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import lerope
from lerope.data.files import locked, write_whole

RUN, METRICS, FREQUENCIES = "run.json", "metrics.jsonl", "frequencies.jsonl"


class RunDirectory:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Creates the folder if need be and keeps other processes out of it."""
        with locked(self.path):
            if not (self.path / RUN).exists() and any(not path.name.startswith(".") for path in self.path.iterdir()):
                raise ValueError(f"{self.path} holds other files and no {RUN}; name an empty or new folder with --out.")
            for partial in self.path.glob(".*.jsonl.*"):
                partial.unlink()  # left by a process that was killed
            yield

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Where the finished model is."""
        return self.path / "model"

    def open(self, identity: dict[str, Any], start: dict[str, Any]) -> bool:
        """Writes run.json, or checks that it is the same run and notes another start. Whether the run is finished.

        Args:
            identity: what must be the same each time this run is started.
            start: what may differ: machine, versions, command.
        """
        if (self.path / RUN).exists():
            content = read_run(self.path)
            found = list(differences(content["identity"], identity))
            if found and self._has_begun():
                raise ValueError(f"{self.path} is another run: {_difference(*found[0])}, or choose another --out.")
            content["identity"] = identity
        else:
            content = {"identity": identity, "finished": False, "created": now(), "starts": []}
        if not content["finished"]:
            content["starts"].append(start)
            self.write(RUN, content)
        return bool(content["finished"])

    def _has_begun(self) -> bool:
        """Whether there is anything that another recipe would spoil."""
        return any(self.checkpoints.glob("*")) or next(read_records(self.path / METRICS), None) is not None

    def finish(self) -> None:
        """Marks the run as finished."""
        self.write(RUN, {**read_run(self.path), "finished": True})

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Writes a JSON file below the run directory, whole or not at all."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(content, indent=1))

    def rewind(self, step: int) -> None:
        """Drops records after `step`: the run goes on from there and writes them again."""
        for name in (METRICS, FREQUENCIES):
            path = self.path / name
            if path.exists():
                kept = [json.dumps(record) for record in read_records(path) if record["step"] <= step]
                write_whole(path, "\n".join(kept)) if kept else path.unlink()


def read_run(path: Path) -> dict[str, Any]:
    """The content of run.json; whatever is wrong with it is one ValueError."""
    try:
        content = json.loads((path / RUN).read_text(encoding="utf-8"))
        return {name: content[name] for name in ("identity", "finished", "created", "starts")}
    except FileNotFoundError:
        raise ValueError(f"{path / RUN} does not exist; name a folder that `lerope train` wrote.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path / RUN} is damaged ({error}); restore it or train in another folder.") from None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a .jsonl file, none if it is not there; a last line that was cut off by a crash is left out."""
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith("\n"):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}, line {number:,} is not JSON ({error}); remove the line.") from None


def differences(old: Any, new: Any, field: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, as (dotted field, old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{field}.{key}" if field else key)
    elif old != new:
        yield field, old, new


def _difference(field: str, old: Any, new: Any) -> str:
    if field == "data":
        return "its data has another fingerprint; name the folder it was trained on"
    if field == "initial_frequencies":
        return "its encoding started from other frequencies; restore the file they came from"
    return f"its {field} is {old!r}, not {new!r}; give that to go on"


def provenance() -> dict[str, Any]:
    """Versions, machine and commit: what a reader needs to know where numbers come from."""
    return {
        "date": now(),
        "lerope": lerope.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "num_threads": torch.get_num_threads(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str | None:
    """The commit of lerope's own source, `+` after it if files have changed; None outside a checkout."""
    folder = os.path.dirname(lerope.__file__)

    def git(*args: str) -> str:
        command = ["git", "-C", folder, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # An installed copy may lie in somebody else's checkout.
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
