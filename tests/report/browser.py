"""Chromium without a window, driven over two pipes: the DevTools protocol needs no package and no port."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_QUIET = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
# The browser reads from descriptor 3 and writes to descriptor 4.
_START = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
_SECONDS = 60.0


class Browser:
    """One page of a browser of its own, with all it said and asked for."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        """Errors and warnings on the console, and exceptions that nobody caught."""
        self.requests: list[str] = []
        """Addresses that the page asked for."""
        self._number = 0
        self._rest = b""
        self._folder = tempfile.mkdtemp(prefix="lerope-browser-")
        pipes = *os.pipe(), *os.pipe()
        to_browser, self._write, self._read, from_browser = (fcntl.fcntl(pipe, fcntl.F_DUPFD, 10) for pipe in pipes)
        for pipe in pipes:
            os.close(pipe)
        command = [sys.executable, "-c", _START, str(to_browser), str(from_browser), CHROMIUM, *_QUIET]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self._read, False)
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._session = None
            self.send("Browser.close")
            self._process.wait(10)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._write)
            os.close(self._read)
            shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            for answer in self._messages():
                if answer.get("id") == self._number:
                    assert "error" not in answer, (method, answer)
                    return answer["result"]
        raise AssertionError(f"{method} was not answered")

    def open(self, address: str) -> None:
        """Loads an address afresh and waits until its script has run."""
        self.send("Page.navigate", url="about:blank")  # or another hash alone would not load the page again
        self.wait("location.href === 'about:blank'")
        self.requests.clear()
        self.send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Returns once an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.05)

    def screen(self, width: int, height: int = 900, mobile: bool = False) -> None:
        """Makes the window so large, in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.settle()

    def media(self, **features: str) -> None:
        """Sets media features: prefers_color_scheme="dark"."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=wanted)
        self.settle()

    def settle(self) -> None:
        """Two frames, so that what follows from a change has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def point(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def touch(self, x: float, y: float) -> None:
        """A tap of a finger."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def click(self, selector: str) -> None:
        """A click with the mouse in the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        """Brings an element into view and says where its middle is."""
        box = self.run(
            f"""(() => {{
                const node = document.querySelector({json.dumps(selector)});
                node.scrollIntoView({{ block: "center", behavior: "instant" }});
                const box = node.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        return box[0], box[1]

    def press(self, key: str, text: str = "") -> None:
        """A key, by its name in KeyboardEvent: ArrowRight, Tab, Enter."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Escape": 27, " ": 32}
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.send("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": key} if key == " " else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)
        self.settle()

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what the window shows."""
        answer = self.send(
            "Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._all()} if whole else {})
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def paper(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def _all(self) -> dict[str, float]:
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _messages(self) -> list[dict[str, Any]]:
        try:
            got = os.read(self._read, 1 << 20)
        except BlockingIOError:
            time.sleep(0.002)
            return []
        assert got, "the browser has ended"
        *whole, self._rest = (self._rest + got).split(b"\0")
        found = [json.loads(message) for message in whole]
        for message in found:
            self._note(message.get("method", ""), message.get("params", {}))
        return found

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        takes: dict[str, Callable[[], None]] = {
            "Runtime.exceptionThrown": lambda: self.complaints.append(str(parameters["exceptionDetails"])),
            "Runtime.consoleAPICalled": lambda: self.complaints.append(str(parameters)),
            "Log.entryAdded": lambda: self.complaints.append(str(parameters["entry"])),
            "Network.requestWillBeSent": lambda: self.requests.append(parameters["request"]["url"]),
        }
        if method in takes:
            takes[method]()
