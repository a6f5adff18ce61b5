"""Every figure of the paper and some of ours, drawn only from result files: one module each.

A module has NAME (of its files), TITLE, CAPTION and `draw(bundle)`, which returns a matplotlib figure, or raises
`Missing` with the command that makes what it needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from lerope.core.files import write_whole
from lerope.report.collect import Bundle
from lerope.report.figures import (
    beyond,
    code,
    contributions,
    differences,
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
    slowest_bands,
    training,
    wavelengths,
)
from lerope.report.style import FORMATS, Missing, said, save


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
        differences,
        multipliers,
        needle,
        wavelengths,
        contributions,
        needle_map,
        phasor_scales,
        phasors,
        leave_one_out,
        slowest_bands,
        extrapolation,
        beyond,
        code,
        training,
        frequency_history,
        position_gap,
        learning_rates,
        norms,
    )
]

CAPTIONS = "captions.md"


@dataclass(frozen=True)
class Written:
    """What came of some figures."""

    files: list[Path]
    missing: dict[str, Missing]
    """Those for which there is nothing to draw, by name."""


def write_figures(
    bundle: Bundle,
    folder: Path,
    names: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Written:
    """Writes figures as PDF, SVG and PNG, and their captions beside them.

    Args:
        folder: where to; created if needed.
        names: the figures wanted, which say so where there is nothing to draw; unless given, all that can be drawn.
        progress: is called before each figure with its name, its number from 1 on, and how many there are.
    """
    known = {figure.NAME: figure for figure in FIGURES}
    for name in names or ():
        if name not in known:
            raise ValueError(f"figures must be some of {', '.join(known)}; got {name!r}.")
    wanted = list(known) if names is None else list(dict.fromkeys(names))
    files: list[Path] = []
    missing: dict[str, Missing] = {}
    for number, name in enumerate(wanted, start=1):
        if progress is not None:
            progress(name, number, len(wanted))
        try:
            figure = known[name].draw(bundle)
        except Missing as found:
            missing[name] = found
            if names is None:
                for ending in FORMATS:  # of an earlier report
                    (folder / f"{name}.{ending}").unlink(missing_ok=True)
                continue
            figure = said(found)
        files += save(figure, folder, name)
    drawn = [name for name in wanted if name not in missing]
    if drawn:
        files.append(folder / CAPTIONS)
        texts = [f"## {known[name].TITLE}\n\n`{name}`. {known[name].CAPTION}\n" for name in drawn]
        write_whole(files[-1], "\n".join(texts).encode())
    return Written(files, missing)
