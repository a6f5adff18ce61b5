"""Whether engines compute what an exported model does."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypedDict

from lerope.results.base import Result

Verdict = Literal["agrees", "differs", "ignores the factors", "cannot run"]
"""What became of an engine that was really run."""


class EngineTable(TypedDict):
    """An engine's frequencies, rebuilt from exported files by its own formula, against ours."""

    engine: str
    error: float | None
    """The largest difference relative to our frequency; None if the engine would not find them."""
    attention_factor: float | None
    """What the engine would multiply cosines and sines by."""
    agrees: bool | None
    """None if the table would be right, but the engine is known to make nothing of it in this architecture."""
    tried: Verdict | None
    """What became of a small model of this architecture in this engine, when lerope's developers ran it; None if they
    did not: then there is only the table."""
    tried_version: str | None
    note: str


class EngineRun(TypedDict):
    """An engine that was really run on a prompt, against ours."""

    engine: str
    version: str | None
    logit_error: float | None
    """The largest difference of logits relative to the largest logit; None for an engine that gives none."""
    num_same_tokens: int | None
    """How many tokens of its greedy continuation match ours, from the first on."""
    num_tokens: int
    verdict: Verdict | None
    """None if it was not run, or is what others are compared with."""
    note: str


@dataclass(frozen=True, kw_only=True)
class Verification(Result):
    """`lerope verify`: whether engines compute what the exported model does."""

    kind: ClassVar[str] = "verification"

    reference: str
    """What engines are compared with."""
    tables: list[EngineTable]
    runs: list[EngineRun]
