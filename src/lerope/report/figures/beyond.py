"""Which bands make a run fall off beyond its train length."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import smooth
from lerope.report.groups import main_study, method, rung
from lerope.report.style import GUIDE, PAGE, Missing, letter, look, new_figure, styled
from lerope.results import Beyond

NAME = "beyond-the-window"
TITLE = "What falls off beyond the train length"
CAPTION = (
    "Documents longer than the train length, with no extension. (a) How the loss of tokens beyond the train length "
    "changes if one learned frequency is RoPE's again and the others stay, with its standard error over documents; "
    "below zero, that band is part of the fall. (b) The same change by position, smoothed: with the one band set back "
    "that helps most, and with all. The dotted line is the train length."
)
_SIZE = (PAGE, 2.6)
_KERNELS = 64
"""The smoothing kernel's deviation is one part in so many of the positions."""


@styled
def draw(bundle: Bundle) -> Any:
    """The first run of the main study that was measured so."""
    files = next((files for files in main_study(bundle) if files.result(Beyond) is not None), None)
    if files is None:
        raise Missing("No learned frequency was set back", "lerope analyze RUN --parts beyond")
    figure = new_figure(*_SIZE)
    left, right = figure.subplots(1, 2)
    result = files.result(Beyond)
    assert result is not None
    _changes(left, files, result)
    _positions(right, files, result)
    letter(left, "a")
    letter(right, "b")
    return figure


def _changes(axes: Any, files: RunFiles, result: Beyond) -> None:
    rows = [row for row in result.bands if row["band"] is not None]
    shape = look(method(files))
    errors = [row["beyond_error"] or 0.0 for row in rows]
    axes.bar([row["band"] for row in rows], [row["beyond"] for row in rows], yerr=errors, color=shape.colour,
             error_kw={"lw": 0.7})  # fmt: skip
    axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    axes.set_title(f"{shape.label}, {rung(files)}", pad=4)
    axes.set_xlabel("band set back to RoPE's frequency")
    axes.set_ylabel("change of loss beyond (nats)")


def _positions(axes: Any, files: RunFiles, result: Beyond) -> None:
    arrays = files.arrays(Beyond)
    if not {"sums", "counts", "edges"} <= arrays.keys():
        return
    edges, counts = arrays["edges"].astype(np.float64), arrays["counts"].astype(np.float64)
    middles, some = (edges[1:] + edges[:-1]) / 2, counts > 0
    best = min(range(1, len(result.bands)), key=lambda number: result.bands[number]["beyond"], default=0)
    shown = [(1, "all bands set back", ":")]
    if best:
        shown.insert(0, (best + 1, f"band {result.bands[best]['band']} set back", "-"))
    learned = arrays["sums"][0].astype(np.float64)
    for number, label, line in shown:
        # Of the same tokens, so that their own differences fall out.
        change = smooth(arrays["sums"][number].astype(np.float64) - learned, counts, len(middles) / _KERNELS)
        axes.plot(middles[some], change[some], ls=line, color=look(method(files)).colour, lw=1.0, label=label)
    axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    axes.axvline(result.settings["train_length"], color="black", ls=":", lw=0.9)
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel("change of loss (nats)")
    axes.legend(loc="best")
