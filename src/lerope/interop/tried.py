"""What became of small models of each architecture in engines that were really run, from a file of the package.

`benchmarks/engines.py` runs them, and writes the file.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from lerope.core.files import read_json
from lerope.results.verification import Verdict

FILE = Path(__file__).with_name("tried.json")
# Where an engine computes another function than the files say, of models with plain RoPE too.
_CAUSES = {
    ("transformers 4", "gemma2"): (
        "its default attention leaves out the soft cap of Gemma 2; load the model with attn_implementation='eager'"
    ),
    ("transformers 4", "olmo3"): (
        "it reads no rope_parameters, and sliding layers of OLMo 3 always turn by plain RoPE; use transformers 5"
    ),
}


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


def known_as(engine: str, version: str) -> str:
    """An engine's name among those tried: transformers 4 and 5 are two."""
    return f"{engine} {version.split('.')[0]}" if engine == "transformers" else engine


def cause(engine: str, architecture: str) -> str | None:
    """Why an engine is known to compute another function, in a sentence; None if that is not known."""
    return _CAUSES.get((engine, architecture))
