"""Loss against compute: L = E + A C^-alpha, alone or with a floor E shared by methods, and a broken power law.

All are least squares on the loss in nats.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lerope.core.extras import install
from lerope.scaling.multipliers import Floats, Values, checked


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """loss = E + A C^-alpha."""

    A: float
    alpha: float
    E: float
    rmse: float
    """Root mean square of the residuals at the points of the fit, in nats."""

    @property
    def falls(self) -> bool:
        """Whether the loss falls with compute, so that it has one compute."""
        return self.alpha > 0 and self.A > 0

    def loss(self, compute: Values) -> Floats:
        """The loss at a compute."""
        return self.E + self.A * np.asarray(compute, np.float64) ** -self.alpha

    def compute(self, loss: Values) -> Floats:
        """The compute at which a loss is reached; infinite at or below the floor."""
        above = np.asarray(loss, np.float64) - self.E
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (self.A / above) ** (1 / self.alpha)
        return np.where(above > 0, found, np.inf)


@dataclass(frozen=True, kw_only=True)
class JointFit:
    """One floor for several methods."""

    E: float
    rmse: float
    """Over the points of all methods."""
    methods: dict[str, PowerLaw]


@dataclass(frozen=True, kw_only=True)
class Hinge:
    """ln loss = a - c1 x - (c2 - c1) max(x - x0, 0) with x = ln C: a power law that breaks, without a floor."""

    a: float
    c1: float
    c2: float
    x0: float
    rmse: float

    @property
    def falls(self) -> bool:
        """Whether the loss falls with compute, so that it has one compute."""
        return self.c1 > 0 and self.c2 > 0

    def loss(self, compute: Values) -> Floats:
        """The loss at a compute."""
        x = np.log(np.asarray(compute, np.float64))
        values: Floats = np.exp(self.a - self.c1 * x - (self.c2 - self.c1) * np.maximum(x - self.x0, 0))
        return values

    def compute(self, loss: Values) -> Floats:
        """The compute at which a loss is reached."""
        y = self.a - np.log(np.asarray(loss, np.float64))
        at_break = self.c1 * self.x0
        x = np.where(y <= at_break, y / self.c1, self.x0 + (y - at_break) / self.c2)
        found: Floats = np.exp(x)
        return found


def fit_power_law(compute: Values, loss: Values, floor: float | None = None) -> PowerLaw:
    """Fits E, A and alpha, or given a floor only A and alpha."""
    c, y = checked(compute, loss)
    lowest = float(y.min())
    if floor is None:
        if len(c) < 3:
            raise ValueError(f"compute must have three points or more to fit E, A and alpha; got {len(c)}.")
        floor = _best_floor(lambda e: _with_floor(c, y, e).rmse, lowest)
    elif not 0 <= floor < lowest:
        raise ValueError(f"floor must be from 0 to below the lowest loss, {lowest:.4f}; got {floor!r}.")
    return _with_floor(c, y, float(floor))


def fit_joint(compute: Values, losses: Mapping[str, Values], floor: float | None = None) -> JointFit:
    """Fits one floor E for all methods and A, alpha for each; E is fixed if given."""
    if not losses:
        raise ValueError("losses must name at least one method; got none.")
    c, *rows = checked(compute, *losses.values())
    lowest = float(min(y.min() for y in rows))

    def rmse(e: float) -> float:
        return math.sqrt(np.mean([_with_floor(c, y, e).rmse ** 2 for y in rows]))

    if floor is None:
        floor = _best_floor(rmse, lowest)
    elif not 0 <= floor < lowest:
        raise ValueError(f"floor must be from 0 to below the lowest loss, {lowest:.4f}; got {floor!r}.")
    methods = {name: _with_floor(c, y, floor) for name, y in zip(losses, rows, strict=True)}
    return JointFit(E=floor, rmse=rmse(floor), methods=methods)


def fit_hinge(compute: Values, loss: Values, x0: float | None = None) -> Hinge:
    """Fits the broken power law; the break at compute exp(x0) is searched for between the points unless given."""
    c, y = checked(compute, loss)
    if len(c) < 4:
        raise ValueError(f"compute must have four points or more to fit a hinge; got {len(c)}.")
    if x0 is not None:
        return _with_break(c, y, x0)
    grid = np.linspace(np.log(c.min()), np.log(c.max()), 401)[1:-1]
    best = min((_with_break(c, y, float(x)) for x in grid), key=lambda fit: fit.rmse)
    step = grid[1] - grid[0]
    found = _optimize().minimize_scalar(
        lambda x: _with_break(c, y, float(x)).rmse,
        bounds=(best.x0 - step, best.x0 + step),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return min(best, _with_break(c, y, float(found.x)), key=lambda fit: fit.rmse)


def efficiency_gain(fit: PowerLaw | Hinge, compute: Values, loss: Values) -> Floats:
    """f^-1(loss) / compute: how much more compute the fitted baseline needs for the same loss."""
    c, y = checked(compute, loss)
    return fit.compute(y) / c


def _best_floor(rmse: Callable[[float], float], lowest: float) -> float:
    """The floor of least error. A scan first, because the error need not have one valley."""
    scan = np.linspace(0.0, lowest, 202)[:-1]
    best = int(np.argmin([rmse(float(e)) for e in scan]))
    bounds = (scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)])
    found = _optimize().minimize_scalar(
        lambda e: rmse(float(e)), bounds=bounds, method="bounded", options={"xatol": 1e-12}
    )
    return float(found.x) if found.fun < rmse(float(scan[best])) else float(scan[best])


def _with_floor(c: Floats, y: Floats, floor: float) -> PowerLaw:
    """A and alpha at a given floor."""
    x = np.log(c)
    centre = x.mean()
    slope, intercept = np.polyfit(x - centre, np.log(y - floor), 1)

    def model(p: Floats) -> Floats:
        values: Floats = np.exp(p[0] - p[1] * (x - centre))
        return values

    solved = _least_squares(lambda p: floor + model(p) - y, np.array([intercept, -slope]))
    rmse = float(np.sqrt(np.mean((floor + model(solved) - y) ** 2)))
    return PowerLaw(A=math.exp(solved[0] + solved[1] * centre), alpha=float(solved[1]), E=floor, rmse=rmse)


def _with_break(c: Floats, y: Floats, x0: float) -> Hinge:
    x = np.log(c)
    design = np.stack([np.ones_like(x), -np.minimum(x - x0, 0), -np.maximum(x - x0, 0)], axis=1)
    start = np.linalg.lstsq(design, np.log(y), rcond=None)[0]
    solved = _least_squares(lambda p: np.exp(design @ p) - y, start)
    rmse = float(np.sqrt(np.mean((np.exp(design @ solved) - y) ** 2)))
    height, c1, c2 = (float(value) for value in solved)
    return Hinge(a=height + c1 * x0, c1=c1, c2=c2, x0=x0, rmse=rmse)


def _least_squares(residuals: Callable[[Floats], Floats], start: Floats) -> Floats:
    solved: Floats = _optimize().least_squares(residuals, start, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15).x
    return solved


def _optimize() -> Any:
    try:
        from scipy import optimize
    except ImportError:
        raise ValueError(f"fits need the package scipy; install it with `{install('scaling')}`.") from None
    return optimize
