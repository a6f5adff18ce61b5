"""What became of small models of each architecture in engines that were really run, from a file of the package.

`benchmarks/engines.py` runs them, and writes the file.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from lerope.core.files import read_json
from lerope.results.verification import Verdict

FILE = Path(__file__).with_name("tried.json")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One engine, one architecture."""

    engine: str
    """As in `lerope.interop.engines.TABLES`."""
    version: str
    architecture: str
    """`model_type` of config.json."""
    verdict: Verdict
    error: float | None
    """Of logits, relative to the largest."""
    note: str


@dataclass(frozen=True, kw_only=True)
class TriedFile:
    """The file."""

    tried: list[Tried]


@functools.cache
def all_tried() -> list[Tried]:
    """Everything that was tried."""
    return read_json(FILE, TriedFile, "install lerope again").tried


def tried(engine: str, architecture: str) -> Tried | None:
    """What became of an architecture in an engine; None if nobody tried."""
    same = [one for one in all_tried() if (one.engine, one.architecture) == (engine, architecture)]
    return same[0] if same else None
