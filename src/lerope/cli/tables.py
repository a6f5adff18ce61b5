"""Tables as commands print them."""

from collections.abc import Collection

from rich.box import SIMPLE_HEAD, Box
from rich.table import Table


def new_table(
    *columns: str, title: str | None = None, text: Collection[str] | None = None, box: Box | None = SIMPLE_HEAD
) -> Table:
    """A table without rows.

    Args:
        text: columns that are flush left, as they are no numbers; only the first unless given.
        box: of rich; None for a table whose columns need all the width there is.
    """
    table = Table(title=title, title_justify="left", box=box, pad_edge=False)
    for number, column in enumerate(columns):
        is_text = number == 0 if text is None else column in text
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    return table
