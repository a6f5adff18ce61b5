"""Values by type: an example of each, what a type accepts, and everything that a field may be instead."""

import dataclasses
import functools
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

DEPTH = 100_000
INSTEAD: dict[str, Any] = {
    "null": None,
    "true": True,
    "a number": 3,
    "a negative number": -7,
    "a fraction": 0.5,
    "a huge number": 1e300,
    "a number beyond 64 bits": 1 << 70,
    "a number of 400 digits": 10**400,
    "text": "x",
    "empty text": "",
    "text with markup": "[/b] [red]",
    "the text NaN": "NaN",
    "an empty list": [],
    "a list": [1, "x", None],
    "an empty object": {},
    "an object": {"x": 1},
    "nested 300 deep": functools.reduce(lambda inner, _: [inner], range(300), 1),
}
"""What is written where a value was."""
RAW = {
    "NaN": b"NaN",
    "infinity": b"Infinity",
    "out of range": b"1e999",
    "nested too deep": b"[" * DEPTH + b"]" * DEPTH,
    "half a text": b'"x',
    "no UTF-8": b'"\xff\xfe"',
}
"""The same as bytes, which JSON does not have or should not."""


def example(hint: Any) -> Any:
    """A value of a type, a dataclass with all its fields for instance."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) or is_typeddict(hint):
        return hint(**{name: example(inner) for name, inner in fields(hint).items()})
    if origin in (Union, types.UnionType):
        return example(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [example(arguments[0])]
    if origin is tuple:
        return [example(inner) for inner in arguments if inner is not ...]
    if origin is dict:
        return {"x": example(arguments[1])}
    return {int: 3, float: 0.5, str: "x", bool: False, Any: "x", type(None): None}[hint]


def fields(hint: Any) -> dict[str, Any]:
    """The fields of a dataclass or TypedDict and their types; of anything else none."""
    if not (dataclasses.is_dataclass(hint) or is_typeddict(hint)):
        return {}
    hints = get_type_hints(hint)
    if is_typeddict(hint):
        return hints
    return {field.name: hints[field.name] for field in dataclasses.fields(hint)}


def may_be_missing(kind: Any, name: Any) -> bool:
    """Whether a field is None where a file does not have it, as those of an earlier version do not."""
    known = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return any(field.name == name and field.default is None for field in known)


def accepts(hint: Any, value: Any) -> bool:
    """Whether a value is of a type."""
    try:
        msgspec.convert(value, hint)
    except (msgspec.ValidationError, ValueError):
        return False
    return True


def inner(hint: Any, key: Any, value: Any) -> Any:
    """The type of what `key` finds in a value of a type; Any where the type does not say."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return next((found for found in (inner(each, key, value) for each in arguments) if found is not Any), Any)
    if known := fields(hint):
        return known.get(key, Any)
    if origin is dict:
        return arguments[1]
    if origin is list:
        return arguments[0]
    if origin is tuple:
        return arguments[0] if arguments[-1] is ... else arguments[key]
    return Any
