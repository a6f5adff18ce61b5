"""How options that are numbers are read: what is none is refused in words, not by Python's names for its types."""

import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NUMBERS = ConstructorRegistry()
_KINDS = {int: "a whole number", float: "a number"}


@NUMBERS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """For `int`, `float`, tuples of any number of either, and any of these or None."""
    kinds = get_args(info.type) if get_origin(info.type) in (Union, types.UnionType) else (info.type,)
    optional = type(None) in kinds
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) != 1:
        return None
    several = get_origin(kinds[0]) is tuple and get_args(kinds[0])[1:] == (Ellipsis,)
    kind = get_args(kinds[0])[0] if several else kinds[0]
    if kind not in _KINDS:
        return None
    name = kind.__name__.upper()
    return PrimitiveConstructorSpec(
        nargs="*" if several else 1,
        metavar=f"[{name} [{name} ...]]" if several else name,
        instance_from_str=_reader(kind, several, optional),
        is_instance=lambda value: isinstance(value, tuple if several else kind) or (optional and value is None),
        str_from_instance=lambda value: list(map(str, value)) if isinstance(value, tuple) else [str(value)],
    )


def _reader(kind: type[int] | type[float], several: bool, optional: bool) -> Callable[[list[str]], Any]:
    def number(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{'each' if several else 'it'} must be {_KINDS[kind]}; got {text!r}.") from None

    def read(given: list[str]) -> Any:
        if optional and given == ["None"]:
            return None
        return tuple(map(number, given)) if several else number(given[0])

    return read
