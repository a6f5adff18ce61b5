"""The loss of every token of some windows."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lerope.data.packing import Piece
from lerope.evaluate.documents import Source
from lerope.evaluate.scorer import Scorer
from lerope.evaluate.work import Floats, Work, in_batches
from lerope.results import PositionBin

Floats64 = npt.NDArray[np.float64]


def window_losses(work: Work, scorer: Scorer, source: Source, windows: Sequence[Piece]) -> list[Floats]:
    """The losses of each window's targets, in the order of the windows, on the main rank; nothing elsewhere."""
    lengths = [window.stop - window.start for window in windows]

    def start(batch: list[int]) -> Callable[[], Floats]:
        some = [windows[index] for index in batch]
        losses = scorer.start([source.document(each.document, each.start, each.stop + 1) for each in some])
        return lambda: losses().numpy()

    found = in_batches(work, lengths, lengths, start)
    for window, losses in zip(windows, found, strict=False):
        if not np.isfinite(losses).all():
            work.partial.unlink()
            raise ValueError(
                f"{work.label}: losses of document {window.document} are not finite, so the model's weights are not "
                "either; train again with a lower learning_rate."
            )
    return found


def position_sums(losses: Sequence[Floats], length: int) -> tuple[Floats64, Floats64]:
    """For each position in a window of `length` the sum of its losses and their number."""
    sums, counts = np.zeros((2, length))
    for values in losses:
        sums[: len(values)] += values
        counts[: len(values)] += 1
    return sums, counts


def binned(sums: Floats64, counts: Floats64, num_bins: int, length: int) -> list[PositionBin]:
    """Mean losses by position, in bins of equal width over `length`; those without tokens are left out."""
    width = math.ceil(length / num_bins)
    found: list[PositionBin] = []
    for start in range(0, len(sums), width):
        here = slice(start, start + width)
        if number := int(counts[here].sum()):
            mean = float(sums[here].sum() / number)
            found.append({"start": start, "stop": min(start + width, len(sums)), "num_tokens": number, "loss": mean})
    return found
