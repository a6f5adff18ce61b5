"""Final loss by learning rate."""

import math
from typing import Any

from lerope.core.grouping import grouped
from lerope.core.ladder import LEARNING_RATE_INDEX
from lerope.paper.numbers import RUNGS
from lerope.report.collect import Bundle
from lerope.report.groups import learning_rate_runs, method
from lerope.report.measured import validation_loss
from lerope.report.style import COLUMN, PAGE, PAPER, Missing, look, new_figure, order, styled

NAME = "learning-rates"
TITLE = "Final loss by learning rate"
CAPTION = (
    "Loss of the last validation in training, of runs that differ only in learning rate; stars mark the best of each "
    "method, the grey line the paper's learning rate for this rung."
)
_HEIGHT, _MOST = 2.3, 3


@styled
def draw(bundle: Bundle) -> Any:
    """One panel per rung, the three largest."""
    sweeps = dict(list(learning_rate_runs(bundle).items())[-_MOST:])
    if not sweeps:
        raise Missing("No runs differ only in learning rate", "lerope sweep RUNG --data DATA")
    figure = new_figure(COLUMN if len(sweeps) == 1 else PAGE, _HEIGHT)
    panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
    handles: dict[str, Any] = {}
    names = order(method(files) for runs in sweeps.values() for files in runs)
    for axes, (rung, runs) in zip(panels, sweeps.items(), strict=True):
        if rung in RUNGS:
            line = axes.axvline(2 ** (-LEARNING_RATE_INDEX[rung] / 2), color=PAPER, lw=1.2, ls=":", zorder=0)
            handles.setdefault("paper", line)
        for name, some in grouped(runs, method).items():
            drawn = look(name, names)
            points: dict[float, list[float]] = {}
            for files in some:
                points.setdefault(files.run.recipe.learning_rate, []).append(validation_loss(files) or math.nan)
            x = sorted(points)
            y = [sum(points[rate]) / len(points[rate]) for rate in x]
            (line,) = axes.plot(x, y, **drawn.both)
            best = min(range(len(x)), key=lambda index: y[index])
            axes.plot(x[best], y[best], "*", color=drawn.colour, mec="black", mew=0.5, ms=9, zorder=5)
            handles.setdefault(drawn.label, line)
        rates = sorted({files.run.recipe.learning_rate for files in runs})
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xticks(rates, [f"$2^{{{math.log2(rate):.3g}}}$" for rate in rates])
        axes.set(xlabel="learning rate", title=rung)
    panels[0].set_ylabel("validation loss (nats per token)")
    labels = [look(name, names).label for name in names] + ["paper"] * ("paper" in handles)
    figure.legend([handles[label] for label in labels], labels, loc="outside upper center", ncols=4)
    return figure
