"""The paper's search for a learning rate: on the grid 2^(-index/2), until the best is bracketed by its neighbours.

A search is a function of the losses known so far, so that it can be stopped and resumed anywhere. How many runs it
takes where losses fall to one minimum and rise after it:

- from a guess: 3 if the guess is right; k + 2 if the minimum is k indices above it, k + 3 if it is k below. The guess,
  the minimum, its two neighbours and all between them are k + 2; the other neighbour of the guess is one more, and is
  tried first if the minimum is on the far side. No walk by single indices can do with fewer.
- without a guess: 6 if the minimum is one of the 18 indices 7 to 24, and one more for index 6 or 25. This is Kiefer's
  Fibonacci search, whose worst case no other search on 20 indices can beat. Beyond them it walks on.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The grid's ends, learning rates 1 and 2^-20. Whatever has its best there does not depend on the learning rate.
FIRST, LAST = 0, 40
# Without a guess, the index is searched for between these two; their distance is a Fibonacci number.
COLD = (5, 26)


def learning_rate(index: int) -> float:
    """The grid's learning rate, 2^(-index/2): a larger index is a smaller rate."""
    return float(2 ** (-index / 2))


def next_index(losses: Mapping[int, float], start: int | None) -> int | None:
    """The index to train next, or None once the best one has worse neighbours on both sides.

    A run that diverged has a loss of inf (or nan); if all did, smaller rates follow. Two equal losses side by side
    count as one, which must have worse ones around it; three in a row end the search: there is nothing to choose.

    Args:
        losses: what is known, by index.
        start: a guess at the best index, where the first run is; None for a search without a guess.
    """
    known = _without_nan(losses)
    if start is None:
        wanted = _fibonacci(known)
        if wanted is not None:
            return wanted
    elif not known:
        return _on_grid(start, known)
    if math.isinf(min(known.values())):
        return _on_grid(max(known) + 1, known)
    first, last = _lowest(known)
    if last - first >= 2:
        return None
    for neighbour in (last + 1, first - 1):
        if neighbour not in known:
            return _on_grid(neighbour, known)
    return None


def upcoming(losses: Mapping[int, float], start: int | None, count: int) -> list[int]:
    """Up to `count` indices that `next_index` may ask for from here on: the next one, then those that may follow it.

    Where runs can be trained at once, these are worth starting together: first what follows if each is worse than what
    is known, which is what ends a search.
    """
    found: list[int] = []
    cases = [dict(losses)]
    for _ in range(count):
        following = []
        for case in cases:
            try:
                index = next_index(case, start)
            except ValueError:  # beyond the grid's end
                continue
            if index is None:
                continue
            if index not in found:
                found.append(index)
            known = [loss for loss in case.values() if math.isfinite(loss)]
            worse, better = max(known, default=0.0) + 1, min(known, default=0.0) - 1
            following += [{**case, index: worse}, {**case, index: better}]
        cases = following
    return found[:count]


def optimum(losses: Mapping[int, float]) -> int:
    """The index of the lowest loss; among equals side by side the middle one, of two the smaller rate."""
    known = _without_nan(losses)
    if not known or math.isinf(min(known.values())):
        raise ValueError(f"losses must include a finite one; got {dict(losses)}.")
    first, last = _lowest(known)
    return (first + last + 1) // 2


@dataclass(frozen=True)
class GridFit:
    """The best index as a straight line in ln N."""

    slope: float
    """s in learning rate ~ N^s."""
    at_one: float
    """The index at N = 1."""

    def index(self, parameters: float) -> int:
        """The predicted index for a model of N parameters, rounded to the grid."""
        return round(self.at_one - 2 / math.log(2) * self.slope * math.log(parameters))


def fit_grid(parameters: Sequence[float], indices: Sequence[int]) -> GridFit:
    """The least-squares line through the best indices of models of two sizes or more.

    Args:
        parameters: N_tot of each model.
        indices: the best index of each.
    """
    if len(parameters) != len(indices) or len(set(parameters)) < 2 or not all(n > 0 for n in parameters):
        raise ValueError(f"parameters must be two or more sizes, one for each index; got {list(parameters)}.")
    rise, at_one = statistics.linear_regression([math.log(n) for n in parameters], indices)
    return GridFit(slope=-rise * math.log(2) / 2, at_one=at_one)


def _without_nan(losses: Mapping[int, float]) -> dict[int, float]:
    return {index: math.inf if math.isnan(loss) else loss for index, loss in losses.items()}


def _fibonacci(known: dict[int, float]) -> int | None:
    """The next index of the search without a guess, None once one candidate is left."""
    low, high = COLD
    inner, outer = 8, 13
    while high - low > 2:
        left, right = low + inner, low + outer
        for index in (left, right):
            if index not in known:
                return index
        if known[left] < known[right]:
            high = right
        else:  # also where both diverged: the smaller rate is the better bet
            low = left
        inner, outer = outer - inner, inner
    return None


def _lowest(known: dict[int, float]) -> tuple[int, int]:
    """The ends of the row of adjacent indices that share the lowest loss."""
    lowest = min(known.values())
    first = last = max(index for index, loss in known.items() if loss == lowest)
    while known.get(first - 1) == lowest:
        first -= 1
    return first, last


def _on_grid(index: int, known: dict[int, float]) -> int:
    if FIRST <= index <= LAST:
        return index
    if known and math.isinf(min(known.values())):
        raise ValueError(f"learning_rate must let a run train; all diverged, from index {min(known)} to {max(known)}.")
    raise ValueError(
        f"index must be from {FIRST} to {LAST}, learning rates 1 to 2^-20; got {index}"
        + (", next to the best so far: the loss hardly depends on the learning rate." if known else ".")
    )
