"""Times of several candidates that take turns, so that drifting clocks and heat affect all of them equally.

On a GPU, a sample is the time between two events around a few calls in a row. The device is kept busy before the first
event until the host has launched all of them: this measures the device's work, not how long Python takes to launch
it, as in training, where the host runs ahead.
"""

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lerope.core.signals import Signals
from lerope.core.terminal import Display
from lerope.results import Timing

Call = Callable[[], object]
Parts = dict[str, list[Call]]
"""What to time of a candidate: by name, one call per set of inputs."""

_WARM_UP_CALLS = 3
# Repeat calls until a sample takes this long: an event costs microseconds, which would matter in a short one.
_SAMPLE_SECONDS = 2e-3
_MOST_CALLS = 20
_SLEEP_CYCLES_PER_SECOND = 2.0e9
_MOST_SLEEP_SECONDS = 0.1


@dataclass(frozen=True)
class Candidate:
    """Something to time."""

    name: str
    build: Callable[[], Parts]
    """Makes the calls. An error here or in a call becomes a note."""


@dataclass(frozen=True)
class Times:
    """The measurements of one part of a candidate."""

    samples: tuple[float, ...] = ()
    """Seconds per call, in order of rounds; none if it failed."""
    peak_bytes: int | None = None
    """Peak device memory of a call beyond what was allocated before it; None on a CPU."""
    note: str = ""
    """Why there is no figure."""

    @property
    def median(self) -> float | None:
        """Seconds."""
        return quartiles(self.samples)[1] if self.samples else None

    @property
    def timing(self) -> Timing:
        """In the format of results."""
        if not self.samples:
            return Timing(median_ms=None, q1_ms=None, q3_ms=None, note=self.note)
        q1, median, q3 = (1e3 * value for value in quartiles(self.samples))
        return Timing(median_ms=median, q1_ms=q1, q3_ms=q3, note=self.note)


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    q1, median, q3 = np.percentile(samples, (25, 50, 75)).tolist()
    return q1, median, q3


def reason(error: Exception) -> str:
    """Why a candidate has no figure, in a few words."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    if isinstance(error, ModuleNotFoundError):
        return f"{(error.name or str(error)).partition('.')[0]} is not installed"
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ValueError) and said:
        return said  # ours are readable
    return f"{type(error).__name__}: {said}"[:200] if said else type(error).__name__


class Stopwatch:
    """Times candidates on a device.

    Args:
        device: where they run.
        rounds: samples of each.
        signals: a signal stops after the current round; measurements so far count.
        display: shows progress.
    """

    def __init__(self, device: torch.device, rounds: int, signals: Signals, display: Display) -> None:
        self.device, self.rounds, self.signals, self.display = device, rounds, signals, display

    def num_sets(self, num_bytes: int) -> int:
        """How many sets of inputs of this size to rotate through, so that none is still in the cache."""
        if self.device.type == "cpu":
            return 1
        cache: int = torch.cuda.get_device_properties(self.device).L2_cache_size
        return max(1, math.ceil(4 * cache / num_bytes))

    def each_round(self, what: str) -> Iterator[None]:
        """Rounds, at least one, until there are enough or a signal ends them.

        Args:
            what: a few words for the progress line.
        """
        yield
        for number in range(1, self.rounds):
            if self.signals.received is not None:
                return
            self.display.show(f"{what}: round {number} of {self.rounds}")
            yield

    def measure(self, what: str, candidates: Sequence[Candidate], parts: Sequence[str]) -> dict[tuple[str, str], Times]:
        """Times by candidate and part; one that raises has a note instead.

        Args:
            what: a few words for the progress line.
            parts: the parts that every candidate builds.
        """
        found: dict[tuple[str, str], Times] = {}
        ready: dict[tuple[str, str], _Sampler] = {}
        peaks: dict[tuple[str, str], int | None] = {}
        for candidate in candidates:
            self.signals.check()
            self.display.show(f"{what}: {candidate.name}, warming up")
            try:
                built = candidate.build()
            except Exception as error:  # a peer may fail in any way
                found |= {(candidate.name, part): Times(note=reason(error)) for part in parts}
                continue
            for part in parts:
                key = (candidate.name, part)
                try:
                    ready[key] = _Sampler(self.device, built[part])
                    peaks[key] = peak_bytes(self.device, built[part][0])
                except Exception as error:
                    ready.pop(key, None)
                    found[key] = Times(note=reason(error))
        samples: dict[tuple[str, str], list[float]] = {key: [] for key in ready}
        order = random.Random(0)
        for _ in self.each_round(what):
            for key in order.sample(list(ready), len(ready)):
                if key not in found:
                    try:
                        samples[key].append(ready[key].sample())
                    except Exception as error:
                        found[key] = Times(note=reason(error))
        for key in ready:
            found.setdefault(key, Times(tuple(samples[key]), peaks[key]))
        return found


class _Sampler:
    """Warms up a part of a candidate, then times it."""

    def __init__(self, device: torch.device, calls: list[Call]) -> None:
        self._device, self._calls, self._turn = device, calls, 0
        self._cycles = 0
        for call in calls:
            call()  # compiles, loads, allocates
        synchronize(device)
        begun = time.perf_counter()
        for _ in range(_WARM_UP_CALLS):
            self._next()
        asked = time.perf_counter()
        synchronize(device)
        seconds = max((time.perf_counter() - begun) / _WARM_UP_CALLS, 1e-7)
        self._num_calls = max(1, min(_MOST_CALLS, math.ceil(_SAMPLE_SECONDS / seconds)))
        if device.type == "cuda":
            asking = 2 * (asked - begun) / _WARM_UP_CALLS * self._num_calls + 1e-4
            self._cycles = int(min(asking, _MOST_SLEEP_SECONDS) * _SLEEP_CYCLES_PER_SECOND)

    def sample(self) -> float:
        """Seconds per call."""
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self._cycles)
            start.record()
            for _ in range(self._num_calls):
                self._next()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / self._num_calls
        begun = time.perf_counter()
        for _ in range(self._num_calls):
            self._next()
        return (time.perf_counter() - begun) / self._num_calls

    def _next(self) -> None:
        self._calls[self._turn % len(self._calls)]()
        self._turn += 1


def synchronize(device: torch.device) -> None:
    """Returns when the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device, call: Call) -> int | None:
    """Peak device memory of a call beyond what is allocated before it; None on a CPU."""
    if device.type == "cpu":
        return None
    synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before


def free(device: torch.device) -> None:
    """Frees what deleted candidates have held."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # it compiles a function for only a few shapes
    if device.type == "cuda":
        torch.cuda.empty_cache()
