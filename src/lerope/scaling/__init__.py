"""Scaling mathematics on plain numbers: compute, multipliers, fits. numpy and scipy, no torch."""

from lerope.scaling.compute import ladder_compute
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

__all__ = [
    "Hinge",
    "JointFit",
    "PowerLaw",
    "compute_multipliers",
    "efficiency_gain",
    "fit_hinge",
    "fit_joint",
    "fit_power_law",
    "ladder_compute",
]
