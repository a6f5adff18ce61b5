"""How options that are numbers are read: what is none is refused in words, not by Python's names for its types."""

import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NUMBERS = ConstructorRegistry()
_KINDS = {int: "a whole number", float: "a number"}


@NUMBERS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """For `int`, `float`, and either of them or None."""
    kinds = get_args(info.type) if get_origin(info.type) in (Union, types.UnionType) else (info.type,)
    optional = type(None) in kinds
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        return None
    kind = kinds[0]
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=_reader(kind, optional),
        is_instance=lambda value: isinstance(value, kind) or (optional and value is None),
        str_from_instance=lambda value: [str(value)],
    )


def _reader(kind: type[int] | type[float], optional: bool) -> Callable[[list[str]], Any]:
    def read(given: list[str]) -> Any:
        if optional and given == ["None"]:
            return None
        try:
            return kind(given[0])
        except ValueError:
            raise ValueError(f"it must be {_KINDS[kind]}; got {given[0]!r}.") from None

    return read
