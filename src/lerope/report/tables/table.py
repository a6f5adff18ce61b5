"""A table as data: numbers stay numbers until they are written as CSV, Markdown or LaTeX.

What the paper prints stays as printed. CSV has all digits, the other two have as many as a column asks for.
"""

import csv
import io
import math
from dataclasses import dataclass

Cell = str | int | float | None
"""None is a value that does not exist."""

NO_VALUE = "—"
OURS, PAPER = "ours", "paper"


@dataclass(frozen=True)
class Column:
    """A column's heading, and how its numbers are written for people: a format such as `.4f`."""

    title: str
    numbers: str = ""


@dataclass(frozen=True)
class Table:
    """A table as data."""

    name: str
    """Of its files."""
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]

    def text(self) -> list[list[str]]:
        """The cells as people read them."""
        return [
            [_text(cell, column.numbers) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows
        ]

    def csv(self) -> str:
        """With all digits; a value that does not exist is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(column.title for column in self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """A pipe table under its caption."""
        lines = [
            [_markdown(column.title) for column in self.columns],
            ["---:" if column.numbers else "---" for column in self.columns],
            *([_markdown(cell) for cell in row] for row in self.text()),
        ]
        return "\n".join([_markdown(self.caption), "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    def latex(self) -> str:
        """A table environment for the package booktabs."""
        head = " & ".join(_latex(column.title) for column in self.columns)
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(self.caption)}}}",
            rf"  \label{{tab:{self.name}}}",
            rf"  \begin{{tabular}}{{{''.join('r' if column.numbers else 'l' for column in self.columns)}}}",
            r"    \toprule",
            rf"    {head} \\",
            r"    \midrule",
            *(rf"    {' & '.join(map(_latex, row))} \\" for row in self.text()),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _text(cell: Cell, numbers: str) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return NO_VALUE
    return cell if isinstance(cell, str) else format(cell, numbers)


def _markdown(text: str) -> str:
    """Text that stays text: nothing in it is markup, a link or HTML."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "|`*_[]$~#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "—": "---",
    "\n": " ",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
