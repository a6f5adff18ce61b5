"""Work in batches: longest first, shared by ranks, stopped and resumed at any point.

Items are processed in an order that depends only on their lengths, and their values are appended to a file in that
order. So a file cut off anywhere says how far the work got, whatever the batch size or number of ranks.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from lerope.core.signals import Signals, Stopped
from lerope.core.terminal import Display, duration
from lerope.train.memory import enough_memory
from lerope.train.parallel import Ranks

Floats = npt.NDArray[np.float32]

_BATCH_TOKENS = 8192
# 32,768 tokens for each 24 GB of a GPU, at most four times that.
_GPU_BATCH_TOKENS, _GPU_BYTES = 32_768, 24e9


@dataclass(frozen=True, kw_only=True)
class Work:
    """Who does it, and where it is kept."""

    ranks: Ranks
    partial: Path
    """A file for values so far; what it has is not computed again."""
    label: str
    """What to call the work while it goes on."""
    batch_tokens: int | None = None
    """Tokens that go through the model at once, on each rank; as many as are useful unless given."""


def in_batches(
    work: Work,
    lengths: Sequence[int],
    num_values: Sequence[int],
    start: Callable[[list[int]], Callable[[], Floats]],
) -> list[Floats]:
    """The values of each item, in the order of the items, on the main rank; nothing elsewhere.

    Args:
        lengths: tokens of each item.
        num_values: how many values each item has.
        start: begins to work on some items and returns a function that waits for their values, end to end.
    """
    ranks, partial = work.ranks, work.partial
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    ends = np.cumsum([num_values[index] for index in order])
    finished = ranks.on_main(lambda: _trim(partial, ends))
    limit = work.batch_tokens or useful_batch_tokens(ranks.device)
    batches = list(_batches(order[finished:], lengths, limit))
    tokens = [sum(lengths[index] for index in batch) for batch in batches]
    waiting: Callable[[], Floats] | None = None
    with Display(quiet=not ranks.is_main) as display, Signals() as signals:
        progress = _Progress(display, work.label, sum(lengths), sum(tokens))
        for first in range(0, len(batches) + ranks.num_ranks, ranks.num_ranks):
            mine = batches[first + ranks.rank] if first + ranks.rank < len(batches) else []
            # A GPU works on this batch while the host stores the one before.
            rows = f"{len(mine)} rows of {max((lengths[index] for index in mine), default=0):,} tokens"
            with enough_memory(
                f"memory ran out with {rows} at a time; use fewer with --batch-tokens, or shorter ones."
            ):
                started = start(mine) if mine else None
            _store(waiting, partial, ranks)
            progress.add(sum(tokens[max(first - ranks.num_ranks, 0) : first]))
            waiting = started
            asked = max(number or 0 for number in ranks.gather(signals.received))
            if asked:
                _store(waiting, partial, ranks)
                raise Stopped(asked)
    if not ranks.is_main:
        return []
    values = np.split(np.fromfile(partial, np.float32), ends[:-1])
    found: list[Floats] = [values[0]] * len(order)
    for index, some in zip(order, values, strict=True):
        found[index] = some
    return found


def useful_batch_tokens(device: torch.device) -> int:
    """Tokens that go through the model at once: as many as gain speed, if memory has room for them."""
    if device.type == "cpu":
        return _BATCH_TOKENS
    bytes_there = torch.cuda.get_device_properties(device).total_memory
    return _GPU_BATCH_TOKENS * int(min(4, max(1, bytes_there / _GPU_BYTES)))


def _batches(order: list[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Neighbours together, as many as fit when all are as long as the first, which is the longest."""
    start = 0
    while start < len(order):
        count = max(1, batch_tokens // lengths[order[start]])
        yield order[start : start + count]
        start += count


def _trim(partial: Path, ends: npt.NDArray[np.int64]) -> int:
    """How many whole items the file has; what is there of the next is removed."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as file:
        finished = int(np.searchsorted(ends, file.tell() // 4, side="right"))
        file.truncate(4 * int(ends[finished - 1]) if finished else 0)
    return finished


def _store(waiting: Callable[[], Floats] | None, partial: Path, ranks: Ranks) -> None:
    """Appends every rank's values to the file, in the order of ranks, which is that of the items."""
    parts = ranks.gather(np.zeros(0, np.float32) if waiting is None else waiting())
    if ranks.is_main:
        with partial.open("ab") as file:
            file.writelines(part.tobytes() for part in parts)
            file.flush()
            os.fsync(file.fileno())


class _Progress:
    """Tokens done, their rate and the time left."""

    def __init__(self, display: Display, label: str, total: int, left: int) -> None:
        self._display, self._label, self._total, self._left, self._done = display, label, total, left, 0
        self._begun = time.monotonic()

    def add(self, num_tokens: int) -> None:
        """Counts some more."""
        self._done += num_tokens
        rate = self._done / max(time.monotonic() - self._begun, 1e-3)
        if rate > 0:
            left = self._left - self._done
            part = f"{100 * (1 - left / self._total):.0f}% of {self._total:,} tokens"
            self._display.show(f"{self._label}  {part}  {rate:,.0f} tokens/s  {duration(left / rate)} left")
