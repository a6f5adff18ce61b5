"""Compute multipliers by rung, and the loss gap by position at the largest rung."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle
from lerope.report.figures.inputs import by_rung, main_study, method, piecewise, position_losses, seed
from lerope.report.style import COLUMN, GUIDE, PAGE, PAPER, Floats, letter, look, new_figure, order, say, smooth, styled
from lerope.scaling import paper
from lerope.scaling.multipliers import compute_multipliers

NAME = "compute-multipliers"
TITLE = "Compute multipliers, and loss gap by position"
CAPTION = (
    "a: the factor by which RoPE's training compute must grow to reach a method's loss, piecewise in ln C; grey: from "
    "the perplexities that the paper prints. b: loss less RoPE's by position in the window at the largest rung, "
    "smoothed with a Gaussian kernel of 30 tokens in 2,048; below zero the method is better."
)
_SIZE = (PAGE, 2.4)
_DEVIATION = 30 / 2048


@styled
def draw(bundle: Bundle) -> Any:
    """Both panels."""
    figure = new_figure(*_SIZE)
    left, right = figure.subplots(1, 2)
    _multipliers(left, bundle)
    _gaps(right, bundle)
    letter(left, "a")
    letter(right, "b")
    return figure


def _multipliers(axes: Any, bundle: Bundle) -> None:
    points = piecewise(bundle)
    for name in order(points):
        drawn = look(name, points)
        _, x, y = zip(*points[name], strict=True)
        axes.plot(x, y, **drawn.both, label=drawn.label, zorder=3)
    compute, losses = paper.losses()
    for name in ("prope", "lerope"):
        values = compute_multipliers(compute, losses["rope"], losses[name])
        drawn = look(name)
        axes.plot(
            compute, values, ls=drawn.line, marker=drawn.marker, color=PAPER, label=f"{drawn.label}, paper", lw=0.9
        )
    axes.axhline(1, color=GUIDE, lw=0.6, zorder=0)
    axes.set(xscale="log", xlabel="training compute C = 6 N D (FLOPs)", ylabel="compute multiplier against RoPE")
    if not points:
        note = "ours: evaluate runs of two rungs\nand two methods (lerope eval)"
        axes.text(0.98, 0.97, note, transform=axes.transAxes, ha="right", va="top", fontsize=7, color="0.35")
    axes.legend(loc="best")
    axes.margins(y=0.12)


def _gaps(axes: Any, bundle: Bundle) -> None:
    gaps = _largest_gaps(bundle)
    if not gaps:
        say(axes, "The gap by position needs RoPE and another method at one rung:\nlerope eval RUN ...", COLUMN)
        return
    for name in order(gaps):
        drawn = look(name, gaps)
        sums, counts = gaps[name]
        curve = smooth(sums, counts, max(1.0, _DEVIATION * len(sums)))
        axes.plot(np.arange(len(curve)), curve, **drawn.stroke, label=drawn.label)
    axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    axes.set(xlabel="position in the window (tokens)", ylabel="loss less RoPE's (nats per token)")
    axes.legend(loc="best")


def _largest_gaps(bundle: Bundle) -> dict[str, tuple[Floats, Floats]]:
    """Sums of differences to RoPE and counts by position, over seeds that both have, at the largest rung with any."""
    for runs in reversed(by_rung(main_study(bundle)).values()):
        read = {(method(files), seed(files)): found for files in runs if (found := position_losses(files)) is not None}
        gaps: dict[str, tuple[Floats, Floats]] = {}
        for (name, number), (sums, counts) in read.items():
            base = read.get(("rope", number))
            if name == "rope" or base is None or not np.array_equal(base[1], counts):
                continue
            before = gaps.get(name, (np.zeros_like(sums), np.zeros_like(counts)))
            gaps[name] = (before[0] + sums - base[0], before[1] + counts)
        if gaps:
            return gaps
    return {}
