"""What it costs to take bands away: each alone (leave-one-out), or the slowest together, for every number of them.

contribution  the bands' part of every query is zero after QK-norm: their term of the logits is gone
frequency     the bands do not turn (theta_m = 0): their term stays and says nothing about position
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lerope.analyze.subjects import MEANINGS, Removal, Subject
from lerope.analyze.targets import Target, mean_frequencies, wavelength
from lerope.core.terminal import Display
from lerope.data.packing import Piece
from lerope.evaluate.documents import Documents, Source
from lerope.evaluate.measuring import Measurement
from lerope.evaluate.perplexity import select
from lerope.evaluate.work import in_batches
from lerope.results import Ablation, Arrays, BandRemoval, SlowestRemoval, SlowestRemovals

Floats = npt.NDArray[np.float64]
Kind = TypeVar("Kind", Ablation, SlowestRemovals)

FILE, SLOWEST_FILE = "ablation.json", "slowest.json"
# What an error over documents needs, and what small differences need.
NUM_DOCUMENTS, NUM_TOKENS = 32, 32_768


def leave_one_out(target: Target, max_tokens: int | None, device: torch.device) -> Ablation:
    """Scores a target whole and without each band, and writes `results/ablation.json`.

    If stopped, it resumes at the band it was at.

    Args:
        max_tokens: score the first window of as many documents as it takes to reach this many tokens; by default
            32,768 and 32 documents.
    """

    def each_band(theta: Sequence[float]) -> list[tuple[int, ...]]:
        return [(band,) for band in range(len(theta))]

    def row(removal: Removal, turn: float | None, increase: float, error: float | None) -> BandRemoval:
        return {
            "meaning": removal.meaning,
            "band": removal.bands[0],
            "wavelength": turn,
            "increase": increase,
            "standard_error": error,
        }

    return _carry_out(Ablation, FILE, each_band, row, target, max_tokens, device)


def remove_slowest(target: Target, max_tokens: int | None, device: torch.device) -> SlowestRemovals:
    """Scores a target without its slowest bands, for every number of them, and writes `results/slowest.json`.

    Args:
        max_tokens: as in `leave_one_out`.
    """

    def slowest_bands(theta: Sequence[float]) -> list[tuple[int, ...]]:
        slowest = sorted(range(len(theta)), key=lambda band: (abs(theta[band]), -band))
        return [tuple(slowest[:count]) for count in range(1, len(theta) + 1)]

    def row(removal: Removal, turn: float | None, increase: float, error: float | None) -> SlowestRemoval:
        return {
            "meaning": removal.meaning,
            "num_bands": len(removal.bands),
            "band": removal.bands[-1],
            "wavelength": turn,
            "increase": increase,
            "standard_error": error,
        }

    return _carry_out(SlowestRemovals, SLOWEST_FILE, slowest_bands, row, target, max_tokens, device)


def _carry_out(
    kind: type[Kind],
    file: str,
    choose: Callable[[Sequence[float]], list[tuple[int, ...]]],
    row: Callable[[Removal, float | None, float, float | None], Any],
    target: Target,
    max_tokens: int | None,
    device: torch.device,
) -> Kind:
    """Scores a target whole and without some bands.

    Args:
        choose: the bands to take away together, again and again, from all bands' frequencies.
        row: what the result says about a removal, the wavelength of its last band, what it costs and the error of that.
    """
    max_tokens = max_tokens or enough_tokens(target.documents, target.length)
    settings = {**target.settings, "windows": "first", "max_tokens": max_tokens}
    measurement = target.measurement(kind, file, settings, device)

    def measure() -> Callable[[], tuple[Kind, Arrays]]:
        subject = target.load(device)
        windows = select(target.documents, target.length, True, max_tokens)
        theta = mean_frequencies(subject)
        removals: list[Removal] = [Removal(bands, meaning) for meaning in MEANINGS for bands in choose(theta)]
        sums: list[Floats] = _sums(target, subject, [None, *removals], windows, measurement)
        whole, without = sums[0], sums[1:]
        counts = np.array([window.stop - window.start for window in windows], np.float64)
        rows = [
            row(removal, wavelength(theta[removal.bands[-1]]), *paired_difference(each - whole, counts))
            for removal, each in zip(removals, without, strict=True)
        ]
        result = kind(
            **measurement.common,
            num_documents=len(counts),
            num_tokens=int(counts.sum()),
            loss=float(whole.sum() / counts.sum()),
            removals=rows,
        )
        by_meaning = np.stack(without).reshape(len(MEANINGS), -1, len(counts))
        return lambda: (result, {"counts": counts, "whole": whole, "without": by_meaning})

    return measurement.carry_out(measure)


def enough_tokens(documents: Documents, length: int) -> int:
    """Tokens that reach 32 documents, and 32,768 where documents are short.

    Args:
        length: of the windows, in tokens.
    """
    firsts = documents.source.lengths[:NUM_DOCUMENTS].astype(np.int64) - 1
    return max(NUM_TOKENS, int(np.minimum(firsts, length).sum()))


def _sums(
    target: Target,
    subject: Subject,
    removals: Sequence[Removal | None],
    windows: Sequence[Piece],
    measurement: Measurement[Any],
) -> list[Floats]:
    """The losses of each window, summed, for each removal; nothing is removed where that is None."""
    lengths = [window.stop - window.start for window in windows]
    display = Display()  # removals may each be too quick for a line of their own
    found = []
    for number, removal in enumerate(removals):
        label = "whole" if removal is None else f"{removal.meaning} of {' '.join(map(str, removal.bands))}"
        progress = f"{number} of {len(removals) - 1}"
        work = measurement.work(f"{target.name}, removal {progress}" if number else target.name, label)
        start = partial(_start, subject, removal, target.documents.source, windows)
        scored = in_batches(work, lengths, lengths, start)
        display.show(f"{target.name}, removals  {progress}")
        found.append(np.array([values.sum(dtype=np.float64) for values in scored]))
    return found


def _start(
    subject: Subject, removal: Removal | None, source: Source, windows: Sequence[Piece], batch: Sequence[int]
) -> Callable[[], npt.NDArray[np.float32]]:
    """Scores some of the windows; the returned function waits for a GPU and gives their losses, end to end."""
    some = [windows[index] for index in batch]
    losses = subject.losses([source.document(each.document, each.start, each.stop + 1) for each in some], removal)

    def wait() -> npt.NDArray[np.float32]:
        rows = losses.cpu().numpy()
        return np.concatenate([row[: each.stop - each.start] for row, each in zip(rows, some, strict=True)])

    return wait


def paired_difference(differences: Floats, counts: Floats) -> tuple[float, float | None]:
    """Nats per token and their standard error over documents; no error from one document.

    Args:
        differences: of each document, the sum of its losses less that of the other.
        counts: its tokens.
    """
    total = counts.sum()
    mean = float(differences.sum() / total)
    if len(counts) < 2:
        return mean, None
    rest = differences - mean * counts
    return mean, math.sqrt(float((rest**2).sum()) * len(counts) / (len(counts) - 1)) / float(total)
