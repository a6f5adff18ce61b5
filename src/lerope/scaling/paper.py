"""What the LeRoPE paper (arXiv:2607.10134) prints about scaling, and the same recomputed from its perplexities."""

import numpy as np

from lerope.scaling import paper_runs
from lerope.scaling.compute import ladder_compute
from lerope.scaling.fits import PowerLaw, efficiency_gain, fit_hinge, fit_joint, fit_power_law
from lerope.scaling.multipliers import Floats, compute_multipliers
from lerope.scaling.printed import Entry

RUNGS = ("52M", "217M", "608M", "1.34B", "2.52B")
PERPLEXITY = {
    "rope": (30.2450, 18.2377, 13.8795, 11.5747, 10.1720),
    "prope": (30.2695, 18.2269, 13.8663, 11.5665, 10.1659),
    "lerope": (29.9479, 18.1335, 13.8093, 11.5384, 10.1387),
}
# Floor: alpha, RMSE, efficiency gains, as printed.
SENSITIVITY = {
    0.0: ("0.044", "6.4e-3", ("1.028", "1.118", "1.090", "1.031", "0.952")),
    0.3: ("0.050", "3.8e-3", ("1.043", "1.089", "1.069", "1.034", "0.982")),
    0.5: ("0.054", "1.8e-3", ("1.055", "1.065", "1.052", "1.036", "1.008")),
    0.641: ("0.057", "5.3e-4", ("1.064", "1.047", "1.039", "1.039", "1.031")),
    0.8: ("0.062", "2.2e-3", ("1.075", "1.024", "1.022", "1.043", "1.063")),
    1.0: ("0.069", "5.5e-3", ("1.090", "0.989", "0.997", "1.051", "1.118")),
}


def losses() -> tuple[Floats, dict[str, Floats]]:
    """Compute and losses in nats of the paper's main table."""
    compute = np.array([ladder_compute(rung) for rung in RUNGS])
    return compute, {name: np.log(values) for name, values in PERPLEXITY.items()}


def recomputed() -> list[Entry]:
    """Every number of the paper's tables on scaling, runs, seeds and dominant bands beside its recomputation."""
    return [*_scaling(), *paper_runs.entries()]


def _scaling() -> list[Entry]:
    compute, loss = losses()
    entries: list[Entry] = []

    def row(table: str, name: str, printed: tuple[str, ...], values: Floats) -> None:
        pairs = zip(RUNGS, printed, values, strict=True)
        entries.extend(Entry(table, f"{name}, {rung}", text, float(value)) for rung, text, value in pairs)

    table = "compute multipliers"
    multipliers = compute_multipliers(compute, loss["rope"], loss["lerope"])
    row(table, "LeRoPE, piecewise", ("1.071", "1.048", "1.047", "1.032", "1.034"), multipliers)
    fit = fit_power_law(compute, loss["rope"])
    gains = efficiency_gain(fit, compute, loss["lerope"])
    row(table, "LeRoPE, fitted", ("1.064", "1.047", "1.039", "1.039", "1.031"), gains)
    entries += _fit_entries("fit of RoPE", fit, {"E": "0.641", "A": "26.4", "alpha": "0.0574", "rmse": "5.3e-4"})
    widths = []
    for floor, (alpha, rmse, printed) in SENSITIVITY.items():
        held = fit_power_law(compute, loss["rope"], floor)
        table = f"floor held at {floor:g}"
        entries += _fit_entries(table, held, {"alpha": alpha, "rmse": rmse})
        gains = efficiency_gain(held, compute, loss["lerope"])
        row(table, "LeRoPE", printed, gains)
        if floor >= 0.3:
            widths.append(gains)
    spread = float(np.ptp(np.stack(widths), axis=0).max())
    entries += [Entry("floors from 0.3 to 1", "largest spread of a gain", "0.14", spread)]
    joint = fit_joint(compute, loss)
    entries += [Entry("joint fit", "E", "0.643", joint.E), Entry("joint fit", "rmse", "4.7e-4", joint.rmse)]
    exponents = [method.alpha for method in joint.methods.values()]
    entries += [Entry("joint fit", "smallest alpha", "0.0573", min(exponents))]
    entries += [Entry("joint fit", "largest alpha", "0.0576", max(exponents))]
    spread = 100 * (max(exponents) / min(exponents) - 1)
    entries += [Entry("joint fit", "spread of alpha, %", "0.5", spread)]
    entries += [Entry("hinge", "rmse", "1.1e-3", fit_hinge(compute, loss["rope"]).rmse)]
    return entries


def _fit_entries(table: str, fit: PowerLaw, printed: dict[str, str]) -> list[Entry]:
    return [Entry(table, name, text, getattr(fit, name)) for name, text in printed.items()]
