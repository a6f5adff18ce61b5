"""How evenly distances take part in the objective and in the gradient of a frequency."""

from typing import Any

from lerope.report.collect import Bundle, RunFiles
from lerope.report.figures.inputs import dominant_band, method, phasor_pair, shown_bands
from lerope.report.style import BLUE, PAGE, VERMILLION, look, missing, new_figure, styled

NAME = "phasor-scales"
TITLE = "Scales of phasors, band by band"
CAPTION = (
    "How many distances have a phasor of which scale, relative to the largest of its band: of the objective (blue "
    "line: |C|) and of the gradient (vermillion area: d |C|). Above each panel its band and frequency in radians "
    "per token, with m for 1e-3 and µ for 1e-6."
)
NUM_SHOWN = 8
_HEIGHTS = {1: 1.5, 2: 2.4}


@styled
def draw(bundle: Bundle) -> Any:
    """Eight bands of a RoPE run above those of a LeRoPE run."""
    pair = phasor_pair(bundle)
    if not pair:
        return missing(PAGE, _HEIGHTS[2], "Phasors were not measured:\nlerope analyze RUN --parts phasors")
    figure = new_figure(PAGE, _HEIGHTS[len(pair)])
    panels = figure.subplots(len(pair), NUM_SHOWN, sharex=True, squeeze=False)
    for row, files in zip(panels, pair, strict=True):
        arrays = files.arrays("phasors")
        edges = arrays["edges"]
        for axes, band in zip(row, phasor_bands(pair), strict=False):
            for name, colour, fill in (("gradient", VERMILLION, True), ("objective", BLUE, False)):
                counts = arrays[f"{name}_histogram"].reshape(-1, *arrays[f"{name}_histogram"].shape[-2:]).sum(0)[band]
                axes.stairs(
                    counts / max(counts.max(), 1),
                    edges,
                    color=colour,
                    lw=1.1,
                    fill=fill,
                    alpha=0.6 if fill else 1,
                    label=name,
                )
            axes.set_title(header(files, band), fontsize=6, pad=2)
            axes.set(xlim=(0, 1), ylim=(0, 1.05), yticks=[])
            axes.set_xticks([0, 1], ["0", "1"])
        row[0].set_ylabel(look(method(files)).label)
    figure.supxlabel("scale of a distance's phasor (share of its band's largest)", fontsize=8)
    figure.supylabel("distances (share of the fullest bin)", fontsize=8)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def phasor_bands(pair: list[RunFiles]) -> list[int]:
    """The bands to show, the dominant one of the last run among them."""
    num_bands = files_bands(pair[-1])
    return shown_bands(num_bands, NUM_SHOWN, dominant_band(pair[-1]))


def files_bands(files: RunFiles) -> int:
    """How many bands a run's phasors have."""
    return int(files.arrays("phasors")["phasors_real"].shape[-2])


def header(files: RunFiles, band: int) -> str:
    """Band and frequency."""
    frequency = float(files.arrays("phasors")["frequencies"].reshape(-1, files_bands(files)).mean(0)[band])
    for limit, factor, unit in ((0.1, 1.0, ""), (1e-4, 1e3, "m"), (0.0, 1e6, "µ")):
        if abs(frequency) >= limit:
            return f"m = {band}\nθ = {frequency * factor:.2g}{unit}"
    return f"m = {band}"
