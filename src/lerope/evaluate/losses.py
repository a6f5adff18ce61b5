"""The loss of every token of some windows: longest first, shared by ranks, stopped and gone on with at any point.

Windows are scored in an order that depends on their lengths alone, and losses are appended to a file in that order. So
a file that was cut off anywhere says how far the work is, whatever the batch size or the number of ranks.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lerope.data.display import Display, duration
from lerope.data.packing import Piece
from lerope.data.signals import Signals, Stopped
from lerope.evaluate.documents import Source
from lerope.evaluate.scorer import Scorer
from lerope.train.parallel import Ranks

Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]

# Tokens that go through the model at once. A CPU gains nothing from more; a GPU of 24 GB can hold this many.
_BATCH_TOKENS = {"cpu": 8192, "cuda": 32768}


def window_losses(
    scorer: Scorer,
    source: Source,
    windows: Sequence[Piece],
    *,
    ranks: Ranks,
    partial: Path,
    label: str,
    batch_tokens: int | None = None,
) -> list[Floats]:
    """The losses of each window's targets, in the order of the windows, on the main rank; nothing elsewhere.

    Args:
        partial: a file for losses on their way; what it has is not computed again. The caller removes it.
        label: what to call the work while it goes on.
        batch_tokens: tokens that go through the model at once, on each rank; as many as are useful unless given.
    """
    order = sorted(range(len(windows)), key=lambda index: -_num_targets(windows[index]))
    ends = np.cumsum([_num_targets(windows[index]) for index in order])
    finished = ranks.first(lambda: _trim(partial, ends))
    limit = batch_tokens or _BATCH_TOKENS[scorer.device.type]
    batches = list(_batches([windows[index] for index in order[finished:]], limit))
    progress = _Progress(label, int(ends[-1]), int(ends[finished - 1]) if finished else 0, ranks)
    waiting: tuple[list[Piece], Tensor] | None = None
    with progress, Signals() as signals:
        for first in range(0, len(batches) + 1, ranks.num_ranks):
            mine = batches[first + ranks.rank] if first + ranks.rank < len(batches) else []
            # A GPU works on this batch while the host stores the one before.
            started = (mine, scorer.losses([_read(source, window) for window in mine])) if mine else None
            _store(waiting, partial, ranks, progress)
            waiting = started
            asked = max(number or 0 for number in ranks.gather(signals.received))
            if asked:
                _store(waiting, partial, ranks, progress)
                raise Stopped(asked)
        _store(waiting, partial, ranks, progress)
    if not ranks.is_main:
        return []
    scored = np.split(np.fromfile(partial, np.float32), ends[:-1])
    found: list[Floats] = [scored[0]] * len(windows)
    for index, losses in zip(order, scored, strict=True):
        found[index] = losses
    return found


def position_sums(losses: Sequence[Floats], length: int) -> tuple[Floats64, Floats64]:
    """For each position in a window of `length` the sum of its losses and their number."""
    sums, counts = np.zeros((2, length))
    for values in losses:
        sums[: len(values)] += values
        counts[: len(values)] += 1
    return sums, counts


def _num_targets(window: Piece) -> int:
    return window.stop - window.start


def _read(source: Source, window: Piece) -> npt.NDArray[np.integer[npt.NBitBase]]:
    return source.document(window.document, window.start, window.stop + 1)


def _batches(windows: list[Piece], batch_tokens: int) -> Iterator[list[Piece]]:
    """Neighbours together, as many as fit when all are as long as the first, which is the longest."""
    start = 0
    while start < len(windows):
        count = max(1, batch_tokens // _num_targets(windows[start]))
        yield windows[start : start + count]
        start += count


def _trim(partial: Path, ends: npt.NDArray[np.int64]) -> int:
    """How many windows the file has whole; what is there of the next is removed."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as file:
        finished = int(np.searchsorted(ends, file.tell() // 4, side="right"))
        file.truncate(4 * int(ends[finished - 1]) if finished else 0)
    return finished


def _store(batch: tuple[list[Piece], Tensor] | None, partial: Path, ranks: Ranks, progress: "_Progress") -> None:
    """Appends every rank's losses to the file, in the order of ranks, which is that of the windows."""
    mine = np.zeros(0, np.float32)
    if batch is not None:
        windows, losses = batch
        rows = losses.cpu().numpy()
        mine = np.concatenate([row[: _num_targets(window)] for row, window in zip(rows, windows, strict=True)])
    parts = ranks.gather(mine)
    if ranks.is_main:
        with partial.open("ab") as file:
            for part in parts:
                file.write(part.tobytes())
        progress.add(sum(len(part) for part in parts))


class _Progress:
    """Tokens scored, their rate and the time left, shown by the main rank."""

    def __init__(self, label: str, total: int, before: int, ranks: Ranks) -> None:
        self._label, self._total, self._done, self._before = label, total, before, before
        self._display = Display() if ranks.is_main else None
        self._begun = time.monotonic()

    def __enter__(self) -> "_Progress":
        if self._display is not None:
            self._display.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._display is not None:
            self._display.__exit__(None, None, None)

    def add(self, num_tokens: int) -> None:
        """Counts some more."""
        self._done += num_tokens
        rate = (self._done - self._before) / max(time.monotonic() - self._begun, 1e-3)
        if self._display is not None and rate > 0:
            left = duration((self._total - self._done) / rate)
            share = 100 * self._done / self._total
            self._display.show(
                f"{self._label}  {share:.0f}% of {self._total:,} tokens  {rate:,.0f} tokens/s  {left} left"
            )
