"""Numbers as a paper prints them: the range their last digit allows, and whether a recomputation agrees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from lerope.scaling.multipliers import Floats

Status = Literal["reproduces", "within the rounding of its inputs", "differs"]

# A little over half a unit: the inputs are rounded too.
_HALF = 0.501


@dataclass(frozen=True)
class Entry:
    """A number as the paper prints it, and as recomputed from other numbers it prints."""

    table: str
    name: str
    printed: str
    value: float
    low: float | None = None
    """The least value that the inputs' last digits allow; by default, the value itself."""
    high: float | None = None

    @property
    def status(self) -> Status:
        """Whether the value, rounded as in the paper, is the printed one, or could be given its inputs' rounding."""
        low, high = printed_range(self.printed, _HALF)
        if low <= self.value <= high:
            return "reproduces"
        least, most = (self.value if bound is None else bound for bound in (self.low, self.high))
        return "within the rounding of its inputs" if low <= most and least <= high else "differs"


def printed_range(text: str, half: float = 0.5) -> tuple[float, float]:
    """What a printed number may have been before rounding: half a unit of its last digit either way."""
    mantissa, _, exponent = text.partition("e")
    digits = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return float(text) - half * 10.0**-digits, float(text) + half * 10.0**-digits


def entry(
    table: str,
    name: str,
    printed: str,
    function: Callable[[Floats], float],
    inputs: Sequence[str],
    ranges: Sequence[tuple[float, float]] | None = None,
) -> Entry:
    """A function of printed numbers with its printed value.

    Args:
        function: its extremes are sought at the ends of the inputs' ranges, where a monotone function has them.
        inputs: the numbers as printed.
        ranges: what each may have been before rounding; by default, what its digits allow.
    """
    corners = product(*(ranges or [printed_range(text) for text in inputs]))
    values = [function(np.array(corner)) for corner in corners]
    return Entry(table, name, printed, function(np.array([float(text) for text in inputs])), min(values), max(values))
