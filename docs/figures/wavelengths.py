"""Draws docs/figures/wavelengths.png: the wavelength of every band under each encoding."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

import lerope

TRAIN_LENGTH = 2048
# Learned frequencies at train length 2048, as a third party read them off the labels of a figure in the paper
# (arXiv:2607.10134); two digits each. Band 16 agrees with the paper's table for 217M, so probably that model.
PUBLISHED = [
    1.9, 1.1, 0.67, 0.45, 0.31, 0.24, 0.16, 0.11, 0.084, 0.059, 0.044, 0.031, 0.023, 0.016, 0.0094, 0.0042,
    0.0015, 0.0011, 1.0e-4, 4.9e-5, 3.6e-5, 2.4e-5, 2.0e-5, 2.0e-5, 1.2e-5, 1.8e-5, 1.0e-5, 1.5e-5, 1.2e-5, 9.9e-6,
    9.4e-6, 1.5e-5,
]  # fmt: skip


def note(axes: Any, text: str, point: tuple[float, float], offset: tuple[int, int], colour: str) -> None:
    axes.annotate(text, point, offset, textcoords="offset points", ha="right", color=colour)


def main() -> None:
    series = [
        ("RoPE, base 10,000", lerope.RoPE(64), "#0072B2", "o"),
        ("RoPE, base 500,000", lerope.RoPE(64, base=500_000.0), "#56B4E9", "s"),
        ("p-RoPE, p = 0.5", lerope.PRoPE(64, p=0.5), "#E69F00", "D"),
        ("LeRoPE, as published", lerope.FrozenRoPE(torch.tensor(PUBLISHED)), "#D55E00", "^"),
    ]
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    ceiling = 2e7
    for label, encoding, colour, marker in series:
        wavelengths = encoding.wavelengths()
        turning = torch.isfinite(wavelengths)
        bands = torch.arange(32)
        axes.plot(bands[turning], wavelengths[turning], marker, ms=4.5, lw=1, ls="-", color=colour, label=label)
        if not turning.all():
            still = bands[~turning]
            axes.plot(still, [ceiling] * len(still), marker, ms=4.5, color=colour, mfc="none")
            note(axes, "do not turn", (float(still[0]), ceiling), (-6, -3), colour)
    axes.axhline(TRAIN_LENGTH, color="0.45", lw=1, ls="--")
    note(axes, f"train length {TRAIN_LENGTH:,}", (31.4, TRAIN_LENGTH), (0, -12), "0.35")
    axes.set(yscale="log", xlabel="band m", ylabel="wavelength (tokens per turn)", xlim=(-0.7, 31.7))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.93))
    axes.grid(axis="y", color="0.92")
    target = Path(__file__).with_suffix(".png")
    figure.savefig(target, dpi=160)
    print(f"wrote {target.name}")


if __name__ == "__main__":
    main()
