"""Scaling mathematics: compute, multipliers, fits, and whether differences are more than noise. No torch."""

from lerope.core.ladder import ladder_compute
from lerope.scaling.fits import (
    Hinge,
    JointFit,
    PowerLaw,
    efficiency_gain,
    fit_hinge,
    fit_joint,
    fit_power_law,
)
from lerope.scaling.multipliers import compute_multipliers
from lerope.scaling.seeds import Effect, GainCaptured, Interval, effect, gain_captured
from lerope.scaling.wavelengths import WavelengthRatio, left_out_of_ratio, wavelength_ratio

__all__ = [
    "Effect",
    "GainCaptured",
    "Hinge",
    "Interval",
    "JointFit",
    "PowerLaw",
    "WavelengthRatio",
    "compute_multipliers",
    "effect",
    "efficiency_gain",
    "fit_hinge",
    "fit_joint",
    "fit_power_law",
    "gain_captured",
    "ladder_compute",
    "left_out_of_ratio",
    "wavelength_ratio",
]
