"""Numbers as a paper prints them: what their last digit leaves open, and whether a recomputation agrees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from lerope.scaling.multipliers import Floats

Status = Literal["reproduces", "within the rounding of its inputs", "differs"]

# A little more than half a unit: inputs carry rounding of their own.
_HALF = 0.501


@dataclass(frozen=True)
class Entry:
    """A number as the paper prints it, and as it comes out of other numbers that the paper prints."""

    table: str
    name: str
    printed: str
    value: float
    low: float | None = None
    """The least that the inputs allow within their last digits; the value itself unless given."""
    high: float | None = None

    @property
    def status(self) -> Status:
        """Whether the value, rounded as the paper rounds it, is what is printed, or could be within its inputs."""
        low, high = printed_range(self.printed, _HALF)
        if low <= self.value <= high:
            return "reproduces"
        least, most = (self.value if bound is None else bound for bound in (self.low, self.high))
        return "within the rounding of its inputs" if low <= most and least <= high else "differs"


def printed_range(text: str, half: float = 0.5) -> tuple[float, float]:
    """What a printed number may have been before it was rounded: half a unit of its last digit either side."""
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
    """A function of printed numbers beside its printed value.

    Args:
        function: its extremes are looked for at the ends of the inputs' ranges, where a monotone function has them.
        inputs: the numbers as printed.
        ranges: what each may have been before rounding; what its digits say unless given.
    """
    corners = product(*(ranges or [printed_range(text) for text in inputs]))
    values = [function(np.array(corner)) for corner in corners]
    return Entry(table, name, printed, function(np.array([float(text) for text in inputs])), min(values), max(values))
