"""Loss by position beyond the train length: as the model is, and with YaRN."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import Floats, smooth
from lerope.report.groups import left_out
from lerope.report.measured import scored
from lerope.report.style import GUIDE, PAGE, Missing, letter, look, new_figure, plain_methods, styled, thousands
from lerope.results import Extrapolation

NAME = "extrapolation"
TITLE = "Loss beyond the train length"
CAPTION = (
    "Loss by position, over documents that reach the end. a: naive (solid) and NTK-by-parts with YaRN's temperature "
    "(dashed), smoothed with a Gaussian kernel of 20 tokens in 2,048, or wider where documents are few. b: YaRN alone "
    "beyond the train length, with a kernel three times as wide. The dotted line is the train length. Of many methods "
    "only the plain are drawn; the table has all."
)
_SIZE = (PAGE, 2.6)
_DEVIATION, _WIDER = 20 / 2048, 3
# Losses of single tokens vary by nats: so many belong under a kernel, but it stays below a share of the positions.
_ENOUGH, _WIDEST = 1000, 1 / 40
_TEMPERATURE = 0.1
_NAIVE, _YARN = "-", (0, (3, 1.5))
_MOST = 4


@styled
def draw(bundle: Bundle) -> Any:
    """Two panels, of the largest rung that was scored."""
    from matplotlib.lines import Line2D

    found = scored(bundle)
    if not found:
        raise Missing("Losses beyond the train length were not measured", "lerope extrapolate RUN ... --to 4096")
    figure = new_figure(*_SIZE)
    left, right = figure.subplots(1, 2)
    train, handles = 0, []
    names = plain_methods(found, _MOST)
    for name in names:
        files = found[name]
        result = files.result(Extrapolation)
        assert result is not None
        train = int(result.settings["train_length"])
        drawn = look(name, names)
        handles.append(Line2D([], [], ls="", **drawn.points, label=drawn.label))
        for way, line in (("none", _NAIVE), ("yarn", _YARN)):
            curve = _curve(files, result, way)
            if curve is None:
                continue
            x, sums, counts, width = curve
            deviation = _deviation(counts, train / width)
            values = smooth(sums, counts, deviation)
            label = drawn.label if way == "none" else None
            left.plot(x, values, **drawn.points, ls=line, lw=0.9, markevery=max(1, len(x) // 8), label=label)
            if way == "yarn":
                beyond = x >= train
                zoomed = smooth(sums[beyond], counts[beyond], _WIDER * deviation)
                every = max(1, int(beyond.sum()) // 6)
                right.plot(x[beyond], zoomed, **drawn.points, ls=line, markevery=every, label=drawn.label)
    left.axvline(train, color=GUIDE, ls=":", lw=0.9, zorder=0)
    handles += [Line2D([], [], color="0.3", ls=ls, label=label) for label, ls in (("naive", _NAIVE), ("YaRN", _YARN))]
    if others := left_out(bundle, Extrapolation, found):
        handles.append(Line2D([], [], ls="", label=others))
    for axes, mark in ((left, "a"), (right, "b")):
        letter(axes, mark)
        axes.set(xlabel="position (tokens)", ylabel="loss (nats per token)")
        thousands(axes.xaxis)
    figure.legend(handles=handles, loc="outside upper center", ncols=7, columnspacing=1.2)
    return figure


def _deviation(counts: Floats, train_points: float) -> float:
    """Of the kernel, in points: a share of the train length, or what it takes to have enough tokens under it."""
    enough = min(_ENOUGH / max(1.0, float(np.median(counts))), _WIDEST * len(counts))
    return max(_DEVIATION * train_points, enough, 0.5)


def _curve(files: RunFiles, result: Extrapolation, way: str) -> tuple[Floats, Floats, Floats, int] | None:
    """Positions, sums of losses, counts, and tokens per point: by token where the arrays are there, else by bin."""
    labels = list(dict.fromkeys((row["method"], row["temperature"]) for row in result.ways))
    wanted = [label for label in labels if label[0] == way]
    if not wanted:
        return None
    chosen = min(wanted, key=lambda label: abs(label[1] - _TEMPERATURE))
    selection = "long" if any(row["selection"] == "long" for row in result.ways) else "all"
    arrays, stem = files.arrays(Extrapolation), f"{selection}.{labels.index(chosen)}"
    if f"{stem}.sums" in arrays:
        sums, counts = arrays[f"{stem}.sums"].astype(np.float64), arrays[f"{stem}.counts"].astype(np.float64)
        return np.arange(len(sums)).astype(np.float64), sums, counts, 1
    bins = [
        row
        for row in result.by_position
        if (row["method"], row["temperature"]) == chosen and row["selection"] == selection
    ]
    if not bins:
        return None
    counts = np.array([row["num_tokens"] for row in bins], np.float64)
    middles = np.array([(row["start"] + row["stop"]) / 2 for row in bins])
    return middles, np.array([row["loss"] for row in bins]) * counts, counts, bins[0]["stop"] - bins[0]["start"]
