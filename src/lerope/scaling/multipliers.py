"""Compute multipliers: how much more compute the baseline needs to reach a variant's loss."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Values = Sequence[float] | npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]

PIECEWISE = "piecewise in ln C"


def compute_multipliers(compute: Values, baseline_loss: Values, variant_loss: Values) -> Floats:
    """C_baseline / C at equal loss, for each of the variant's points.

    The baseline's points are joined by straight lines in (ln C, loss), the first and last of which extend beyond the
    ends. Above 1, the variant saves compute.

    Args:
        compute: FLOPs of each rung, the same for both.
        baseline_loss, variant_loss: nats, one for each rung.
    """
    c, baseline, variant = checked(compute, baseline_loss, variant_loss)
    if not falls(c, baseline):
        raise ValueError(f"baseline_loss must fall with compute, or compute is ambiguous; got {baseline.tolist()}.")
    order = np.argsort(c)
    x, y = np.log(c[order]), baseline[order]
    # Losses fall along x, so that the segment of a loss is found among the falling ones.
    segment = np.clip(np.searchsorted(-y, -variant, side="right") - 1, 0, len(x) - 2)
    slope = (x[segment + 1] - x[segment]) / (y[segment + 1] - y[segment])
    reached = x[segment] + slope * (variant - y[segment])
    multipliers: Floats = np.exp(reached - np.log(c))
    return multipliers


def falls(compute: Values, loss: Values) -> bool:
    """Whether more compute means a lower loss at every step."""
    c, y = checked(compute, loss)
    return bool((np.diff(y[np.argsort(c)]) < 0).all())


def checked(compute: Values, *losses: Values) -> tuple[Floats, ...]:
    """The arguments as arrays, checked."""
    arrays = tuple(np.asarray(values, np.float64) for values in (compute, *losses))
    c = arrays[0]
    if c.ndim != 1 or len(c) < 2 or len(set(c.tolist())) < len(c) or not (np.isfinite(c) & (c > 0)).all():
        raise ValueError(f"compute must be two or more different positive numbers; got {c.tolist()}.")
    for array in arrays[1:]:
        if array.shape != c.shape or not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"losses must be {len(c)} positive numbers, one for each compute; got {array.tolist()}.")
    return arrays


def finite(value: float) -> float | None:
    """None for a loss that a baseline never reaches: JSON has no infinity."""
    return float(value) if math.isfinite(value) else None
