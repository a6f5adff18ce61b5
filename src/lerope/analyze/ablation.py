"""What it costs to take bands away: each alone (leave-one-out), or the slowest together, for every number of them.

contribution  the bands' part of every query is zero after QK-norm: their term of the logits is gone
frequency     the bands do not turn (theta_m = 0): their term stays and says nothing about position
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from lerope.train.rundir import provenance

Floats = npt.NDArray[np.float64]

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
    max_tokens = max_tokens or enough_tokens(target.documents, target.length)
    settings = _settings(target, max_tokens)
    measurement = target.measurement(Ablation, FILE, settings, device)

    def measure() -> Callable[[], tuple[Ablation, Arrays]]:
        subject = target.load(device)
        removals = [Removal((band,), meaning) for meaning in MEANINGS for band in range(subject.num_bands)]
        scores = _score(target, subject, removals, max_tokens, measurement)
        theta = mean_frequencies(subject)
        rows = [
            BandRemoval(
                meaning=removal.meaning,
                band=removal.bands[0],
                wavelength=wavelength(theta[removal.bands[0]]),
                increase=increase,
                standard_error=error,
            )
            for removal, (increase, error) in zip(removals, scores.increases(), strict=True)
        ]
        return lambda: (Ablation(removals=rows, **scores.common(target, settings)), scores.arrays())

    return measurement.carry_out(measure)


def remove_slowest(target: Target, max_tokens: int | None, device: torch.device) -> SlowestRemovals:
    """Scores a target without its slowest bands, for every number of them, and writes `results/slowest.json`.

    Args:
        max_tokens: as in `leave_one_out`.
    """
    max_tokens = max_tokens or enough_tokens(target.documents, target.length)
    settings = _settings(target, max_tokens)
    measurement = target.measurement(SlowestRemovals, SLOWEST_FILE, settings, device)

    def measure() -> Callable[[], tuple[SlowestRemovals, Arrays]]:
        subject = target.load(device)
        theta = mean_frequencies(subject)
        slowest = sorted(range(subject.num_bands), key=lambda band: (abs(theta[band]), -band))
        counts = range(1, subject.num_bands + 1)
        removals = [Removal(tuple(slowest[:count]), meaning) for meaning in MEANINGS for count in counts]
        scores = _score(target, subject, removals, max_tokens, measurement)
        rows = [
            SlowestRemoval(
                meaning=removal.meaning,
                num_bands=len(removal.bands),
                band=removal.bands[-1],
                wavelength=wavelength(theta[removal.bands[-1]]),
                increase=increase,
                standard_error=error,
            )
            for removal, (increase, error) in zip(removals, scores.increases(), strict=True)
        ]
        return lambda: (SlowestRemovals(removals=rows, **scores.common(target, settings)), scores.arrays())

    return measurement.carry_out(measure)


def enough_tokens(documents: Documents, length: int) -> int:
    """Tokens that reach 32 documents, and 32,768 where documents are short.

    Args:
        length: of the windows, in tokens.
    """
    firsts = documents.source.lengths[:NUM_DOCUMENTS].astype(np.int64) - 1
    return max(NUM_TOKENS, int(np.minimum(firsts, length).sum()))


@dataclass(frozen=True)
class _Scores:
    """Sums of losses by document, whole and without some bands, and the tokens of each document."""

    whole: Floats
    without: list[Floats]
    counts: Floats

    def increases(self) -> list[tuple[float, float | None]]:
        """What each removal costs, and its standard error."""
        return [paired_difference(sums - self.whole, self.counts) for sums in self.without]

    def common(self, target: Target, settings: dict[str, Any]) -> dict[str, Any]:
        """What both results say."""
        return {
            "run": target.label,
            "settings": settings,
            "provenance": provenance(),
            "num_documents": len(self.counts),
            "num_tokens": int(self.counts.sum()),
            "loss": float(self.whole.sum() / self.counts.sum()),
        }

    def arrays(self) -> Arrays:
        """What lies beside them."""
        without = np.stack(self.without).reshape(len(MEANINGS), -1, len(self.counts))
        return {"counts": self.counts, "whole": self.whole, "without": without}


def _settings(target: Target, max_tokens: int) -> dict[str, Any]:
    return {**target.settings, "windows": "first", "max_tokens": max_tokens}


def _score(
    target: Target, subject: Subject, removals: Sequence[Removal], max_tokens: int, measurement: Measurement[Any]
) -> _Scores:
    windows = select(target.documents, target.length, True, max_tokens)
    lengths = [window.stop - window.start for window in windows]
    display = Display()  # removals may each be too quick for a line of their own

    def sums(removal: Removal | None, number: int) -> Floats:
        label = "whole" if removal is None else f"{removal.meaning} of {' '.join(map(str, removal.bands))}"
        scored = in_batches(
            lengths,
            lengths,
            lambda batch: _start(subject, removal, target.documents.source, [windows[index] for index in batch]),
            ranks=measurement.ranks,
            partial=measurement.partial(label),
            label=f"{target.name}, removal {number} of {len(removals)}" if number else target.name,
        )
        display.show(f"{target.name}, removals  {number} of {len(removals)}")
        return np.array([values.sum(dtype=np.float64) for values in scored])

    whole = sums(None, 0)
    without = [sums(removal, number) for number, removal in enumerate(removals, start=1)]
    return _Scores(whole, without, np.array(lengths, np.float64))


def _start(
    subject: Subject, removal: Removal | None, source: Source, windows: Sequence[Piece]
) -> Callable[[], npt.NDArray[np.float32]]:
    """Scores some windows; the returned function waits for a GPU and gives their losses, end to end."""
    losses = subject.losses([source.document(each.document, each.start, each.stop + 1) for each in windows], removal)

    def wait() -> npt.NDArray[np.float32]:
        rows = losses.cpu().numpy()
        return np.concatenate([row[: each.stop - each.start] for row, each in zip(rows, windows, strict=True)])

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
