"""Code of the user's own, whose errors are the user's too: one sentence that says where."""

import importlib
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import lerope


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Turns anything that the user's code raises into a ValueError with the file, the line and the error.

    Args:
        what: what the code is for and that it did not work, as the start of a sentence.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an exit too: only a command decides how it ends
        raise ValueError(f"{what}: {_said(error)}{_where(error)}.") from None


def _said(error: BaseException) -> str:
    """The error's first line, after its name where that line alone says little."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, ImportError | AttributeError | ValueError):
        return lines[0].rstrip(".")
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _where(error: BaseException) -> str:
    """The file and line of the innermost frame that is neither ours nor Python's import system."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f", in {error.filename}, line {error.lineno}"
    not_theirs = (os.path.dirname(lerope.__file__), os.path.dirname(importlib.__file__), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(not_theirs):
            return f", in {frame.filename}, line {frame.lineno}"
    return ""
