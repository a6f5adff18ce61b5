"""All estimates of what a method saves, from a table of losses."""

import csv
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lerope.scaling.compute import ladder_compute
from lerope.scaling.fits import efficiency_gain, fit_hinge, fit_joint, fit_power_law
from lerope.scaling.multipliers import Values, compute_multipliers

FLOORS = (0.0, 0.3, 0.5, 0.8, 1.0)


def read_losses(path: str | os.PathLike[str]) -> tuple[list[float], dict[str, list[float]]]:
    """Compute and losses of a CSV file: a column `rung` or `compute` (FLOPs), and one of losses in nats a method."""
    example = "the first line names the columns, for example: rung,rope,lerope"
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if any(row.values())]
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; name a CSV file of losses, {example}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV ({error}); {example}.") from None
    names = list(rows[0]) if rows else []
    key = "compute" if "compute" in names else "rung"
    methods = [name for name in names if name and name not in ("rung", "compute")]
    if key not in names or len(methods) < 2:
        raise ValueError(f"{path} must have a column rung or compute and two methods or more; got {names}, {example}.")
    compute, losses = [], {name: list[float]() for name in methods}
    for number, row in enumerate(rows, start=2):
        try:
            compute.append(ladder_compute(row["rung"]) if key == "rung" else float(row["compute"]))
            for name in methods:
                losses[name].append(float(row[name]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}".rstrip(".") + "; every cell must be filled.") from None
    return compute, losses


def study(compute: Values, losses: Mapping[str, Values], baseline: str = "rope") -> dict[str, Any]:
    """Multipliers, efficiency gains and how far they depend on the fit, for every method against the baseline.

    What needs more points than there are is left out.
    """
    if baseline not in losses:
        raise ValueError(f"baseline must be one of {', '.join(losses)}; got {baseline!r}.")
    points = len(compute)
    others = [name for name in losses if name != baseline]
    result: dict[str, Any] = {
        "baseline": baseline,
        "compute": [float(c) for c in compute],
        "multipliers": {m: compute_multipliers(compute, losses[baseline], losses[m]).tolist() for m in others},
    }
    fits: dict[str, Any] = {}
    if points >= 3:
        fits["fitted"] = fit_power_law(compute, losses[baseline])
        lowest = min(map(float, losses[baseline]))
        fits |= {f"E = {e:g}": fit_power_law(compute, losses[baseline], e) for e in FLOORS if e < lowest}
        fits["shared E"] = fit_joint(compute, losses).methods[baseline]
    if points >= 4:
        fits["hinge"] = fit_hinge(compute, losses[baseline])
    result["fits"] = {
        name: {
            **{key: float(value) for key, value in vars(fit).items()},
            "gains": {m: [_finite(g) for g in efficiency_gain(fit, compute, losses[m])] for m in others},
        }
        for name, fit in fits.items()
    }
    return result


def _finite(value: float) -> float | None:
    """None for a loss that the fit never reaches."""
    return float(value) if math.isfinite(value) else None
