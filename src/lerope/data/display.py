"""How far a long job is: one line that changes in a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape

from lerope.data.resume import Progress

_LINE_SECONDS = 10.0


class Display:
    """Shows the latest state of a job; nothing of it is needed to understand what is printed otherwise."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "Display":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> None:
        """The state now; it replaces the one before."""
        if self._status is not None:
            self._status.update(escape(text))
        elif time.monotonic() >= self._next_line:
            self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(escape(text))
        self._next_line = time.monotonic() + _LINE_SECONDS


class Rate:
    """MB/s since the start, and the time left where the size of the whole is known."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._total, self._begun = total, time.monotonic()
        self._read, self._bytes = progress.num_bytes_read, sum(progress.num_bytes.values())

    def describe(self, progress: Progress) -> str:
        """A line of text; `total` and `num_bytes_read` are sizes on the disk, which is where the end is known."""
        seconds = max(time.monotonic() - self._begun, 1e-3)
        documents, num_bytes, tokens = (
            sum(count.values()) for count in (progress.num_documents, progress.num_bytes, progress.num_tokens)
        )
        speed = (num_bytes - self._bytes) / 1e6 / seconds
        text = f"{documents:,} documents, {num_bytes / 1e6:,.1f} MB, {tokens:,} tokens, {speed:.1f} MB/s"
        read = progress.num_bytes_read
        if self._total is None or read <= self._read:
            return text
        left = seconds * (self._total - read) / (read - self._read)
        return f"{text}, {100 * read / self._total:.0f}%, {duration(left)} left"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
