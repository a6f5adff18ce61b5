"""One needle, far beyond the train length: maps by depth and length."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle
from lerope.report.figures.needle import repeats, results
from lerope.report.style import MAP, PAGE, Missing, look, new_figure, plain_methods, styled
from lerope.results import FLOOR

NAME = "needle-lengths"
TITLE = "One needle beyond the train length"
CAPTION = (
    "Share of prompts whose greedy answer is the gold value, by length of the prompt and depth of the needle (0 is the "
    "start). The number above each column is its mean over depths. Where no run finds any, the log-odds of the gold "
    "value instead, with chance at 0. Frequencies are stretched as the settings of the result say, with YaRN unless "
    "asked otherwise; the dashed line is the train length."
)
_SIZE = (PAGE, 2.5)
_MOST = 4


@styled
def draw(bundle: Bundle) -> Any:
    """One map per method, four at most."""
    found = results(bundle, long=True)
    if not found:
        raise Missing("Needles beyond the train length were not tested", "lerope needle RUN ... --to 32768")
    names = plain_methods(found, _MOST)
    figure = new_figure(*_SIZE)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    image = None
    every = [cell for name in names for cell in found[name].cells]
    answered = any(cell["rate"] >= FLOOR for cell in every)
    most = 1.0 if answered else max(1e-6, *(abs(cell["margin"]) for cell in every))
    for axes, name in zip(panels, names, strict=True):
        cells = [cell for cell in found[name].cells if cell["depth"] is not None]
        lengths = sorted({cell["length"] for cell in cells})
        depths = sorted({float(cell["depth"] or 0.0) for cell in cells})
        values = np.full((len(depths), len(lengths)), np.nan)
        for cell in cells:
            place = depths.index(float(cell["depth"] or 0.0)), lengths.index(cell["length"])
            values[place] = cell["rate"] if answered else cell["margin"]
        colours = {"cmap": MAP, "vmin": 0} if answered else {"cmap": "PuOr", "vmin": -most}
        image = axes.pcolormesh(values, vmax=most, rasterized=True, **colours)
        for column, mean in enumerate(np.nanmean(values, axis=0)):
            axes.text(column + 0.5, len(depths) + 0.15, f"{mean:.2f}", ha="center", va="bottom", fontsize=6)
        inside = sum(length <= int(found[name].settings["train_length"]) for length in lengths)
        if 0 < inside < len(lengths):
            axes.axvline(inside, color="white", lw=1.8)
            axes.axvline(inside, color="black", lw=0.9, ls=(0, (3, 2)))
        axes.set_title(look(name, names).label, pad=12)
        axes.set_xticks(
            np.arange(len(lengths)) + 0.5,
            [_short(length) + "*" * (length in found[name].repeated) for length in lengths],
        )
        apart = max(1, round(len(depths) / 6))
        axes.set_yticks(np.arange(0, len(depths), apart) + 0.5, [f"{depth:g}" for depth in depths[::apart]])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    panels[0].set_ylabel("depth of the needle")
    note = repeats(found[name] for name in names)
    figure.supxlabel("length of the prompt (tokens)" + (f"\n* {note}" if note else ""), fontsize=8)
    figure.colorbar(
        image, ax=panels, label="exact match" if answered else "log-odds of gold (nats)", pad=0.01, aspect=16
    )
    return figure


def _short(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"
