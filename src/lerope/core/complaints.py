"""What is wrong with a JSON file, in words."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_WORDS = {
    "object": "an object",
    "array": "a list",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
}


def complaint(error: Exception) -> str:
    """What is wrong with a file, to follow its name."""
    if isinstance(error, RecursionError):
        return " is nested too deeply"
    text, _, place = str(error).partition(" - at `$")
    text, field = text.rstrip("."), place.rstrip("`").lstrip(".")
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f" is not valid JSON ({text})"
    if found := re.fullmatch(r"Object missing required field `(\w+)`", text):
        return f": {'.'.join(filter(None, (field, found[1])))} is missing"
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", text):
        wanted, got = (" or ".join(_WORDS.get(name, name) for name in names.split(" | ")) for names in found.groups())
        return f"{f': {field}' if field else ''} must be {wanted}, got {got}"
    if found := re.fullmatch(r"Invalid enum value (.+)", text):
        return f": {field} has the unknown value {found[1]}"
    return f": {field}: {text}" if field else f": {text}"


def too_large(content: Any, field: str = "") -> Iterator[str]:
    """Whole numbers that nothing of ours counts to, by dotted field."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from too_large(value, f"{field}.{key}" if field else key)
    elif isinstance(content, list):
        for value in content:
            yield from too_large(value, field)
    elif isinstance(content, int) and abs(content) >= 1 << 64:
        yield field
