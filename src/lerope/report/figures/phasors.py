"""Phasors of the gradient: which way each distance pulls a frequency."""

from typing import Any

import numpy as np

from lerope.report.bands import gradient_phasors, phasor_pair
from lerope.report.collect import Bundle
from lerope.report.figures.band_panels import band_panels, figure_height
from lerope.report.style import GUIDE, PAGE, VERMILLION, Missing, new_figure, styled

NAME = "gradient-phasors"
TITLE = "Phasors of the gradient, band by band"
CAPTION = (
    "One dot per distance: i d C(d) exp(i d θ), relative to the largest of its band; its colour is the distance. The "
    "real part of their sum is the gradient. The dashed arrow is the direction of the sum, the outlined dot its length "
    "over the sum of lengths: 0 where distances cancel, 1 where all pull the same way. Above each panel its band and "
    "frequency in radians per token, with m for 1e-3 and µ for 1e-6; a dominant band in bold."
)
_PANEL_INCHES = 0.72


@styled
def draw(bundle: Bundle) -> Any:
    """Every band of a RoPE run above those of a LeRoPE run."""
    import matplotlib
    from matplotlib.colors import ListedColormap, LogNorm

    pair = phasor_pair(bundle)
    if not pair:
        raise Missing("Phasors were not measured", "lerope analyze RUN --parts phasors")
    figure = new_figure(PAGE, figure_height(pair, _PANEL_INCHES))
    dots, colours = None, ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.12, 1, 200)))
    angles = np.linspace(0, 2 * np.pi, 100)
    every = []
    measured = {files.run.path: gradient_phasors(files) for files in pair}
    for files, band, axes in band_panels(figure, pair, _PANEL_INCHES):
        found = measured[files.run.path]
        assert found is not None
        distances, gradients = found[0], found[1][band]
        scaled = gradients / max(float(abs(gradients).max()), np.finfo(float).tiny)
        total = gradients.sum()
        coherence = abs(total) / max(float(abs(gradients).sum()), np.finfo(float).tiny)
        dots = axes.scatter(
            scaled.real,
            scaled.imag,
            s=1.0,
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
        axes.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        every.append(axes)
    figure.colorbar(dots, ax=every, label="distance d (tokens)", location="bottom", pad=0.01, aspect=60)
    return figure
