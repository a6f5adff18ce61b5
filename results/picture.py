"""The README's picture: what the runs of the main study learned, and what it changed."""

from typing import Any

import campaign
from claims import Archive

from lerope.report.bands import wavelengths
from lerope.report.measured import needle
from lerope.report.style import GUIDE, PAGE, Missing, letter, look, new_figure, styled, thousands

_SHOWN = ("rope", "lerope")
_SIZES = {
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 11,
}
"""In points: on a phone the picture is half as wide as it is drawn."""


@styled
def draw(text: Archive) -> Any:
    """Wavelengths of every LeRoPE run, the gap to RoPE by position, and values found among distractors."""
    import matplotlib

    matplotlib.rcParams.update(_SIZES)  # until the style is left
    comparison = text.compared(campaign.effect())
    if comparison is None:
        raise Missing("A pair of the main study is needed", "lerope ladder results/campaign.py:effect")
    figure = new_figure(PAGE, 2.7)
    learned, gap, needles = figure.subplots(1, 3)
    for axes, mark in ((learned, "a"), (gap, "b"), (needles, "c")):
        letter(axes, mark)
    _wavelengths(learned, text)
    drawn = look("lerope")
    rows = [row for row in comparison.by_position if row["method"] == "lerope"]
    x = [(max(row["start"], row["stop"] / 4) * row["stop"]) ** 0.5 for row in rows]
    errors = [1.96 * (row["standard_error"] or 0.0) for row in rows]
    gap.errorbar(x, [row["difference"] for row in rows], errors, **drawn.both, elinewidth=0.6, capsize=1.2)
    gap.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    gap.set_xscale("log", base=2)
    gap.set_xticks([8, 64, 512])
    gap.set(xlabel="position (tokens)", ylabel="loss less RoPE's (nats)")
    thousands(gap.xaxis)
    for method in _SHOWN:
        drawn, rates = look(method), _rates(text, method)
        places = range(len(rates))
        needles.plot(places, list(rates.values()), **drawn.both, label=drawn.label)
        needles.set_xticks(places, [str(number) for number in rates])
        guesses = [1 / (1 + number) for number in rates]
        needles.plot(places, guesses, color=GUIDE, ls=":", lw=0.9, zorder=0)
    needles.set(xlabel="distractors", ylabel="values found (share)")
    needles.set_ylim(bottom=0)
    handles, labels = needles.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def _wavelengths(axes: Any, text: Archive) -> None:
    for files in text.files(campaign.effect(), *_SHOWN):
        recipe = files.run.recipe
        if (found := wavelengths(files)) is not None:
            axes.plot(found[1], **look(recipe.spec.method).both, ms=2)
        axes.axhline(recipe.row_length, color=GUIDE, ls="--", lw=0.6, zorder=0)
    axes.set_yscale("log")
    axes.set(xlabel="band", ylabel="wavelength (tokens)")


def _rates(text: Archive, method: str) -> dict[int, float]:
    """The share of values found by number of distractors, over all seeds."""
    cells = [
        cell
        for files in text.files(campaign.effect(), method)
        if (found := needle(files, long=False)) is not None
        for cell in found.totals
    ]
    rates = {}
    for number in sorted({cell["num_distractors"] for cell in cells}):
        some = [cell for cell in cells if cell["num_distractors"] == number]
        rates[number] = sum(cell["num_correct"] for cell in some) / sum(cell["num_samples"] for cell in some)
    return rates
