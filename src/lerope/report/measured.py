"""What runs say: their losses, needles, phasors, and what they come to together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lerope.core.grouping import grouped
from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import Floats
from lerope.report.groups import alike, main_study, method, seed
from lerope.report.style import place
from lerope.results import Comparison, Evaluation, Extrapolation, MethodEffect, Multipliers, Needle, Training
from lerope.scaling.multipliers import PIECEWISE
from lerope.scaling.study import Losses, study

GAP_SHARE = 1 / 8
"""Gaps through training are means over this share of the steps before."""


def loss(files: RunFiles) -> float | None:
    """The evaluated loss in nats per token, or else training's last validation."""
    evaluation = files.evaluation
    return validation_loss(files) if evaluation is None else evaluation.loss


def validation_loss(files: RunFiles) -> float | None:
    """Training's last validation, in nats per token."""
    training = files.result(Training)
    return None if training is None else training.validation_loss


def comparable_losses(runs: Iterable[RunFiles]) -> list[RunFiles]:
    """Runs whose losses cover the same documents: the most common evaluation, or else of training's validation.

    Runs that were only validated do not stand beside evaluated ones.
    """
    known = [files for files in runs if loss(files) is not None]
    evaluated = [files for files in known if files.evaluation is not None]
    groups = grouped(evaluated, lambda files: repr(getattr(files.evaluation, "settings", None)))
    return max(groups.values(), key=len, default=known)


def loss_words(runs: Iterable[RunFiles]) -> str:
    """Which loss `loss` is for comparable runs."""
    evaluated = any(files.evaluation is not None for files in runs)
    return "evaluated loss (`lerope eval`)" if evaluated else "loss of training's last validation"


def training_losses(files: RunFiles) -> dict[int, float]:
    """Training loss by step."""
    return {record.step: record.loss for record in files.metrics.steps}


def gap(own: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """The loss of one run less that of another by step, where both have one."""
    return {step: loss - base[step] for step, loss in own.items() if step in base}


def mean_loss(runs: Sequence[RunFiles]) -> float:
    """Of runs that have one."""
    return float(np.mean([loss(files) for files in runs]))


def beside_rope(runs: Sequence[RunFiles], every: Sequence[RunFiles]) -> tuple[float, float | None]:
    """The mean loss of some runs and of RoPE over the seeds that both have; over all seeds if there are none."""
    rope = {seed(files): files for files in every if method(files) == "rope"}
    paired = [files for files in runs if seed(files) in rope]
    if not paired:
        return mean_loss(runs), None
    return mean_loss(paired), mean_loss([rope[seed(files)] for files in paired])


def effects(comparison: Comparison) -> list[MethodEffect]:
    """A comparison's effects by rung, the smallest first, and by method as figures and tables list them."""
    rungs = list(dict.fromkeys(effect["rung"] for effect in comparison.effects))
    return sorted(comparison.effects, key=lambda effect: (rungs.index(effect["rung"]), place(effect["method"])))


def interval(effect: MethodEffect) -> tuple[float, float]:
    """The 95 % interval that a verdict states: over seeds and documents, or documents alone where there is one seed."""
    if effect["both_low"] is not None and effect["both_high"] is not None:
        return effect["both_low"], effect["both_high"]
    return effect["documents_low"], effect["documents_high"]


def scored(bundle: Bundle) -> dict[str, RunFiles]:
    """One run per method, of the largest rung with any; of those that were scored on the same tokens."""
    runs = [files for files in main_study(bundle) if files.result(Extrapolation) is not None]
    found: dict[str, RunFiles] = {}
    for files in alike(runs, _scored_on):
        found.setdefault(method(files), files)
    return found


def _scored_on(files: RunFiles) -> Any:
    result = files.result(Extrapolation)
    assert result is not None
    counts = {(way["selection"], way["num_tokens"]) for way in result.ways}
    return {**result.settings, "dominant_band": None, "temperatures": None}, sorted(counts)


def needle(files: RunFiles, long: bool) -> Needle | None:
    """The test within the train length, or the one beyond it; with YaRN rather than another way."""
    found = [
        result for result in files.results.values() if isinstance(result, Needle) and ("to" in result.settings) is long
    ]
    return min(found, key=lambda result: result.settings.get("method", "yarn") != "yarn", default=None)


def ladder(bundle: Bundle) -> Multipliers | None:
    """Compute multipliers: the bundle's own, or those of methods that are at every rung."""
    if bundle.multipliers is not None or bundle.comparison is None:
        return bundle.multipliers
    comparison = bundle.comparison
    computes = {item["rung"]: item["compute"] for item in comparison.multipliers if item["rung"] is not None}
    rungs = sorted(computes, key=lambda name: computes[name])
    paired = {(item["rung"], item["method"]): item for item in comparison.effects}
    whole = [name for name in {key[1]: 0 for key in paired} if all((at, name) in paired for at in rungs)]
    if len(rungs) < 2 or not whole:
        return None
    # Every method is compared with the baseline of its own seeds; the first seeds' losses stand for the baseline.
    methods = {comparison.baseline: [paired[at, whole[0]]["baseline_loss"] for at in rungs]}
    for name in whole:
        shifts = [paired[at, name]["difference"] for at in rungs]
        methods[name] = [base + shift for base, shift in zip(methods[comparison.baseline], shifts, strict=True)]
    losses = Losses(
        rungs=list(rungs),
        compute=[computes[at] for at in rungs],
        methods=methods,
        settings=comparison.settings,
    )
    try:
        return study(losses, comparison.baseline)
    except ValueError:
        return None


def piecewise(bundle: Bundle) -> dict[str, list[tuple[str, float, float]]]:
    """Rung, compute and piecewise multiplier of each method that has them."""
    source = bundle.multipliers or bundle.comparison
    rows = source.multipliers if source is not None else []
    points: dict[str, list[tuple[str, float, float]]] = {}
    for row in rows:
        if row["estimator"] == PIECEWISE and row["multiplier"] is not None:
            points.setdefault(row["method"], []).append((row["rung"] or "", row["compute"], row["multiplier"]))
    return points


def position_losses(files: RunFiles) -> tuple[Floats, Floats] | None:
    """Sums of evaluated token losses and their number at each position of a window; None without the arrays' file."""
    arrays = files.arrays(Evaluation, "eval")
    if not {"position_sums", "position_counts"} <= arrays.keys():
        return None
    return arrays["position_sums"].astype(np.float64), arrays["position_counts"].astype(np.float64)
