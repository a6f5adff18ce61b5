"""Compute multipliers by rung, and the loss gap by position at the largest rung."""

from typing import Any

import numpy as np

from lerope.paper.recomputed import losses as printed_losses
from lerope.report.collect import Bundle
from lerope.report.curves import Floats, smooth
from lerope.report.groups import by_rung, main_study, method, seed
from lerope.report.measured import piecewise, position_losses
from lerope.report.style import (
    COLUMN,
    GUIDE,
    PAGE,
    PAPER,
    Missing,
    letter,
    look,
    new_figure,
    plain_methods,
    styled,
)
from lerope.scaling.multipliers import compute_multipliers

NAME = "compute-multipliers"
TITLE = "Compute multipliers, and loss gap by position"
CAPTION = (
    "a: the factor by which RoPE's training compute must grow to reach a method's loss, piecewise in ln C; grey: from "
    "the perplexities that the paper prints. b: loss less RoPE's by position in the window at the largest rung, "
    "smoothed with a Gaussian kernel of 30 tokens in 2,048; below zero the method is better. Of many methods only the "
    "plain are drawn; the tables `compute-multipliers` and `gap-by-position` have all."
)
_HEIGHT = 2.7
_DEVIATION = 30 / 2048
_MOST = 5


@styled
def draw(bundle: Bundle) -> Any:
    """Both panels, with one legend."""
    points, gaps = piecewise(bundle), _largest_gaps(bundle)
    names = plain_methods([*points, *gaps], _MOST)
    if not points:
        raise Missing(
            "Two methods must be evaluated at two rungs or more, with less loss at more compute", "lerope eval RUN ..."
        )
    figure = new_figure(PAGE if gaps else COLUMN, _HEIGHT)
    panels = figure.subplots(1, 2 if gaps else 1, squeeze=False)[0]
    left = panels[0]
    _multipliers(left, {name: points[name] for name in names if name in points}, names)
    if gaps:
        _gaps(panels[1], {name: gaps[name] for name in names if name in gaps}, names)
        letter(left, "a")
        letter(panels[1], "b")
    if others := len({*points, *gaps} - set(names)):
        left.plot([], [], ls="", label=f"and {others} more in the tables")
    entries = {
        label: handle
        for axes in reversed(panels)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=4 if gaps else 2)
    return figure


def _multipliers(axes: Any, points: dict[str, list[tuple[str, float, float]]], names: list[str]) -> None:
    for name, found in points.items():
        _, x, y = zip(*found, strict=True)
        drawn = look(name, names)
        axes.plot(x, y, **drawn.both, label=drawn.label, zorder=3)
    compute, losses = printed_losses()
    for name in ("prope", "lerope"):
        values = compute_multipliers(compute, losses["rope"], losses[name])
        drawn = look(name)
        axes.plot(
            compute, values, ls=drawn.line, marker=drawn.marker, color=PAPER, label=f"{drawn.label}, paper", lw=0.9
        )
    axes.axhline(1, color=GUIDE, lw=0.6, zorder=0)
    axes.set(xscale="log", xlabel="training compute C = 6 N D (FLOPs)", ylabel="compute multiplier against RoPE")
    axes.margins(y=0.12)


def _gaps(axes: Any, gaps: dict[str, tuple[Floats, Floats]], names: list[str]) -> None:
    for at, (name, (sums, counts)) in enumerate(gaps.items()):
        curve = smooth(sums, counts, max(1.0, _DEVIATION * len(sums)))
        # Markers of methods lie beside each other, because that is how lines are told apart without colour.
        every = max(1, len(curve) // 5)
        first = every * (at + 1) // (len(gaps) + 1)
        drawn = look(name, names)
        axes.plot(np.arange(len(curve)), curve, **drawn.both, markevery=(first, every), label=drawn.label)
    axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    axes.set(xlabel="position in the window (tokens)", ylabel="loss less RoPE's (nats per token)")


def _largest_gaps(bundle: Bundle) -> dict[str, tuple[Floats, Floats]]:
    """Sums of differences from RoPE and counts by position, over seeds both have, at the largest rung with any."""
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
