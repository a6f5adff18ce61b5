"""Long curves made fit for drawing: smoothed, thinned, cut into groups."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def smooth(sums: Floats, counts: Floats, deviation: float) -> Floats:
    """Means by position under a Gaussian kernel, each token counted equally; NaN where there is none.

    Args:
        sums, counts: what is averaged, and how many, at each position.
        deviation: of the kernel, in positions.
    """
    reach = max(1, int(4 * deviation))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(deviation, 1e-6)) ** 2)
    over, under = (np.convolve(values, kernel)[reach : reach + len(values)] for values in (sums, counts))
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Floats = np.where(under > 1e-9, over / under, np.nan)
    return means


def trailing(values: Mapping[int, float], share: float) -> tuple[Integers, Floats]:
    """Steps, and means over a share of the steps before each."""
    steps = np.array(sorted(values), np.int64)
    series = np.array([values[int(step)] for step in steps], np.float64)
    sums = np.concatenate([[0.0], np.cumsum(series)])
    ends = np.arange(1, len(series) + 1)
    starts = np.searchsorted(steps, steps * (1 - share))
    return steps, (sums[ends] - sums[starts]) / (ends - starts)


def thinned(count: int, most: int) -> Integers:
    """Indices of at most `most` of `count` points, evenly spread, the first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def group_edges(length: int, most: int) -> Integers:
    """Where to cut `length` neighbours into at most `most` groups of nearly the same size."""
    return np.linspace(0, length, min(length, most) + 1).round().astype(np.int64)


def distance_edges(last: int, most: int) -> Integers:
    """Where to cut distances 1 to `last` into at most `most` groups: single ones first, then ever wider."""
    return np.unique(np.geomspace(1, last + 1, most + 1).round().astype(np.int64))
