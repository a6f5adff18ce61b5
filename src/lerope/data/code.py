"""Which documents are source code, where nothing but their content tells."""

import ast
import warnings
from collections.abc import Sequence

# Parsing Python takes longer than encoding it, and documents that follow each other are mostly of one kind.
_EVERY = 8


def are_code(texts: Sequence[str], known: Sequence[bool | None]) -> list[bool]:
    """Whether each document is source code: as known, or else if it is Python.

    Of those unknown, every 8th is looked at and stands for those up to the next.
    """
    found: list[bool] = []
    num_unknown, last = 0, False
    for text, code in zip(texts, known, strict=True):
        if code is None:
            if num_unknown % _EVERY == 0:
                last = is_python(text)
            num_unknown += 1
        found.append(last if code is None else code)
    return found


def is_python(text: str) -> bool:
    """Whether a text is a Python program; a bare expression is not one, for a word or a JSON object can be that too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes, about which its author is to be told, not we
            statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return not all(isinstance(statement, ast.Expr) for statement in statements)
