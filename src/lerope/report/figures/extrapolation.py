"""Loss by position beyond the train length: as the model is, and with YaRN."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.figures.inputs import alike, left_out, main_study, method, plain_methods
from lerope.report.style import GUIDE, PAGE, Floats, letter, look, missing, new_figure, smooth, styled, thousands
from lerope.results import Extrapolation

NAME = "extrapolation"
TITLE = "Loss beyond the train length"
CAPTION = (
    "Loss by position, over documents that reach the end. a: naive (solid) and NTK-by-parts with YaRN's temperature "
    "(dashed), smoothed with a Gaussian kernel of 20 tokens in 2,048. b: YaRN alone beyond the train length, smoothed "
    "with 60. The dotted line is the train length."
)
_SIZE = (PAGE, 2.6)
_DEVIATIONS = (20 / 2048, 60 / 2048)
_TEMPERATURE = 0.1


@styled
def draw(bundle: Bundle) -> Any:
    """Two panels, of the largest rung that was scored."""
    found = scored(bundle)
    if not found:
        return missing(
            *_SIZE, "Losses beyond the train length were not measured:\nlerope extrapolate RUN ... --to 4096"
        )
    figure = new_figure(*_SIZE)
    left, right = figure.subplots(1, 2)
    train = 0
    names = plain_methods(found)
    for name in names:
        files = found[name]
        result = files.result(Extrapolation)
        assert result is not None
        train = int(result.settings["train_length"])
        drawn = look(name, names)
        for way, line in (("none", "-"), ("yarn", (0, (3, 1.5)))):
            curve = _curve(files, result, way)
            if curve is None:
                continue
            x, sums, counts, width = curve
            values = smooth(sums, counts, max(_DEVIATIONS[0] * train / width, 0.5))
            label = drawn.label if way == "none" else None
            left.plot(
                x, values, **{**drawn.both, "linestyle": line}, lw=0.9, markevery=max(1, len(x) // 8), label=label
            )
            if way == "yarn":
                beyond = x >= train
                zoomed = smooth(sums[beyond], counts[beyond], max(_DEVIATIONS[1] * train / width, 0.5))
                every = max(1, int(beyond.sum()) // 6)
                right.plot(x[beyond], zoomed, **drawn.both, markevery=every, label=drawn.label)
    left.axvline(train, color=GUIDE, ls=":", lw=0.9, zorder=0)
    left.plot([], [], color="0.3", ls="-", label="naive")
    left.plot([], [], color="0.3", ls=(0, (3, 1.5)), label="YaRN")
    if others := left_out(bundle, Extrapolation, found):
        left.plot([], [], ls="", label=others)
    for axes, mark in ((left, "a"), (right, "b")):
        letter(axes, mark)
        axes.set(xlabel="position (tokens)", ylabel="loss (nats per token)")
        thousands(axes.xaxis)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=7, columnspacing=1.2)
    return figure


def scored(bundle: Bundle) -> dict[str, RunFiles]:
    """One run a method, of the largest rung with any; of those that were scored on the same tokens."""
    runs = [files for files in main_study(bundle) if files.result(Extrapolation) is not None]
    found: dict[str, RunFiles] = {}
    for files in alike(runs, _scored_on):
        found.setdefault(method(files), files)
    return found


def _scored_on(files: RunFiles) -> Any:
    result = files.result(Extrapolation)
    assert result is not None
    counts = {(way["selection"], way["num_tokens"]) for way in result.ways}
    return {**result.settings, "dominant_band": None, "temperatures": None}, sorted(counts)


def _curve(files: RunFiles, result: Extrapolation, way: str) -> tuple[Floats, Floats, Floats, int] | None:
    """Positions, sums of losses, counts, and tokens a point: by token where the arrays are there, else by bin."""
    labels = list(dict.fromkeys((row["method"], row["temperature"]) for row in result.ways))
    wanted = [label for label in labels if label[0] == way]
    if not wanted:
        return None
    chosen = min(wanted, key=lambda label: abs(label[1] - _TEMPERATURE))
    selection = "long" if any(row["selection"] == "long" for row in result.ways) else "all"
    arrays, stem = files.arrays(files.stem(Extrapolation)), f"{selection}.{labels.index(chosen)}"
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
