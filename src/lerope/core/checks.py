"""Checks of single values; each raises one sentence with the field, the value and what it must be."""

import difflib
import math
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec


def hint(value: object, known: Iterable[str]) -> str:
    """How a sentence ends that refuses a name: with the known one that it resembles, if there is one."""
    by_lower = {name.lower(): name for name in known}
    asked = value.lower() if isinstance(value, str) else ""
    close = difflib.get_close_matches(asked[:100], by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else "."


def check_choice(field: str, value: object, choices: object) -> None:
    """Raises unless `value` is one of the strings of a Literal type."""
    names = get_args(choices)
    if value not in names:
        raise ValueError(f"{field} must be one of {', '.join(names)}; got {value!r}{hint(value, names)}")


def check_positive(field: str, value: object) -> int:
    """Raises unless `value` is a positive whole number, which may be one that torch.compile traces."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} must be a positive whole number; got {value!r}.")
    return value


def check_count(field: str, value: object) -> int:
    """Raises unless `value` is a positive whole number of at most 63 bits."""
    number = check_positive(field, value)
    if number >= 1 << 63:
        raise ValueError(f"{field} must be below 2^63; got {float(number) if number < 1 << 1000 else math.inf:.3g}.")
    return number


def check_number(field: str, value: object) -> float:
    """Raises unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{field} must be a finite number; got {value!r}.")
    return float(value)


def check_rotary_dim(head_dim: int, rotary_dim: int | None) -> int:
    """The number of leading dimensions of a head that rotate: all by default."""
    if check_positive("head_dim", head_dim) % 2:
        raise ValueError(f"head_dim must be even, because bands are pairs of dimensions; got {head_dim}.")
    if rotary_dim is None:
        return head_dim
    if check_positive("rotary_dim", rotary_dim) % 2 or rotary_dim > head_dim:
        raise ValueError(f"rotary_dim must be even and at most head_dim = {head_dim}; got {rotary_dim}.")
    return rotary_dim


def check_fields(value: Any) -> None:
    """Raises unless every field of a dataclass has the type that is written beside it."""
    for name, hint in get_type_hints(type(value)).items():
        if get_origin(hint) is Literal:
            check_choice(name, getattr(value, name), hint)
        try:
            msgspec.convert(getattr(value, name), hint, from_attributes=True)
        except msgspec.ValidationError:
            kind = hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint
            raise ValueError(f"{name} must be {kind}; got {getattr(value, name)!r}.") from None
