"""How evenly distances take part in the objective and in the gradient of a frequency."""

from typing import Any

from lerope.report.bands import phasor_pair
from lerope.report.collect import Bundle
from lerope.report.figures.band_panels import band_panels, figure_height, is_lowest
from lerope.report.style import BLUE, PAGE, VERMILLION, Missing, new_figure, styled
from lerope.results import Phasors

NAME = "phasor-scales"
TITLE = "Scales of phasors, band by band"
CAPTION = (
    "How many distances have a phasor of each scale, relative to the largest of its band: of the objective (blue "
    "line: |C|) and of the gradient (vermillion area: d |C|). Above each panel its band and frequency in radians "
    "per token, with m for 1e-3 and µ for 1e-6; a dominant band in bold."
)
_PANEL_INCHES = 0.55


@styled
def draw(bundle: Bundle) -> Any:
    """Every band of a RoPE run above those of a LeRoPE run."""
    pair = phasor_pair(bundle)
    if not pair:
        raise Missing("Phasors were not measured", "lerope analyze RUN --parts phasors")
    figure = new_figure(PAGE, figure_height(pair, _PANEL_INCHES))
    arrays = {files.run.path: files.arrays(Phasors) for files in pair}
    axes = None
    for files, band, axes in band_panels(figure, pair, _PANEL_INCHES):
        found = arrays[files.run.path]
        for name, colour, fill in (("gradient", VERMILLION, True), ("objective", BLUE, False)):
            counts = found[f"{name}_histogram"].reshape(-1, *found[f"{name}_histogram"].shape[-2:]).sum(0)[band]
            shares = counts / max(counts.max(), 1)
            axes.stairs(shares, found["edges"], color=colour, lw=1.1, fill=fill, alpha=0.6 if fill else 1, label=name)
        axes.set(xlim=(0, 1), ylim=(0, 1.05), yticks=[])
        axes.set_xticks([0, 1], ["0", "1"] if is_lowest(files, band) else ["", ""])
        axes.tick_params(labelsize=6, pad=1)
    assert axes is not None
    figure.supxlabel("scale of a distance's phasor (share of its band's largest)", fontsize=8)
    figure.supylabel("distances (share of the fullest bin)", fontsize=8)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure
