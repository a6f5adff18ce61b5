"""What bands add to the logits by distance, with the spread over layers."""

from typing import Any

from lerope.report.bands import dominant_band, num_pairs
from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import thinned
from lerope.report.groups import main_study, matched, method, rung, train_length
from lerope.report.style import (
    GUIDE,
    PAGE,
    SERIES,
    VERMILLION,
    Missing,
    letter,
    look,
    new_figure,
    styled,
    thousands,
)
from lerope.results import Bands

NAME = "band-contributions"
TITLE = "What bands add to the logits, by distance"
CAPTION = (
    "Mean over documents, heads and layers of what a band adds to the attention logit at a distance. Of the bands that "
    "turn at most six times over a row, the five that vary most are shown; one that varies at least twice as much as "
    "any other band is drawn in vermillion. The shade, around the one that varies most, is one standard deviation "
    "between layers. Distances end where a row has a sixteenth as many pairs as neighbours: beyond that, few pairs are "
    "left and their mean is noise."
)
_SIZE = (PAGE, 2.5)
_MOST = 5
# Bands that turn more often over a row are a blur at this size.
_TURNS = 6
_MOST_POINTS = 600
# Of the pairs that neighbours make.
_ENOUGH = 1 / 16
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (3, 1, 1, 1)), (0, (5, 1)))


@styled
def draw(bundle: Bundle) -> Any:
    """A LeRoPE run beside a RoPE run."""
    measured = [files for files in main_study(bundle) if has_curves(files)]
    pair = matched(measured, ("lerope", "rope"))
    if not pair:
        raise Missing("Contributions of bands were not measured", "lerope analyze RUN --parts bands")
    figure = new_figure(*_SIZE)
    panels = figure.subplots(1, len(pair), sharey=True, squeeze=False)[0]
    for axes, files, mark in zip(panels, pair, "ab", strict=False):
        draw_curves(axes, files)
        if len(pair) > 1:
            letter(axes, mark)
        axes.set_title(f"{look(method(files)).label}, {rung(files)}", pad=4)
        axes.set_ylabel("contribution to the logit")
        axes.yaxis.set_tick_params(labelleft=True)
    return figure


def has_curves(files: RunFiles) -> bool:
    """Whether a run's bands were measured and their curves are there."""
    return files.result(Bands) is not None and "mean" in files.arrays(Bands)


def draw_curves(axes: Any, files: RunFiles) -> None:
    """The curves of one run's strongest bands."""
    bands, arrays = files.result(Bands), files.arrays(Bands)
    assert bands is not None
    slowest = train_length(files) / _TURNS
    seen = [band for band in bands.bands if band["wavelength"] is None or band["wavelength"] > slowest]
    chosen = sorted(seen, key=lambda band: -band["rms"])[:_MOST]
    strongest = sorted(chosen, key=lambda band: band["band"])
    others = iter([colour for colour in SERIES if colour != VERMILLION])
    pairs = num_pairs(arrays["mean"].shape[-1])
    distances = 1 + thinned(int((pairs[1:] >= _ENOUGH * pairs[1]).sum()), _MOST_POINTS)
    for index, band in enumerate(strongest):
        dominant = band["band"] == dominant_band(files)
        colour = VERMILLION if dominant else next(others)
        mean, spread = (arrays[name][band["band"]][distances] for name in ("mean", "std"))
        turn = "does not turn" if band["wavelength"] is None else f"λ = {_short(band['wavelength'])}"
        if band is chosen[0]:
            axes.fill_between(distances, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)
        axes.plot(
            distances,
            mean,
            color=colour,
            ls="-" if dominant else _DASHES[index % len(_DASHES)],
            lw=1.8 if dominant else 0.9,
            label=f"{band['band']}: {turn}",
            zorder=4 if dominant else 2,
        )
    axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
    axes.set_xlabel("distance d = s - t (tokens)")
    thousands(axes.xaxis)
    axes.legend(title="band", title_fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), labelspacing=0.3)


def _short(wavelength: float) -> str:
    return f"{wavelength:,.0f}" if wavelength < 1e5 else f"{wavelength:.0e}".replace("e+0", "e")
