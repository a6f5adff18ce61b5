"""Text in a column: lines of a given width, as soon as they are complete."""

from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells

_TAB = "    "


def lines(pieces: Iterable[str], width: int) -> Iterator[str]:
    """The lines of a text that comes in pieces, broken after words where they are too long."""
    rest = ""
    for piece in pieces:
        rest += piece.replace("\t", _TAB)
        while "\n" in rest or cell_len(rest) > width:
            line, newline, after = rest.partition("\n")
            if cell_len(line) <= width:
                yield line
                rest = after
            else:
                line, left = _broken(line, width)
                yield line
                rest = left + newline + after
    yield from [rest] * bool(rest)


def _broken(line: str, width: int) -> tuple[str, str]:
    """As many words of a line as fit, or as many characters where the first word does not; and what is left."""
    first = chop_cells(line, width)[0]
    if line[len(first)] == " ":
        return first, line[len(first) + 1 :]
    indent = len(line) - len(line.lstrip(" "))
    at = first.rfind(" ", indent)
    return (first[:at], line[at + 1 :]) if at > 0 else (first, line[len(first) :])
