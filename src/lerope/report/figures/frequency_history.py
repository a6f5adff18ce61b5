"""Wavelengths through training."""

from itertools import pairwise
from typing import Any

import numpy as np

from lerope.report.bands import dominant_band, frequency_history, mean_wavelengths
from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import Floats, thinned
from lerope.report.groups import compute, largest, main_study, method, train_length
from lerope.report.style import COLUMN, MAP, PAGE, VERMILLION, Missing, letter, look, new_figure, styled, thousands

NAME = "frequencies-through-training"
TITLE = "Wavelengths through training"
CAPTION = (
    "The wavelength of every band through the training of the largest LeRoPE run, one panel a parametrization where "
    "there are several; its dominant band in vermillion, the train length dashed. A band whose frequency crosses zero "
    "stands still and then turns the other way: there the line has a gap with a cross in it, and is dotted as long as "
    "the frequency is negative."
)
_HEIGHT = 2.8
_MOST_POINTS = 200
_PARAMETRIZATIONS = ("lerope", "lerope,parametrization=linear", "lerope,parametrization=direct")


@styled
def draw(bundle: Bundle) -> Any:
    """A panel for each parametrization, one line per band."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shown = _runs(bundle)
    if not shown:
        raise Missing("No run learned frequencies", "lerope train RUNG --encoding lerope")
    figure = new_figure(PAGE if len(shown) > 1 else COLUMN, _HEIGHT)
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    num_bands = max(_history(files)[1].shape[-1] for files in shown)
    colours = ScalarMappable(Normalize(0, num_bands - 1), MAP)
    for axes, files, mark in zip(panels, shown, "abc", strict=False):
        _lines(axes, files, colours)
        if len(shown) > 1:
            letter(axes, mark)
            axes.set_title(look(method(files)).label, pad=4)
    panels[0].set(yscale="log", ylabel="wavelength (tokens)")
    figure.colorbar(colours, ax=panels[-1], label="band", pad=0.02, aspect=25)
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2 if len(shown) == 1 else 5)
    return figure


def _runs(bundle: Bundle) -> list[RunFiles]:
    """The largest run that learned, and beside it those of other parametrizations at its compute."""
    learned = [files for files in main_study(bundle) if files.run.recipe.spec.learns]
    recorded = [files for files in learned if (found := frequency_history(files)) is not None and len(found[0]) > 1]
    first = largest(recorded)
    if first is None or method(first) not in _PARAMETRIZATIONS:
        return [] if first is None else [first]
    alike = [files for files in recorded if compute(files) == compute(first)]
    best = (largest(files for files in alike if method(files) == name) for name in _PARAMETRIZATIONS)
    return [files for files in best if files is not None]


def _history(files: RunFiles) -> tuple[Floats, Floats]:
    """Steps and frequencies, (records, sets, bands)."""
    history = frequency_history(files)
    assert history is not None
    shown = thinned(len(history[0]), _MOST_POINTS)
    return history[0][shown].astype(np.float64), history[1][shown]


def _lines(axes: Any, files: RunFiles, colours: Any) -> None:
    steps, frequencies = _history(files)
    wavelengths = mean_wavelengths(frequencies)
    # Of frequencies that layers or heads have for themselves a mean is drawn, which has no sign.
    negative = frequencies[:, 0] < 0 if frequencies.shape[1] == 1 else np.zeros(wavelengths.shape, bool)
    dominant = dominant_band(files)
    for band in range(wavelengths.shape[1]):
        shape: dict[str, Any] = {"color": colours.to_rgba(np.array(band)), "lw": 0.8}
        if band == dominant:
            shape = {"color": VERMILLION, "lw": 1.8, "zorder": 4, "label": f"dominant band {band}"}
        _line(axes, steps, wavelengths[:, band], negative[:, band], shape)
    length = train_length(files)
    axes.axhline(length, color="black", ls="--", lw=0.9, zorder=5, label=f"train length {length:,}")
    axes.set(xlabel="step", xlim=(0, steps[-1]))
    thousands(axes.xaxis)
    axes.locator_params(axis="x", nbins=5, integer=True)


def _line(axes: Any, steps: Floats, wavelengths: Floats, negative: Any, shape: dict[str, Any]) -> None:
    """One band: stretches of one sign, with a cross in each gap between two of them."""
    ends = [0, *(1 + np.flatnonzero(np.diff(negative))), len(steps)]
    for start, stop in pairwise(ends):
        axes.plot(steps[start:stop], wavelengths[start:stop], ls=":" if negative[start] else "-", **shape)
        shape = {**shape, "label": "_one entry in the legend"}
    for at in ends[1:-1]:
        middle = np.sqrt(wavelengths[at - 1] * wavelengths[at])
        axes.plot(
            (steps[at - 1] + steps[at]) / 2, middle, "x", color="black", ms=4, mew=1, zorder=6, label="crosses zero"
        )
