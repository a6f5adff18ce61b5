"""Every figure of the paper and some of ours, drawn from result files alone: one module each.

A module has NAME (of its files), TITLE, CAPTION and `draw(bundle)`, which gives a matplotlib figure; where inputs are
missing, one of the same size that says so and names the command that makes them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from lerope.report.collect import Bundle
from lerope.report.figures import (
    code,
    contributions,
    extrapolation,
    frequency_history,
    learning_rates,
    leave_one_out,
    multipliers,
    needle,
    needle_map,
    norms,
    phasor_scales,
    phasors,
    position_gap,
    training,
    wavelengths,
)
from lerope.report.style import save


class Drawing(Protocol):
    """What a figure's module has."""

    NAME: str
    TITLE: str
    CAPTION: str

    def draw(self, bundle: Bundle) -> Any:
        """Draws it."""
        ...


FIGURES: list[Drawing] = [
    cast(Drawing, module)
    for module in (
        multipliers,
        needle,
        wavelengths,
        contributions,
        needle_map,
        phasor_scales,
        phasors,
        leave_one_out,
        extrapolation,
        code,
        training,
        frequency_history,
        position_gap,
        learning_rates,
        norms,
    )
]

CAPTIONS = "captions.md"


def write_figures(
    bundle: Bundle,
    folder: Path,
    names: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Path]:
    """Writes figures as PDF, SVG and PNG, and their captions beside them.

    Args:
        folder: where to; it is made if need be.
        names: of the figures wanted; all unless given.
        progress: is called before each figure with its name, its number from 1 on, and how many there are.
    """
    known = {figure.NAME: figure for figure in FIGURES}
    for name in names or ():
        if name not in known:
            raise ValueError(f"figures must be some of {', '.join(known)}; got {name!r}.")
    wanted = list(known) if names is None else list(dict.fromkeys(names))
    files: list[Path] = []
    for number, name in enumerate(wanted, start=1):
        if progress is not None:
            progress(name, number, len(wanted))
        files += save(known[name].draw(bundle), folder, name)
    texts = [f"## {known[name].TITLE}\n\n`{name}`. {known[name].CAPTION}\n" for name in wanted]
    files.append(folder / CAPTIONS)
    files[-1].write_text("\n".join(texts), encoding="utf-8")
    return files
