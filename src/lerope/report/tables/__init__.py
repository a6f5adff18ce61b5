"""Every table of the paper as data, with our values beside the paper's: one function per table."""

from collections.abc import Callable
from pathlib import Path

from lerope.core.files import write_whole
from lerope.report.collect import Bundle
from lerope.report.tables.bands import slowest_bands
from lerope.report.tables.comparison import differences, gain, gap_by_position
from lerope.report.tables.lengths import dominant_bands, extrapolation
from lerope.report.tables.losses import ablations, code, documents, perplexity, seeds
from lerope.report.tables.scaling import fits, floors, multipliers
from lerope.report.tables.setting import ladder_sizes, learning_rates, recipe
from lerope.report.tables.table import Column, Table

__all__ = ["MAKERS", "Column", "Table", "tables", "write_tables"]

MAKERS: list[Callable[[Bundle], Table]] = [
    differences,
    perplexity,
    gain,
    learning_rates,
    ladder_sizes,
    recipe,
    multipliers,
    fits,
    floors,
    ablations,
    seeds,
    gap_by_position,
    dominant_bands,
    slowest_bands,
    extrapolation,
    code,
    documents,
]
"""One function per table."""


def tables(bundle: Bundle) -> list[Table]:
    """All tables that have rows; where a bundle has nothing of ours, the paper's values stand alone."""
    return [table for make in MAKERS if (table := make(bundle)).rows]


def write_tables(bundle: Bundle, folder: Path) -> list[Path]:
    """Writes every table as NAME.csv, NAME.md and NAME.tex."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for table in tables(bundle):
        for ending, content in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
            files.append(folder / f"{table.name}.{ending}")
            write_whole(files[-1], content.encode())
    return files
