"""Hugging Face's config.json, which others write: read in one place, into one sentence if it is not as it must be."""

import json
from pathlib import Path
from typing import Any

from lerope.core.files import read_bytes
from lerope.core.run import CONFIG


def read_foreign_config(folder: Path, fix: str) -> dict[str, Any]:
    """The fields of a folder's config.json, of which nothing is known but that they have names.

    Args:
        folder: where it is.
        fix: what to do if it cannot be read, as the end of a sentence.
    """
    try:
        content = json.loads(read_bytes(folder / CONFIG, fix))  # which takes the Infinity that transformers writes
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} is not valid JSON ({error}); {fix}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{folder / CONFIG} must be an object, got {type(content).__name__}; {fix}.")
    return content
