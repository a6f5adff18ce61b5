"""What it costs to take one band away."""

from typing import Any

from lerope.paper.numbers import LEAVE_ONE_OUT
from lerope.report.bands import dominant_band
from lerope.report.collect import Bundle, RunFiles
from lerope.report.groups import main_study, matched, method, rung
from lerope.report.style import PAGE, PAPER, SKY, VERMILLION, Missing, letter, look, new_figure, styled
from lerope.results import Ablation

NAME = "leave-one-out"
TITLE = "Leave-one-out bands"
CAPTION = (
    "How much the loss grows when one band is taken away, with its standard error over documents: its whole term of "
    "the logits (dark), or only its turning (light, hatched). Grey diamonds are two values that the paper prints "
    f"for its 2.52B model, {' and '.join(f'{value} for band {band}' for band, value in LEAVE_ONE_OUT.items())}; "
    "an arrow marks one that lies above the scale."
)
_WIDTH, _HEIGHTS = PAGE, {1: 2.1, 2: 3.7}
# Of an axis, for values that lie above it.
_HEADROOM = 0.2
_MEANINGS = (
    ("contribution", "its term of the logits is gone", VERMILLION, ""),
    ("frequency", "it does not turn", SKY, "////"),
)


@styled
def draw(bundle: Bundle) -> Any:
    """The largest LeRoPE run, and below it the largest RoPE run."""
    measured = [files for files in main_study(bundle) if files.result(Ablation) is not None]
    shown = matched(measured, ("lerope", "rope"))
    if not shown:
        raise Missing("Bands were not left out", "lerope analyze RUN --parts ablation")
    figure = new_figure(_WIDTH, _HEIGHTS[len(shown)])
    panels = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for axes, files, mark in zip(panels, shown, "ab", strict=False):
        _bars(axes, files)
        if len(shown) > 1:
            letter(axes, mark)
        axes.set_title(f"{look(method(files)).label}, {rung(files)}", pad=4)
    panels[-1].set_xlabel("band left out")
    handles, labels = panels[0].get_legend_handles_labels()
    last = sorted(range(len(labels)), key=lambda index: labels[index].startswith("paper"))
    figure.legend([handles[i] for i in last], [labels[i] for i in last], loc="outside upper center", ncols=3)
    return figure


def _bars(axes: Any, files: RunFiles) -> None:
    result = files.result(Ablation)
    assert result is not None
    for offset, (meaning, text, colour, hatch) in zip((-0.2, 0.2), _MEANINGS, strict=True):
        rows = [row for row in result.removals if row["meaning"] == meaning]
        axes.bar(
            [row["band"] + offset for row in rows],
            [row["increase"] for row in rows],
            0.4,
            yerr=[row["standard_error"] or 0.0 for row in rows],
            color=colour,
            hatch=hatch,
            edgecolor="white" if hatch else colour,
            linewidth=0,
            error_kw={"elinewidth": 0.5},
            label=text,
        )
    last = max((row["band"] for row in result.removals), default=31)
    axes.set(ylabel="loss increase (nats)", xlim=(-0.8, last + 0.8))
    axes.set_xticks(range(0, last + 1, 2))
    axes.grid(axis="y")
    if method(files) == "lerope":
        _printed(axes, last)
    band = dominant_band(files)
    heights = [row["increase"] for row in result.removals if row["band"] == band]
    if band is not None and heights:
        right = band < last / 3
        point = (band + (0.5 if right else -0.5), max(heights))
        side = {"ha": "left" if right else "right", "va": "top", "xytext": (4 if right else -4, 0)}
        axes.annotate("dominant band", point, textcoords="offset points", fontsize=7, **side)


def _printed(axes: Any, last: int) -> None:
    """The paper's values for bands that exist: those within the scale as they are, others at its upper end."""
    low, high = axes.get_ylim()
    if any(value > high for band, value in LEAVE_ONE_OUT.items() if band <= last):
        high += _HEADROOM * (high - low)
    label = "paper, 2.52B"
    for band, value in LEAVE_ONE_OUT.items():
        if band > last:
            continue
        if value <= high:
            axes.plot(band, value, "D", color=PAPER, ms=4, label=label, zorder=5)
            label = "_one entry in the legend"
            continue
        above = high - 0.4 * _HEADROOM * (high - low)
        axes.plot(band, above, "^", color=PAPER, ms=5, zorder=5)
        note = f"paper, 2.52B: {value:g}"
        axes.annotate(note, (band, above), (5, 0), textcoords="offset points", va="center", fontsize=7, color="0.4")
    axes.set_ylim(low, high)
