"""Values as JSON can hold them: thinned, rounded, and nothing that a page could not draw."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lerope.report.curves import group_edges

Json = dict[str, Any]

MAX_POINTS = 400
"""Points of a curve of training."""


def number(value: Any, digits: int = 5) -> float | int | None:
    """A number with this many significant digits; None for what JSON cannot hold."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if value is None or not math.isfinite(value):
        return None
    return float(f"{float(value):.{digits}g}")


def numbers(values: Iterable[Any], digits: int = 5) -> list[float | int | None]:
    """The same for each of several."""
    return [number(value, digits) for value in values]


def plain(value: Any) -> Any:
    """JSON values as they are, with None for NaN and infinity, at full precision."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def curve(found: Mapping[int, float]) -> Json:
    """Values by step as means over neighbours, so that no more than MAX_POINTS are left."""
    items = sorted(found.items())
    steps, values = [], []
    for start, stop in pairwise(group_edges(len(items), MAX_POINTS).tolist()):
        group = items[start:stop]
        steps.append(number(sum(step for step, _ in group) / len(group), 7))
        values.append(number(sum(value for _, value in group) / len(group)))
    return {"steps": steps, "values": values}
