"""What the parts of `lerope plan` share: tables with a line above and some below, and numbers in words."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from lerope.cli import tables
from lerope.core.terminal import Console
from lerope.launch.machine import Way

# As dense as can be: some have ten columns, and a terminal 80.
new_table = partial(tables.new_table, box=None)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table with a line above it and some below."""

    title: str
    table: Table
    note: str = ""


def print_sections(sections: Iterable[Section]) -> None:
    """Prints all of them, or nothing if one cannot be made."""
    console = Console()
    # Everything is computed before anything is printed, so that bad input does not print half a plan.
    for i, section in enumerate(list(sections)):
        if i:
            console.print()
        console.print(section.title, style="bold")
        console.print(section.table)
        if section.note:
            console.print(section.note, style="dim")


def way_in_words(way: Way, num_gpus: int) -> str:
    """How GPUs share a run; one GPU shares nothing."""
    parallel = {"ddp": "DDP", "fsdp": "FSDP2", "hybrid": "hybrid"}[way.parallel] if num_gpus > 1 else "1 GPU"
    return f"{parallel}, recompute" if way.recompute else parallel


def count(number: int) -> str:
    """In the paper's format: 18.87M, 1.21B."""
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.2f}M"


def power(number: int, digits: int) -> str:
    """In the paper's format: 1.52e18."""
    return f"{number:.{digits}e}".replace("e+", "e") if number else "0"


def hours(number: float) -> str:
    """With a digit behind the point where that says something."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def span(seconds: float) -> str:
    """A time in its largest unit: 3.4 d."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.{0 if seconds >= 100 * unit else 1}f} {name}"
    return f"{seconds * 1e3:,.0f} ms"
