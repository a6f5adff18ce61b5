"""What the paper prints about scaling, recomputed from its perplexities, along with everything else it prints."""

import numpy as np

from lerope.core.ladder import ladder_compute
from lerope.paper import numbers, recomputed_runs
from lerope.paper.numbers import RUNGS
from lerope.paper.printed import Entry
from lerope.scaling.fits import PowerLaw, efficiency_gain, fit_hinge, fit_joint, fit_power_law
from lerope.scaling.multipliers import Floats, compute_multipliers


def losses() -> tuple[Floats, dict[str, Floats]]:
    """Compute and losses, in nats, from the paper's main table."""
    compute = np.array([ladder_compute(rung) for rung in RUNGS])
    return compute, {name: np.log(values) for name, values in numbers.PERPLEXITY.items()}


def recomputed() -> list[Entry]:
    """Every number in the paper's tables on scaling, runs, seeds and dominant bands, with its recomputation."""
    return [*_scaling(), *recomputed_runs.entries()]


def _scaling() -> list[Entry]:
    compute, loss = losses()
    entries: list[Entry] = []

    def row(table: str, name: str, printed: tuple[str, ...], values: Floats) -> None:
        pairs = zip(RUNGS, printed, values, strict=True)
        entries.extend(Entry(table, f"{name}, {rung}", text, float(value)) for rung, text, value in pairs)

    table = "compute multipliers"
    multipliers = compute_multipliers(compute, loss["rope"], loss["lerope"])
    row(table, "LeRoPE, piecewise", numbers.PIECEWISE_MULTIPLIERS, multipliers)
    fit = fit_power_law(compute, loss["rope"])
    gains = efficiency_gain(fit, compute, loss["lerope"])
    row(table, "LeRoPE, fitted", numbers.FITTED_MULTIPLIERS, gains)
    entries += _fit_entries("fit of RoPE", fit, numbers.FIT)
    widths = []
    for floor, (alpha, rmse, printed) in numbers.SENSITIVITY.items():
        held = fit_power_law(compute, loss["rope"], floor)
        table = f"floor held at {floor:g}"
        entries += _fit_entries(table, held, {"alpha": alpha, "rmse": rmse})
        gains = efficiency_gain(held, compute, loss["lerope"])
        row(table, "LeRoPE", printed, gains)
        if floor >= 0.3:
            widths.append(gains)
    spread = float(np.ptp(np.stack(widths), axis=0).max())
    entries += [Entry("floors from 0.3 to 1", "largest spread of a gain", numbers.LARGEST_SPREAD, spread)]
    joint = fit_joint(compute, loss)
    exponents = [method.alpha for method in joint.methods.values()]
    found = {"E": joint.E, "rmse": joint.rmse, "smallest alpha": min(exponents), "largest alpha": max(exponents)}
    entries += [Entry("joint fit", name, printed, found[name]) for name, printed in numbers.JOINT_FIT.items()]
    spread = 100 * (max(exponents) / min(exponents) - 1)
    entries += [Entry("joint fit", "spread of alpha, %", numbers.JOINT_SPREAD_PERCENT, spread)]
    entries += [Entry("hinge", "rmse", numbers.HINGE_RMSE, fit_hinge(compute, loss["rope"]).rmse)]
    return entries


def _fit_entries(table: str, fit: PowerLaw, printed: dict[str, str]) -> list[Entry]:
    return [Entry(table, name, text, getattr(fit, name)) for name, text in printed.items()]
