"""A small panel for every band of one run or two."""

from collections.abc import Iterator
from typing import Any

from lerope.report.bands import dominant_band
from lerope.report.collect import RunFiles
from lerope.report.groups import method, rung
from lerope.report.style import VERMILLION, look
from lerope.results import Phasors

_COLUMNS = 8
# Of a run's name above its panels, of a panel's title, and of what stands below and above all of them.
_NAME_INCHES, _TITLE_INCHES, _REST_INCHES = 0.2, 0.2, 0.5


def figure_height(pair: list[RunFiles], inches: float) -> float:
    """The height of a figure whose panels are this high without their titles."""
    return _REST_INCHES + sum(_NAME_INCHES + _num_rows(files) * (inches + _TITLE_INCHES) for files in pair)


def band_panels(figure: Any, pair: list[RunFiles], inches: float) -> Iterator[tuple[RunFiles, int, Any]]:
    """Run, band and axes, one run below the other; band and frequency stand above, the dominant band's in bold."""
    heights = [size for files in pair for size in (_NAME_INCHES, *[inches + _TITLE_INCHES] * _num_rows(files))]
    grid = figure.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
    first = 0
    for files in pair:
        name = figure.add_subplot(grid[first, :])
        name.set_axis_off()
        name.text(0, 0, f"{look(method(files)).label}, {rung(files)}", fontweight="bold", va="bottom")
        for band in range(_num_bands(files)):
            row, column = divmod(band, _COLUMNS)
            axes = figure.add_subplot(grid[first + 1 + row, column])
            dominant = {"color": VERMILLION, "fontweight": "bold"} if band == dominant_band(files) else {}
            axes.set_title(_header(files, band), fontsize=6, pad=2, **dominant)
            yield files, band, axes
        first += 1 + _num_rows(files)


def is_lowest(files: RunFiles, band: int) -> bool:
    """Whether no panel of the run is below that of this band."""
    return band + _COLUMNS >= _num_bands(files)


def _num_bands(files: RunFiles) -> int:
    return int(files.arrays(Phasors)["phasors_real"].shape[-2])


def _num_rows(files: RunFiles) -> int:
    return -(-_num_bands(files) // _COLUMNS)


def _header(files: RunFiles, band: int) -> str:
    frequency = float(files.arrays(Phasors)["frequencies"].reshape(-1, _num_bands(files)).mean(0)[band])
    for limit, factor, unit in ((0.1, 1.0, ""), (1e-4, 1e3, "m"), (0.0, 1e6, "µ")):
        if abs(frequency) >= limit:
            return f"{band}: θ = {frequency * factor:.2g}{unit}"
    return str(band)
