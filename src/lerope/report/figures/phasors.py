"""Phasors of the gradient: which way each distance pulls a frequency."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle
from lerope.report.figures.inputs import method, phasor_pair
from lerope.report.figures.phasor_scales import NUM_SHOWN, header, phasor_bands
from lerope.report.style import GUIDE, PAGE, VERMILLION, look, missing, new_figure, styled

NAME = "gradient-phasors"
TITLE = "Phasors of the gradient, band by band"
CAPTION = (
    "One dot a distance: i d C(d) exp(i d θ), by the largest of its band; its colour is the distance. The real part of "
    "their sum is the gradient. The dashed arrow is the direction of the sum, the outlined dot its length by the sum "
    "of lengths: 0 where distances cancel, 1 where all pull the same way."
)
_HEIGHTS = {1: 1.2, 2: 2.0}


@styled
def draw(bundle: Bundle) -> Any:
    """Eight bands of a RoPE run above those of a LeRoPE run."""
    import matplotlib
    from matplotlib.colors import ListedColormap, LogNorm

    pair = phasor_pair(bundle)
    if not pair:
        return missing(PAGE, _HEIGHTS[2], "Phasors were not measured:\nlerope analyze RUN --parts phasors")
    figure = new_figure(PAGE, _HEIGHTS[len(pair)])
    panels = figure.subplots(len(pair), NUM_SHOWN, squeeze=False)
    dots, colours = None, ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.12, 1, 200)))
    angles = np.linspace(0, 2 * np.pi, 100)
    for row, files in zip(panels, pair, strict=True):
        arrays = files.arrays("phasors")
        distances = arrays["distances"].astype(np.float64)
        shape = (-1, *arrays["phasors_real"].shape[-2:])
        phasors = (arrays["phasors_real"] + 1j * arrays["phasors_imag"]).reshape(shape)
        theta = arrays["frequencies"].reshape(-1, shape[1])
        every = (1j * distances * phasors * np.exp(1j * distances * theta[..., None])).sum(0)
        for axes, band in zip(row, phasor_bands(pair), strict=False):
            gradients = every[band]
            scaled = gradients / max(float(abs(gradients).max()), np.finfo(float).tiny)
            total = gradients.sum()
            coherence = abs(total) / max(float(abs(gradients).sum()), np.finfo(float).tiny)
            dots = axes.scatter(
                scaled.real,
                scaled.imag,
                s=1.2,
                c=distances,
                cmap=colours,
                norm=LogNorm(1, distances.max()),
                lw=0,
                rasterized=True,
            )
            axes.plot(np.cos(angles), np.sin(angles), color=GUIDE, lw=0.5)
            direction = total / max(abs(total), np.finfo(float).tiny)
            arrow = {"arrowstyle": "->", "color": VERMILLION, "ls": "--", "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (direction.real, direction.imag), (0, 0), arrowprops=arrow)
            dot = coherence * direction
            axes.plot(dot.real, dot.imag, "o", color=VERMILLION, mec="black", mew=0.6, ms=3.5, zorder=5)
            axes.set_title(header(files, band), fontsize=6, pad=2)
            axes.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal", xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(look(method(files)).label)
    figure.colorbar(dots, ax=panels, label="distance d (tokens)", pad=0.01, aspect=18)
    return figure
