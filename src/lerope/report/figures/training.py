"""Loss through training, and the gap to RoPE, batch by batch."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.figures.inputs import by_rung, main_study, method, seed
from lerope.report.style import GUIDE, PAGE, Floats, look, missing, new_figure, order, styled

NAME = "training"
TITLE = "Loss through training"
CAPTION = (
    "Above: training loss of every run of the study, smoothed, with validations as markers; one panel a rung, one line "
    "a seed. Below: the same less the loss of the RoPE run of the same seed, which reads the same batches, as the mean "
    "over seeds; below zero the method is ahead. The first hundredth of training is left out."
)
_SIZE = (PAGE, 3.6)
_MOST = 4
_SHARE, _GAP_SHARE = 1 / 25, 1 / 8
_LEFT_OUT = 0.01
_MOST_POINTS = 400


@styled
def draw(bundle: Bundle) -> Any:
    """The largest rungs, four at most."""
    trained = [files for files in main_study(bundle) if len(_losses(files)) > 1]
    if not trained:
        return missing(*_SIZE, "No run has records of training:\nlerope train RUNG --data DATA")
    rungs = dict(list(by_rung(trained).items())[-_MOST:])
    names = order(method(files) for runs in rungs.values() for files in runs)
    figure = new_figure(*_SIZE)
    panels = figure.subplots(2, len(rungs), squeeze=False, height_ratios=[1.3, 1])
    for (upper, lower), (rung, runs) in zip(panels.T, rungs.items(), strict=True):
        for files in runs:
            drawn, batch = look(method(files), names), float(files.run.recipe["batch_tokens"])
            losses = _losses(files)
            _plot(upper, losses, batch, drawn.stroke, _SHARE)
            points = [row for row in files.metrics if row.get("validation_loss") is not None and row["step"] > 0]
            late = [row for row in points if row["step"] >= _LEFT_OUT * max(losses)]
            x, y = [batch * row["step"] for row in late], [row["validation_loss"] for row in late]
            upper.plot(x, y, ls="", **drawn.points, ms=2.5)
        for name, gaps in _gaps(runs).items():
            _plot(lower, gaps, float(runs[0].run.recipe["batch_tokens"]), look(name, names).stroke, _GAP_SHARE)
        upper.set_title(rung, pad=3)
        upper.grid(axis="y")
        lower.axhline(0, color=GUIDE, lw=0.6, zorder=0)
        lower.set_xlabel("tokens")
        for axes in (upper, lower):
            axes.set_xscale("log")
        lower.set_xlim(upper.get_xlim())
    panels[0][0].set_ylabel("loss (nats per token)")
    panels[1][0].set_ylabel("loss less RoPE's (nats)")
    for name in names:
        drawn = look(name, names)
        panels[0][0].plot([], [], **drawn.both, label=drawn.label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=6)
    return figure


def _losses(files: RunFiles) -> dict[int, float]:
    """Training loss by step."""
    return {int(row["step"]): float(row["loss"]) for row in files.metrics if row.get("loss") is not None}


def _gaps(runs: list[RunFiles]) -> dict[str, dict[int, float]]:
    """By method and step, the loss less RoPE's on the same batch, as the mean over seeds that have both."""
    baselines = {seed(files): _losses(files) for files in runs if method(files) == "rope"}
    found: dict[str, dict[int, list[float]]] = {}
    for files in runs:
        base = baselines.get(seed(files), {})
        for step, loss in _losses(files).items():
            if method(files) != "rope" and step in base:
                found.setdefault(method(files), {}).setdefault(step, []).append(loss - base[step])
    means = {name: {step: float(np.mean(gaps)) for step, gaps in steps.items()} for name, steps in found.items()}
    return {name: steps for name, steps in means.items() if len(steps) > 1}


def _plot(axes: Any, values: dict[int, float], batch: float, stroke: dict[str, Any], share: float) -> None:
    """A line of means over the steps before each, a share of them."""
    steps = np.array(sorted(values))
    series: Floats = np.array([values[int(step)] for step in steps], np.float64)
    sums = np.concatenate([[0.0], np.cumsum(series)])
    ends = np.arange(1, len(series) + 1)
    starts = np.searchsorted(steps, steps * (1 - share))
    means = (sums[ends] - sums[starts]) / (ends - starts)
    first = int(np.searchsorted(steps, _LEFT_OUT * steps[-1]))
    # Evenly spread on the axis of tokens, which is logarithmic.
    wanted = np.geomspace(steps[first], steps[-1], _MOST_POINTS)
    shown = np.unique(np.searchsorted(steps, wanted).clip(first, len(steps) - 1))
    axes.plot(batch * steps[shown], means[shown], **stroke, lw=0.8)
