"""Progress of a long job: one changing line in a terminal, an occasional line elsewhere."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import rich.console

_LINE_SECONDS = 10.0
_IMPORTED = time.monotonic()


class Console(rich.console.Console):
    """Prints what it is given as it is: in names, `[/b]` is no markup and `:x:` no emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)


class Display:
    """Shows the latest state of a job, unless it is to be quiet; other output makes sense without it."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(soft_wrap=True, quiet=quiet)
        self._status = self._console.status("") if self._console.is_terminal and not quiet else None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "Display":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> None:
        """The current state; it replaces the previous one."""
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() >= self._next_line:
            self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text)
        self._next_line = time.monotonic() + _LINE_SECONDS


def program() -> str:
    """What calls lerope: its name, or its path where the shell would not find the name, as after `make demo`."""
    return sys.argv[0] if Path(sys.argv[0]).name == "lerope" and shutil.which("lerope") is None else "lerope"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def listed(names: Sequence[str]) -> str:
    """Names in words; of three and more the first, and how many more."""
    return ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def readable(value: float) -> str:
    """A number with three digits and a unit: 1.43M."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def process_start() -> float:
    """When this process began, in `time.monotonic`, which on Linux counts from boot, as /proc does."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return min(ticks / os.sysconf("SC_CLK_TCK"), _IMPORTED)
    except (OSError, ValueError, IndexError):
        return _IMPORTED
