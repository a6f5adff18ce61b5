"""What it costs to take the slowest bands away, for every number of them."""

from typing import Any

import numpy as np

from lerope.report.bands import num_suppressed
from lerope.report.collect import Bundle, RunFiles
from lerope.report.groups import main_study, matched, method, rung
from lerope.report.style import GUIDE, PAGE, Missing, letter, look, new_figure, styled
from lerope.results import SlowestRemovals

NAME = "slowest-bands"
TITLE = "Without the slowest bands"
CAPTION = (
    "How much the loss grows when the slowest k bands are taken away together, with its standard error over documents: "
    "(a) by their whole terms of the logits, (b) by their turning alone. The scale is linear up to 0.01 nats and "
    "logarithmic above. The dotted line is at the bands that the LeRoPE run has suppressed by itself, which turn at "
    "less than half of RoPE's frequency and less than a quarter turn over a row."
)
_SIZE = (PAGE, 2.5)
_LINEAR = 0.01
_MEANINGS = (("contribution", "their terms of the logits are gone"), ("frequency", "they do not turn"))


@styled
def draw(bundle: Bundle) -> Any:
    """A LeRoPE run and a RoPE run in each panel."""
    measured = [files for files in main_study(bundle) if files.result(SlowestRemovals) is not None]
    shown = matched(measured, ("lerope", "rope"))
    if not shown:
        raise Missing("The slowest bands were not left out", "lerope analyze RUN --parts slowest")
    figure = new_figure(*_SIZE)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (meaning, text), mark in zip(panels, _MEANINGS, "ab", strict=True):
        for files in shown:
            _curve(axes, files, meaning)
        letter(axes, mark)
        axes.set_title(text, pad=4)
        axes.set_xlabel("slowest bands taken away")
    low, high = min(axes.dataLim.y0 for axes in panels), max(axes.dataLim.y1 for axes in panels)
    if high > _LINEAR:
        panels[0].set_yscale("symlog", linthresh=_LINEAR, linscale=0.6)
        panels[0].set_ylim(min(-_LINEAR / 5, 1.5 * low), 1.5 * high)
        panels[0].set_yticks([0.0, *(10.0**power for power in range(-2, 3) if 10.0**power <= high)])
        panels[0].set_yticks([], minor=True)
    panels[0].yaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("loss increase (nats)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _curve(axes: Any, files: RunFiles, meaning: str) -> None:
    """One run's increases, from none on."""
    result, shape = files.result(SlowestRemovals), look(method(files))
    assert result is not None
    rows = result.rows(meaning)
    counts = [0, *(row["num_bands"] for row in rows)]
    increases = np.array([0.0, *(row["increase"] for row in rows)])
    errors = np.array([0.0, *(row["standard_error"] or 0.0 for row in rows)])
    axes.plot(counts, increases, **shape.both, ms=2.5, lw=1.0, label=f"{shape.label}, {rung(files)}")
    axes.fill_between(counts, increases - errors, increases + errors, color=shape.colour, alpha=0.2, lw=0)
    suppressed = num_suppressed(files)
    if suppressed:
        axes.axvline(
            suppressed, color="black", ls=":", lw=0.9, label=f"{suppressed} bands that {shape.label} suppressed"
        )
    axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    axes.set_xlim(0, counts[-1] + 0.5)
    axes.grid(axis="y")
