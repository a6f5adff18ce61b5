"""Whether everything that could run on a machine runs, and correctly."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from lerope.results.base import Result


class Finding(TypedDict):
    """What `lerope doctor` found out about one thing."""

    name: str
    status: str
    """`ok`, `missing` (but optional) or `broken` (there, but it fails or is wrong)."""
    note: str
    fix: str
    """What to do about it, where there is something."""
    error: float | None
    """Of the try that is worst by its tolerance, relative; None without one, and where it is not a number."""
    tolerance: float | None
    """What rounding explains."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Result):
    """`lerope doctor`: whether everything that could run on this machine runs, and correctly."""

    kind: ClassVar[str] = "diagnosis"

    findings: list[Finding]
