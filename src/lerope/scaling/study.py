"""All estimates of what a method saves, from a table of losses or from evaluated runs."""

import csv
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lerope.core.ladder import ladder_compute
from lerope.core.run import provenance
from lerope.results import FitParameter, Multipliers
from lerope.scaling.evaluated import Paths, as_method, check_baseline, default_baseline, read_study
from lerope.scaling.fits import Hinge, PowerLaw, efficiency_gain, fit_hinge, fit_joint, fit_power_law
from lerope.scaling.multipliers import PIECEWISE, Floats, compute_multipliers, falls, finite

FLOORS = (0.0, 0.3, 0.5, 0.8, 1.0)
FITTED, SHARED = "fitted", "shared E"

Fit = tuple[str, str, PowerLaw | Hinge]
"""Estimator, method, and the fit to the method's losses."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Losses of methods at the same computes."""

    rungs: list[str | None]
    compute: list[float]
    methods: dict[str, list[float]]
    settings: dict[str, Any]
    """Where the losses come from."""
    notes: list[str] = field(default_factory=list)


def read_losses(path: str | os.PathLike[str]) -> Losses:
    """Compute and losses of a CSV file: a column `rung` or `compute` (FLOPs), and one of losses in nats per method."""
    example = "the first line names the columns, for example: rung,rope,lerope"
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = [as_method(name.strip()) for name in reader.fieldnames or []]
            rows = [row for row in reader if any(row.values())]
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; name a CSV file of losses, {example}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV ({error}); {example}.") from None
    names = list(rows[0]) if rows else []
    given = [name for name in reader.fieldnames if name]
    if len(set(given)) < len(given):
        raise ValueError(f"{path} must name each column once; got {', '.join(given)}.")
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
    rungs = [row.get("rung") for row in rows]
    return Losses(rungs=rungs, compute=compute, methods=losses, settings={"table": Path(path).name})


def read_runs(paths: Paths, baseline: str | None = None, evaluation: str = "eval") -> Losses:
    """The same from evaluated runs: each method's loss at each rung is its mean over the seeds all methods have."""
    study = read_study(paths, evaluation)
    check_baseline(study, as_method(baseline or default_baseline(study)))
    if len(study) < 2:
        raise ValueError(f"name runs of two rungs or more, or losses have no slope; got {', '.join(study)}.")
    names = list(dict.fromkeys(method for methods in study.values() for method in methods))
    for rung, methods in study.items():
        for name in names:
            if name not in methods:
                raise ValueError(f"{name} has no run at {rung}; train and evaluate one, or leave {name} out.")
    compute, losses, notes = [], {name: list[float]() for name in names}, []
    for rung, methods in study.items():
        seeds = set.intersection(*(set(runs) for runs in methods.values()))
        every = set.union(*(set(runs) for runs in methods.values()))
        if not seeds:
            raise ValueError(f"methods at {rung} have no seed in common; train all with the same seeds.")
        if every > seeds:
            left_out = ", ".join(map(str, sorted(every - seeds)))
            notes.append(f"{rung}: left out seeds that some methods lack: {left_out}.")
        compute.append(next(iter(methods[names[0]].values())).recipe.compute)
        for name in names:
            losses[name].append(float(np.mean([methods[name][seed].evaluation.loss for seed in sorted(seeds)])))
    some = next(iter(next(iter(study.values()))[names[0]].values()))
    settings = {"evaluation": evaluation, "data": some.run.identity.data, **some.evaluation.settings}
    return Losses(rungs=list(study), compute=compute, methods=losses, settings=settings, notes=notes)


def study(losses: Losses, baseline: str | None = None) -> Multipliers:
    """Multipliers, efficiency gains and how much they depend on the fit, for every method against the baseline.

    What needs more points than there are is left out; what needs a loss that falls with compute is left out with a
    note. The baseline is rope unless given, or the first method.
    """
    methods, compute = losses.methods, losses.compute
    baseline = as_method(baseline or ("rope" if "rope" in methods else next(iter(methods))))
    if baseline not in methods:
        raise ValueError(f"baseline must be one of {', '.join(methods)}; got {baseline!r}.")
    others = [name for name in methods if name != baseline]
    fits, joint = _fits(losses, baseline)
    usable = {estimator: fit for estimator, method, fit in fits if method == baseline and fit.falls}
    falling = falls(compute, methods[baseline])
    gains: list[tuple[str, str, Floats]] = []
    for name in others:
        if falling:
            gains.append((name, PIECEWISE, compute_multipliers(compute, methods[baseline], methods[name])))
        gains += [(name, estimator, efficiency_gain(fit, compute, methods[name])) for estimator, fit in usable.items()]
    points = list(zip(losses.rungs, compute, strict=True))
    return Multipliers(
        settings=losses.settings,
        provenance=provenance(),
        baseline=baseline,
        losses=[
            {"rung": rung, "compute": c, "method": name, "loss": loss}
            for name, values in methods.items()
            for (rung, c), loss in zip(points, values, strict=True)
        ],
        multipliers=[
            {"rung": rung, "compute": c, "method": name, "estimator": estimator, "multiplier": finite(value)}
            for name, estimator, values in gains
            for (rung, c), value in zip(points, values, strict=True)
        ],
        fits=_parameters(fits, joint),
        notes=[*losses.notes, *_left_out(losses, baseline, falling, fits)],
    )


def _fits(losses: Losses, baseline: str) -> tuple[list[Fit], float | None]:
    """What the number of points allows, and the error of the joint fit over all methods."""
    compute, loss = losses.compute, losses.methods[baseline]
    found: list[Fit] = []
    joint = None
    if len(compute) >= 3:
        found.append((FITTED, baseline, fit_power_law(compute, loss)))
        for floor in FLOORS:
            if floor < min(loss):
                found.append((f"E = {floor:g}", baseline, fit_power_law(compute, loss, floor)))
        shared = fit_joint(compute, losses.methods)
        found += [(SHARED, name, fit) for name, fit in shared.methods.items()]
        joint = shared.rmse
    if len(compute) >= 4:
        found.append(("hinge", baseline, fit_hinge(compute, loss)))
    return found, joint


def _parameters(fits: list[Fit], joint: float | None) -> list[FitParameter]:
    found: list[FitParameter] = [
        {"estimator": estimator, "method": method, "parameter": parameter, "value": float(value)}
        for estimator, method, fit in fits
        for parameter, value in vars(fit).items()
    ]
    if joint is not None:
        found.append({"estimator": SHARED, "method": None, "parameter": "rmse", "value": joint})
    return found


def _left_out(losses: Losses, baseline: str, falling: bool, fits: list[Fit]) -> list[str]:
    """Sentences for estimators that cannot say at which compute the baseline has a loss."""
    notes = []
    if not falling:
        values = ", ".join(
            f"{loss:.4f}" for _, loss in sorted(zip(losses.compute, losses.methods[baseline], strict=True))
        )
        notes.append(
            f"There are no multipliers {PIECEWISE}: the loss of {baseline} does not fall with compute at every rung "
            f"({values})."
        )
    rising = [estimator for estimator, method, fit in fits if method == baseline and not fit.falls]
    if rising:
        notes.append(
            f"There are no multipliers from {', '.join(rising)}: as fitted, {baseline} gets worse with compute."
        )
    return notes
