"""A preset: its log-scales over u = 2m / head_dim, and its wavelengths against RoPE's."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lerope.core.preset import Preset, Resampled
from lerope.report.style import GUIDE, MARKERS, PAGE, VERMILLION, letter, new_figure, plain, styled

_HEIGHT = 2.9


@styled
def draw(preset: Preset, resampled: Resampled | None = None) -> Any:
    """Both panels, a colour for each train length; open markers are what it was resampled to."""
    import matplotlib

    figure = new_figure(PAGE, _HEIGHT)
    scales, wavelengths = figure.subplots(1, 2)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(2, len(preset.profiles))))
    for profile, colour, marker in zip(preset.profiles, colours, MARKERS * 9, strict=False):
        style = {"marker": marker, "ms": 2.6, "lw": 0.8, "color": colour, "label": f"L = {profile.train_length:,}"}
        own = np.array(profile.log_scales)
        u = np.arange(len(own)) / len(own)
        scales.plot(u, own, **style)
        if profile.spread is not None:
            spread = np.array(profile.spread)
            scales.fill_between(u, own - spread, own + spread, color=colour, alpha=0.2, lw=0)
        rope = 2 * math.pi * preset.base**u
        wavelengths.plot(rope, rope * np.exp(-own), **style)
        wavelengths.axhline(profile.train_length, color=colour, ls=":", lw=0.7)
    if resampled is not None:
        _draw_resampled(scales, wavelengths, resampled.frequencies, preset.base, f"for L = {resampled.train_length:,}")
    scales.axhline(0, color=GUIDE, ls="--", lw=0.7, zorder=0)
    scales.set(xlabel="u = 2m / head_dim", ylabel="log-scale")
    ends = np.array(wavelengths.get_xlim())
    ends[0] = 2 * math.pi
    wavelengths.plot(ends, ends, color=GUIDE, ls="--", lw=0.7, zorder=0)
    wavelengths.set(xscale="log", yscale="log", xlabel="RoPE's wavelength (tokens)", ylabel="wavelength (tokens)")
    wavelengths.legend(loc="upper left")
    letter(scales, plain(f"{preset.name}, version {preset.version}"))
    return figure


def _draw_resampled(scales: Any, wavelengths: Any, frequencies: Sequence[float], base: float, label: str) -> None:
    values = np.array(frequencies)
    u = np.arange(len(values)) / len(values)
    rope = base**-u
    style = {"ls": "", "marker": "o", "mfc": "none", "mec": VERMILLION, "ms": 4, "mew": 0.7, "zorder": 9}
    scales.plot(u, np.log(values / rope), **style)
    wavelengths.plot(2 * math.pi / rope, 2 * math.pi / values, **style, label=label)
