"""How large queries and keys are, by layer and band."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import Floats
from lerope.report.groups import main_study, matched, method, rung
from lerope.report.style import MAP, PAGE, Missing, look, new_figure, styled
from lerope.results import Bands

NAME = "query-key-norms"
TITLE = "Norms of queries and keys"
CAPTION = "Mean length of a band's part of queries and keys after QK-norm, by layer, as the mean over heads."
_HEIGHTS = {1: 1.7, 2: 3.0}
_PARTS = (("query_norm", "queries"), ("key_norm", "keys"))


@styled
def draw(bundle: Bundle) -> Any:
    """Queries and keys of a RoPE run above those of a LeRoPE run."""
    measured = [files for files in main_study(bundle) if files.result(Bands) is not None]
    shown = matched(measured, ("rope", "lerope"))
    if not shown:
        raise Missing("Norms of queries and keys were not measured", "lerope analyze RUN --parts bands")
    figure = new_figure(PAGE, _HEIGHTS[len(shown)])
    panels = figure.subplots(len(shown), 2, squeeze=False)
    maps = [[_norms(files, part) for part, _ in _PARTS] for files in shown]
    most = max(float(values.max()) for row in maps for values in row)
    image = None
    for row, files, found in zip(panels, shown, maps, strict=True):
        for axes, values, (_, text) in zip(row, found, _PARTS, strict=True):
            image = axes.imshow(
                values, cmap=MAP, vmin=0, vmax=most, aspect="auto", origin="lower", interpolation="none"
            )
            axes.set_title(f"{look(method(files)).label}, {rung(files)}: {text}", pad=3)
            axes.spines[:].set_visible(False)
            axes.yaxis.get_major_locator().set_params(integer=True)
        row[0].set_ylabel("layer")
    for axes in panels[-1]:
        axes.set_xlabel("band")
    figure.colorbar(image, ax=panels, label="mean length", pad=0.01, aspect=18)
    return figure


def _norms(files: RunFiles, part: str) -> Floats:
    """(layers, bands)."""
    bands = files.result(Bands)
    assert bands is not None
    rows: list[Any] = list(bands.layers)
    values = np.zeros((1 + max(row["layer"] for row in rows), 1 + max(row["band"] for row in rows)))
    for row in rows:
        values[row["layer"], row["band"]] = row[part]
    return values
