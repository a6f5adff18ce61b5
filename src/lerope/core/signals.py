"""Ctrl-C and requests to stop, checked at safe moments instead of raised at any moment."""

import os
import select
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

# What a launcher asks a run to save with. SIGTERM would do, except for runs started by srun: it kills them on that, and
# passes this on.
SAVE = signal.SIGUSR2


class Stopped(Exception):  # noqa: N818 (what happened, like KeyboardInterrupt)
    """The process was asked to stop and has saved its work."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Signals:
    """While entered, remembers the first SIGINT, SIGTERM or SAVE; a second Ctrl-C interrupts at once."""

    KINDS = (signal.SIGINT, signal.SIGTERM, SAVE)

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on) for number in self.KINDS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises Stopped once a signal has arrived."""
        if self.received is not None:
            raise Stopped(self.received)

    def _on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        is_first, self.received = self.received is None, self.received or number
        if number == signal.SIGINT and is_first and os.environ.get("RANK", "0") == "0":
            # The next safe moment may be minutes away. Inside a signal handler print can fail, and this only where
            # nobody is left to read it: Ctrl-C also ends `tee`.
            # A full pipe would wait for its reader, so it is not written to.
            with suppress(OSError, ValueError):
                if select.select([], [2], [], 0)[1]:
                    os.write(
                        2, b"\nstopping as soon as the work is safe; Ctrl-C once more stops at once and saves no more\n"
                    )
