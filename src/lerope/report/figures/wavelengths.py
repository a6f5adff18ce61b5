"""Learned wavelengths against RoPE's: by rung, by seed, by train length."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.figures.inputs import (
    by_rung,
    dominant_band,
    group,
    main_study,
    method,
    rung,
    seed,
    text_runs,
    train_length,
    wavelengths,
)
from lerope.report.style import GUIDE, MARKERS, PAGE, PAPER, letter, missing, new_figure, say, styled

NAME = "wavelengths"
TITLE = "Learned wavelengths against RoPE's"
CAPTION = (
    "One point a band: the learned wavelength over RoPE's, across rungs (a), seeds (b) and train lengths (c). The "
    "diagonal is RoPE itself, dashed lines are train lengths, circles mark the dominant band where `lerope analyze` "
    "found one that varies at least twice as much as any other, and grey crosses show 2.205 train lengths, the "
    "dominant wavelength that the paper reports."
)
_SIZE = (PAGE, 2.75)
_RATIO = 2.205
_COMMAND = "lerope train RUNG --encoding lerope"


@styled
def draw(bundle: Bundle) -> Any:
    """Three panels, each of the runs that vary in one thing alone."""
    learned = [files for files in text_runs(bundle) if method(files) == "lerope" and wavelengths(files) is not None]
    if not learned:
        return missing(
            *_SIZE, f"No run has learned frequencies:\n{_COMMAND}, then lerope analyze RUN --parts frequencies"
        )
    study = [files for files in main_study(bundle) if method(files) == "lerope" and wavelengths(files) is not None]
    figure = new_figure(*_SIZE)
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    first = [runs[0] for runs in by_rung(study).values()]
    seeds = max(by_rung(study).values(), key=len, default=[])
    lengths = _lengths(learned)
    compare_runs(panels[0], first, rung, "no LeRoPE run in the main study")
    compare_runs(panels[1], seeds, lambda files: f"seed {seed(files)}", "no LeRoPE run in the main study")
    compare_runs(panels[2], lengths, lambda files: f"L = {train_length(files):,}", "")
    for axes, name in zip(panels, "abc", strict=True):
        letter(axes, name)
        axes.set_xlabel("RoPE's wavelength (tokens)")
    panels[0].set_ylabel("learned wavelength (tokens)")
    return figure


def compare_runs(
    axes: Any,
    runs: Sequence[RunFiles],
    label: Callable[[RunFiles], str],
    empty: str,
    printed: Callable[[int], float | None] = lambda length: _RATIO * length,
    words: str = "paper, 2.2 L",
) -> None:
    """Profiles of some runs in one panel.

    Args:
        label: what to call a run.
        empty: what to say where there are none.
        printed: the paper's dominant wavelength at a train length, if it has one.
        words: what to call that.
    """
    import matplotlib

    if not runs:
        say(axes, empty, 2.0)
        return
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(2, len(runs))))
    highest = 0.0
    lengths = sorted({train_length(files) for files in runs})
    for index, (files, colour) in enumerate(zip(runs, colours, strict=False)):
        found = wavelengths(files)
        assert found is not None
        rope, own = found
        turning = np.isfinite(own)
        marker = MARKERS[index % len(MARKERS)]
        axes.plot(
            rope[turning], own[turning], marker, color=colour, ms=2.6, mew=0, label=label(files), zorder=3 + index
        )
        highest = max(highest, float(own[turning].max(initial=0.0)))
        band = dominant_band(files)
        if band is not None and turning[band]:
            axes.plot(rope[band], own[band], "o", mfc="none", mec="black", ms=7, mew=0.8, zorder=20)
            expected = printed(train_length(files))
            if expected is not None:
                axes.plot(rope[band], expected, "x", color=PAPER, ms=5, mew=1.2, zorder=2)
    ends = rope[np.isfinite(rope)]
    axes.plot(ends, ends, color=GUIDE, ls="--", lw=0.7, zorder=1)
    for length in lengths:
        axes.axhline(length, color=GUIDE, ls="--", lw=0.7, zorder=0)
        axes.annotate(
            f"{length:,}",
            (1, length),
            (-1, 1),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
            va="bottom",
            fontsize=6,
            color="0.4",
        )
    axes.set(xscale="log", yscale="log")
    handles, labels = axes.get_legend_handles_labels()
    if any(dominant_band(files) is not None for files in runs):
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], ls="", marker="o", mfc="none", mec="black", ms=6, mew=0.8))
        labels.append("dominant band")
        if any(printed(length) is not None for length in lengths):
            handles.append(Line2D([], [], ls="", marker="x", color=PAPER, ms=4.5, mew=1.2))
            labels.append(words)
    axes.legend(handles, labels, loc="lower right", handletextpad=0.2, handlelength=1.2, labelspacing=0.25)


def _lengths(runs: list[RunFiles]) -> list[RunFiles]:
    """One run a train length, of the rung with most lengths."""
    best = max(by_rung(runs).values(), key=lambda some: len({train_length(files) for files in some}))
    found = [some[0] for some in group(best, train_length).values()]
    return sorted(found, key=train_length)
