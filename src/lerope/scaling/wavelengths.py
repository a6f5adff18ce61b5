"""How the wavelength of a dominant band grows with the training length, by two estimators that need not agree."""

from dataclasses import dataclass

import numpy as np

from lerope.core.encoding import EncodingSpec
from lerope.results import Bands
from lerope.scaling.multipliers import Values


@dataclass(frozen=True, kw_only=True)
class WavelengthRatio:
    """wavelength / length over several runs."""

    mean: float
    """The mean of the runs' ratios: every run counts equally."""
    standard_deviation: float | None
    """Between runs; None for one run."""
    slope: float
    """The least-squares slope through the origin: a run is weighted by the square of its length."""
    largest_weight: float
    """The share of the slope's weight that the run with the largest has; near 1, the slope is that run's ratio."""


def left_out_of_ratio(bands: Bands) -> str | None:
    """Why a run does not count in the ratio; None if it does.

    The ratio is of runs whose frequencies were learned, one set for all layers and heads, and have a dominant band.
    """
    recipe = bands.run.get("recipe")
    spec = None if recipe is None else EncodingSpec.parse(recipe["encoding"])
    if spec is None or spec.family != "lerope":
        return "frequencies are not learned"
    if (sharing := dict(spec.options).get("sharing")) is not None:
        return f"per {sharing.replace('_', ' and ')}"
    return None if bands.stands_out else "no band stands out"


def wavelength_ratio(lengths: Values, wavelengths: Values) -> WavelengthRatio:
    """Both estimators of wavelength / length.

    Args:
        lengths: training length of each run, in tokens.
        wavelengths: wavelength of its dominant band, in tokens.
    """
    x, y = np.asarray(lengths, np.float64), np.asarray(wavelengths, np.float64)
    for name, array in (("lengths", x), ("wavelengths", y)):
        if array.ndim != 1 or not len(array) or not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{name} must be one or more positive numbers; got {array.tolist()}.")
    if len(x) != len(y):
        raise ValueError(f"wavelengths must be {len(x)} numbers, one for each length; got {len(y)}.")
    ratios, weights = y / x, x**2 / (x**2).sum()
    return WavelengthRatio(
        mean=float(ratios.mean()),
        standard_deviation=float(ratios.std(ddof=1)) if len(x) > 1 else None,
        slope=float((weights * ratios).sum()),
        largest_weight=float(weights.max()),
    )
