"""Where the time of a training command goes, from the start of its process."""

import statistics
import time

from lerope.core.run import StepRecord
from lerope.core.terminal import duration, process_start
from lerope.results import Timeline


class Clock:
    """Splits time into phases, one after the other: from the process's start, and for later runs in it from now."""

    _first = True

    def __init__(self) -> None:
        self._begun = self._last = process_start() if Clock._first else time.monotonic()
        Clock._first = False
        self._phases: dict[str, float] = {}

    def mark(self, phase: str, now: float | None = None) -> None:
        """Ends a phase, now or at a time by `time.monotonic`."""
        now = time.monotonic() if now is None else now
        self._phases[phase], self._last = now - self._last, now

    def skip(self) -> None:
        """Counts the time until now as no phase."""
        self._last = time.monotonic()

    def timeline(self, steps: list[StepRecord], hook_seconds: dict[str, float]) -> Timeline:
        """What it shows.

        Args:
            steps: those of this process.
        """
        total = time.monotonic() - self._begun
        median = statistics.median(record.seconds for record in steps[1:]) if len(steps) > 1 else None
        return Timeline(
            num_steps=len(steps),
            total_seconds=total,
            phases=self._phases,
            hook_seconds=hook_seconds,
            median_step_seconds=median,
            step_share=None if median is None else len(steps) * median / total,
        )


def summary(found: Timeline) -> str:
    """A timeline in a line for people."""
    parts = [f"{name} {seconds:.1f} s" for name, seconds in (*found["phases"].items(), *found["hook_seconds"].items())]
    share = "" if found["step_share"] is None else f", {found['step_share']:.1%} of it steps"
    return f"took {duration(found['total_seconds'])}{share}; {', '.join(parts)}"
