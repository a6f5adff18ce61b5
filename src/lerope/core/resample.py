"""Learned frequencies for another head size and another train length: pure functions in float64.

A profile is a curve: where RoPE's frequency is theta, the learned one is exp(alpha) * theta. Both are read as
logarithms, x = ln theta and y = ln of the learned frequency, and RoPE itself is y = x.

**Another head size** reads the same curve at other bands. Between bands it is straight. Drawing alpha straight and
drawing y straight is then the same thing, RoPE stays RoPE exactly, and y rises or falls where the profile does and
nowhere else. Past the slowest band alpha stays what it was there.

**Another train length** moves the curve's points: what turns 32 times or more in the shorter of the two lengths keeps
its frequency, what turns once or less keeps its turns in the train length, and what is between is stretched evenly.
The limits are those between which NTK-by-parts goes over from one to the other. The same move is made along x (which
band) and along y (how fast), so that RoPE stays RoPE, a profile that falls still falls, and the way back undoes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLOW_TURNS, FAST_TURNS = 1.0, 32.0
"""Bands that turn less over the train length keep their turns; bands that turn more keep their frequency."""
_EQUAL = 1e-9


@dataclass(frozen=True)
class Curve:
    """Log-scales of bands m = 0, 1, ... of n, at u = m / n of RoPE's series base^-u."""

    log_scales: Sequence[float]
    base: float

    def at(self, x: float) -> float:
        """ln of the learned frequency where RoPE's is e^x."""
        place = -x / math.log(self.base) * len(self.log_scales)
        below = min(max(math.floor(place), 0), len(self.log_scales) - 1)
        above = min(below + 1, len(self.log_scales) - 1)
        share = min(max(place - below, 0.0), 1.0)
        return x + (1 - share) * self.log_scales[below] + share * self.log_scales[above]


@dataclass(frozen=True)
class Learned:
    """A curve and where it was learned."""

    curve: Curve
    train_length: int
    dominant: float | None
    """ln of the dominant band's frequency; None where it is not known."""

    def at(self, x: float, train_length: float) -> float:
        """ln of the frequency for another train length, where RoPE's is e^x."""
        return moved(self.curve.at(moved(x, train_length, self.train_length)), self.train_length, train_length)


def moved(x: float, source: float, target: float) -> float:
    """Where the log-frequency x of one train length goes for another; rises with x, and swapping both undoes it."""
    fast = math.log(2 * math.pi * FAST_TURNS / min(source, target))
    slow = math.log(2 * math.pi * SLOW_TURNS / source)
    share = min(max((fast - x) / (fast - slow), 0.0), 1.0)
    return x - share * math.log(target / source)


def rope(num_bands: int, base: float) -> list[float]:
    """ln of RoPE's frequencies."""
    return [-math.log(base) * band / num_bands for band in range(num_bands)]


def other_bands(log_scales: Sequence[float], base: float, num_bands: int) -> list[float]:
    """Log-scales for another number of bands, at the train length they were learned at."""
    curve = Curve(log_scales, base)
    return [curve.at(x) - x for x in rope(num_bands, base)]


def with_dominant(values: list[float], dominant: float | None) -> list[float]:
    """The same log-frequencies with the nearest one set to the dominant band's.

    One band does most of the work, so it must not fall between two of them. Setting the nearest keeps their order.
    """
    if dominant is None:
        return values
    distance = min(abs(value - dominant) for value in values)
    near = [band for band, value in enumerate(values) if abs(value - dominant) <= distance + _EQUAL]
    # Of bands that are equally near, the one that passes none of them on its way.
    faster = [band for band in near if values[band] >= dominant]
    nearest = faster[-1] if faster else near[0]
    return [dominant if band == nearest else value for band, value in enumerate(values)]


def resample(learned: Sequence[Learned], num_bands: int, train_length: float) -> list[float]:
    """Log-frequencies of `num_bands` bands for a train length, the fastest first.

    Args:
        learned: at train lengths that rise. Between two of them both are moved to the one that is asked for, and
            weighed by the distance in ln(length); beyond them the nearest is moved.
    """
    after = next((at for at, each in enumerate(learned) if each.train_length >= train_length), len(learned) - 1)
    before = after if learned[after].train_length <= train_length else max(after - 1, 0)
    one, other = learned[before], learned[after]
    span = math.log(other.train_length / one.train_length)
    share = math.log(train_length / one.train_length) / span if span else 0.0
    weighed = [(one, 1 - share), (other, share)]
    values = [
        sum(weight * each.at(x, train_length) for each, weight in weighed if weight)
        for x in rope(num_bands, one.curve.base)
    ]
    known = [(each, weight) for each, weight in weighed if weight and each.dominant is not None]
    total = sum(weight for _, weight in known)
    dominant = sum(
        weight / total * moved(each.dominant, each.train_length, train_length)
        for each, weight in known
        if each.dominant is not None
    )
    return with_dominant(values, dominant if known else None)
