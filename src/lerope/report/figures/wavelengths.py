"""Learned wavelengths against RoPE's: by rung, by seed, by train length."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lerope.core.grouping import grouped
from lerope.paper.numbers import WAVELENGTH_BY_LENGTH
from lerope.report.bands import dominant_band, wavelengths
from lerope.report.collect import Bundle, RunFiles
from lerope.report.groups import by_rung, main_study, method, rung, same_corpus, seed, train_length
from lerope.report.style import COLUMN, GUIDE, MARKERS, PAGE, PAPER, Missing, letter, new_figure, plain, styled

NAME = "wavelengths"
TITLE = "Learned wavelengths against RoPE's"
CAPTION = (
    "One point per band: the learned wavelength over RoPE's, across rungs, seeds and train lengths, where there are "
    "several of them. The diagonal is RoPE itself, dashed lines are train lengths, circles mark the dominant band "
    "where `lerope analyze` found one that varies at least twice as much as any other, and grey crosses show "
    f"{WAVELENGTH_BY_LENGTH} train lengths, the dominant wavelength that the paper reports."
)
_HEIGHT = 2.75


@styled
def draw(bundle: Bundle) -> Any:
    """A panel for each thing that alone varies between runs; one panel for one run."""
    learned = [files for files in same_corpus(bundle) if method(files) == "lerope" and wavelengths(files) is not None]
    if not learned:
        raise Missing("No run has learned frequencies", "lerope train RUNG --encoding lerope, lerope analyze RUN")
    study = [files for files in learned if files in main_study(bundle)] or learned
    found = [
        ([runs[0] for runs in by_rung(study).values()], rung),
        (max(by_rung(study).values(), key=len), lambda files: f"seed {seed(files)}"),
        (_lengths(learned), lambda files: f"L = {train_length(files):,}"),
    ]
    several = [(runs, label) for runs, label in found if len(runs) > 1] or [([study[-1]], lambda files: files.run.name)]
    figure = new_figure(PAGE if len(several) > 1 else COLUMN, _HEIGHT)
    panels = figure.subplots(1, len(several), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (runs, label), name in zip(panels, several, "abc", strict=False):
        compare_runs(axes, runs, label)
        axes.set_xlabel("RoPE's wavelength (tokens)")
        if len(several) > 1:
            letter(axes, name)
    panels[0].set_ylabel("learned wavelength (tokens)")
    return figure


def compare_runs(
    axes: Any,
    runs: Sequence[RunFiles],
    label: Callable[[RunFiles], str],
    printed: Callable[[int], float | None] = lambda length: float(WAVELENGTH_BY_LENGTH) * length,
    words: str = "paper, 2.2 L",
) -> None:
    """Profiles of some runs in one panel.

    Args:
        label: what to call a run.
        printed: the paper's dominant wavelength at a train length, if it has one.
        words: what to call that.
    """
    import matplotlib

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
            rope[turning],
            own[turning],
            marker,
            color=colour,
            ms=2.6,
            mew=0,
            label=plain(label(files)),
            zorder=3 + index,
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
    """One run per train length, of the rung with the most lengths."""
    best = max(by_rung(runs).values(), key=lambda some: len({train_length(files) for files in some}))
    found = [some[0] for some in grouped(best, train_length).values()]
    return sorted(found, key=train_length)
