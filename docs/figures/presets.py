"""Draws docs/figures/presets.png: how a preset is resampled, on a made-up profile."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from lerope.core.resample import FAST_TURNS, SLOW_TURNS, Curve, Learned, moved, resample, rope

BASE, BANDS, LENGTH = 10_000.0, 32, 2048
COLOURS = ("#000000", "#0072B2", "#009E73", "#D55E00")


def made_up() -> list[float]:
    """Log-scales of the shape that the paper describes: fast bands a little faster, band 16 at 2.2 train lengths, and
    slower ones all but still."""
    theta = np.exp(rope(BANDS, BASE))
    turns = theta * LENGTH / (2 * math.pi)
    scales = 0.5 * theta**0.7 - 1.9 * (theta[16] / theta) ** 1.5
    scales = np.maximum(scales, -3.0 - 0.5 * np.log1p(1 / turns))
    scales[16] = math.log(2 * math.pi / theta[16] / (2.2 * LENGTH))
    return list(map(float, scales))


def draw_heads(axes: Any, learned: Learned) -> None:
    axes.set_title("another head size", loc="left")
    for head_dim, marker, size, colour in (
        (64, "o", 5, COLOURS[0]),
        (128, "x", 4, COLOURS[3]),
        (32, "s", 9, COLOURS[1]),
    ):
        x = np.array(rope(head_dim // 2, BASE))
        y = np.array(resample([learned], head_dim // 2, LENGTH))
        style = {"marker": marker, "ms": size, "ls": "", "color": colour, "mfc": "none"}
        axes.plot(-x / math.log(BASE), y - x, **style, label=f"{head_dim}" + " (made up)" * (head_dim == 64))
    axes.set(xlabel="u = 2m / head_dim", ylabel="log-scale")
    axes.legend(frameon=False, loc="lower left", title="head_dim", alignment="left", handletextpad=0.2)


def draw_lengths(axes: Any, learned: Learned) -> None:
    axes.set_title("another train length", loc="left")
    x = np.array(rope(BANDS, BASE))
    for length, colour in zip((2048, 4096, 8192, 32_768), COLOURS, strict=True):
        wavelengths = 2 * math.pi / np.exp(resample([learned], BANDS, length))
        made = " (made up)" if length == LENGTH else ""
        axes.plot(2 * math.pi / np.exp(x), wavelengths, "o-", ms=3, lw=1, color=colour, label=f"{length:,}{made}")
        band = int(np.argmin(abs(np.log(wavelengths / (2.2 * length)))))
        axes.plot(2 * math.pi / np.exp(x[band]), wavelengths[band], "o", ms=9, mfc="none", mec=colour)
    axes.plot(*[2 * math.pi / np.exp(x[[0, -1]])] * 2, color="0.6", ls="--", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="RoPE's wavelength (tokens)", ylabel="wavelength (tokens)")
    axes.legend(frameon=False, loc="upper left", title="train length; circles: 2.2 of it", alignment="left")


def draw_move(axes: Any) -> None:
    axes.set_title("how far a wavelength moves", loc="left")
    turns = np.geomspace(0.1, 1000, 400)
    for factor, colour in zip((2, 4, 16), COLOURS[1:], strict=True):
        x = np.log(2 * math.pi * turns / LENGTH)
        ratio = [math.exp(each - moved(each, LENGTH, factor * LENGTH)) for each in x]
        axes.plot(turns, ratio, color=colour, label=f"{factor}")
    for limit in (SLOW_TURNS, FAST_TURNS):
        axes.axvline(limit, color="0.6", ls="--", lw=1)
    axes.set(
        xscale="log", yscale="log", xlabel="turns in the measured train length", ylabel="wavelength, as a multiple"
    )
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper right", title="times the length", alignment="left")


def main() -> None:
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    learned = Learned(Curve(made_up(), BASE), LENGTH, math.log(2 * math.pi / (2.2 * LENGTH)))
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.8), layout="constrained")
    draw_heads(panels[0], learned)
    draw_lengths(panels[1], learned)
    draw_move(panels[2])
    target = Path(__file__).with_suffix(".png")
    figure.savefig(target, dpi=130)
    print(f"wrote {target.name}")


if __name__ == "__main__":
    main()
