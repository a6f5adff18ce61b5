"""Wavelengths through training."""

from typing import Any

import numpy as np

from lerope.report.bands import dominant_band, frequency_history, mean_wavelengths
from lerope.report.collect import Bundle
from lerope.report.curves import thinned
from lerope.report.groups import largest, main_study, train_length
from lerope.report.style import COLUMN, MAP, VERMILLION, Missing, new_figure, styled, thousands

NAME = "frequencies-through-training"
TITLE = "Wavelengths through training"
CAPTION = (
    "The wavelength of every band through the training of the largest LeRoPE run; its dominant band in vermillion, the "
    "train length dashed."
)
_SIZE = (COLUMN, 2.8)
_MOST_POINTS = 200


@styled
def draw(bundle: Bundle) -> Any:
    """One line per band."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    learned = [files for files in main_study(bundle) if files.run.recipe.spec.learns]
    files = largest(some for some in learned if (found := frequency_history(some)) is not None and len(found[0]) > 1)
    history = None if files is None else frequency_history(files)
    if files is None or history is None:
        raise Missing("No run learned frequencies", "lerope train RUNG --encoding lerope")
    shown = thinned(len(history[0]), _MOST_POINTS)
    steps, wavelengths = history[0][shown], mean_wavelengths(history[1][shown])
    figure = new_figure(*_SIZE)
    axes = figure.subplots()
    num_bands = wavelengths.shape[1]
    colours = ScalarMappable(Normalize(0, num_bands - 1), MAP)
    dominant = dominant_band(files)
    for band in range(num_bands):
        if band == dominant:
            axes.plot(steps, wavelengths[:, band], color=VERMILLION, lw=1.8, zorder=4, label=f"dominant band {band}")
        else:
            axes.plot(steps, wavelengths[:, band], color=colours.to_rgba(np.array(band)), lw=0.8)
    axes.axhline(
        train_length(files), color="black", ls="--", lw=0.9, zorder=5, label=f"train length {train_length(files):,}"
    )
    axes.set(yscale="log", xlabel="step", ylabel="wavelength (tokens)", xlim=(0, steps[-1]))
    thousands(axes.xaxis)
    axes.locator_params(axis="x", nbins=5)
    figure.colorbar(colours, ax=axes, label="band", pad=0.02, aspect=25)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
