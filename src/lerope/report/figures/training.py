"""Loss through training, and the gap to RoPE, batch by batch."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import trailing
from lerope.report.groups import by_rung, main_study, method, seed
from lerope.report.measured import GAP_SHARE, gap, training_losses
from lerope.report.style import GUIDE, PAGE, Missing, look, new_figure, plain_methods, styled

NAME = "training"
TITLE = "Loss through training"
CAPTION = (
    "Above: training loss of every run of the study, smoothed, with validations as markers; one panel per rung, one "
    "line per seed. Below: the same less the loss of the RoPE run of the same seed, which reads the same batches, as "
    "the mean over seeds; below zero the method is ahead. The first hundredth of training is left out. Of many methods "
    "only the plain are drawn."
)
_SIZE = (PAGE, 3.6)
_MOST, _MOST_METHODS = 4, 6
_SHARE = 1 / 25
_LEFT_OUT = 0.01
_MOST_POINTS = 400


@styled
def draw(bundle: Bundle) -> Any:
    """The largest rungs, four at most."""
    trained = [files for files in main_study(bundle) if len(training_losses(files)) > 1]
    if not trained:
        raise Missing("No run has records of training", "lerope train RUNG --data DATA")
    names = plain_methods(map(method, trained), _MOST_METHODS)
    rungs = dict(list(by_rung(files for files in trained if method(files) in names).items())[-_MOST:])
    figure = new_figure(*_SIZE)
    panels = figure.subplots(2, len(rungs), squeeze=False, height_ratios=[1.3, 1])
    for (upper, lower), (rung, runs) in zip(panels.T, rungs.items(), strict=True):
        for files in runs:
            drawn, batch = look(method(files), names), files.run.recipe.batch_tokens
            losses = training_losses(files)
            _plot(upper, losses, batch, drawn.stroke, _SHARE)
            late = [row for row in files.metrics.validations if row.step >= max(1, _LEFT_OUT * max(losses))]
            x, y = [batch * row.step for row in late], [row.validation_loss for row in late]
            upper.plot(x, y, ls="", **drawn.points, ms=2.5)
        for name, gaps in _gaps(runs).items():
            _plot(lower, gaps, float(runs[0].run.recipe.batch_tokens), look(name, names).stroke, GAP_SHARE)
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


def _gaps(runs: list[RunFiles]) -> dict[str, dict[int, float]]:
    """By method and step, the loss less RoPE's on the same batch, as the mean over seeds that have both."""
    baselines = {seed(files): training_losses(files) for files in runs if method(files) == "rope"}
    found: dict[str, dict[int, list[float]]] = {}
    for files in runs:
        base = baselines.get(seed(files), {}) if method(files) != "rope" else {}
        for step, difference in gap(training_losses(files), base).items():
            found.setdefault(method(files), {}).setdefault(step, []).append(difference)
    means = {name: {step: float(np.mean(gaps)) for step, gaps in steps.items()} for name, steps in found.items()}
    return {name: steps for name, steps in means.items() if len(steps) > 1}


def _plot(axes: Any, values: dict[int, float], batch: float, stroke: dict[str, Any], share: float) -> None:
    """A line of means over the steps before each, a share of them."""
    steps, means = trailing(values, share)
    first = int(np.searchsorted(steps, _LEFT_OUT * steps[-1]))
    # Evenly spread on the axis of tokens, which is logarithmic.
    wanted = np.geomspace(steps[first], steps[-1], _MOST_POINTS)
    shown = np.unique(np.searchsorted(steps, wanted).clip(first, len(steps) - 1))
    axes.plot(batch * steps[shown], means[shown], **stroke, lw=0.8)
