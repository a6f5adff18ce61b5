"""Needles among distractors, within the train length."""

from collections.abc import Iterable
from typing import Any

from lerope.report.collect import Bundle
from lerope.report.groups import alike, main_study, method
from lerope.report.measured import needle
from lerope.report.style import COLUMN, GUIDE, Missing, look, new_figure, plain_methods, styled
from lerope.results import FLOOR, Needle, NeedleCell

NAME = "needle-distractors"
TITLE = "Needles among distractors, within the train length"
CAPTION = (
    "Share of prompts whose greedy answer is the gold value, over all depths, with Wilson's 95 % interval, at the "
    "longest prompts within the train length; dotted, the share that picking one of the prompt's values blindly would "
    "find. Where no run finds any, the log-odds of the gold value instead."
)
_SIZE = (COLUMN, 2.5)
_MOST = 6


@styled
def draw(bundle: Bundle) -> Any:
    """One line per method, of the largest rung that was tested."""
    found = results(bundle)
    if not found:
        raise Missing("Needles among distractors were not tested", "lerope needle RUN ...")
    figure = new_figure(*_SIZE)
    axes = figure.subplots()
    cells = {name: _cells(result) for name, result in found.items()}
    rates = any(cell["rate"] >= FLOOR for row in cells.values() for cell in row)
    numbers = sorted({cell["num_distractors"] for row in cells.values() for cell in row})
    places = {number: place for place, number in enumerate(numbers)}
    names = plain_methods(cells, _MOST)
    for index, name in enumerate(names):
        drawn = look(name, names)
        shift = 0.06 * (index - (len(names) - 1) / 2)
        x = [places[cell["num_distractors"]] + shift for cell in cells[name]]
        if rates:
            y = [cell["rate"] for cell in cells[name]]
            errors = [
                [cell["rate"] - cell["low"] for cell in cells[name]],
                [cell["high"] - cell["rate"] for cell in cells[name]],
            ]
        else:
            y = [cell["margin"] for cell in cells[name]]
            error = [1.96 * (cell["margin_error"] or 0.0) for cell in cells[name]]
            errors = [error, error]
        axes.errorbar(x, y, yerr=errors, **drawn.both, label=drawn.label, elinewidth=0.7, capsize=1.5)
    axes.set_xticks(range(len(numbers)), [f"{number}" for number in numbers])
    axes.set_xlabel("distractors (key and value pairs)")
    if rates:
        axes.plot(range(len(numbers)), [1 / (1 + n) for n in numbers], color=GUIDE, ls=":", lw=0.9, zorder=0)
        axes.set(ylabel="exact match (share of prompts)", ylim=(-0.03, 1.03))
    else:
        axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
        axes.set_ylabel("log-odds of gold (nats; 0 is chance)")
    axes.grid(axis="y")
    if note := repeats(found.values()):
        figure.supxlabel(note, fontsize=6, color="0.35")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def results(bundle: Bundle, long: bool = False) -> dict[str, Needle]:
    """The needle test of each method at the largest rung that has one, its first seed, with the same prompts."""
    tested = [files for files in main_study(bundle) if needle(files, long) is not None]
    found: dict[str, Needle] = {}
    for files in alike(tested, lambda files: getattr(needle(files, long), "settings", None)):
        result = needle(files, long)
        if result is not None:
            found.setdefault(method(files), result)
    return found


def repeats(results: Iterable[Needle]) -> str | None:
    """A sentence for prompts that the filler is too short for."""
    fillers = [result.settings["num_filler_tokens"] for result in results if result.repeated]
    return f"the filler has {min(fillers):,} tokens, so longer prompts repeat sentences" if fillers else None


def _cells(result: Needle) -> list[NeedleCell]:
    """All depths together, at the longest prompts."""
    longest = max(cell["length"] for cell in result.totals)
    return sorted(
        (cell for cell in result.totals if cell["length"] == longest), key=lambda cell: cell["num_distractors"]
    )
