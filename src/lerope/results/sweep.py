"""The search for a learning rate."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from lerope.results.base import Result


class Trial(TypedDict):
    """One run of a sweep."""

    encoding: str
    index: int
    learning_rate: float
    loss: float | None
    """Final validation loss; None if the run diverged."""
    run: str
    """Its folder, within the sweep's."""


class LearningRateOptimum(TypedDict):
    """The best learning rate of an encoding, between worse ones."""

    encoding: str
    index: int
    learning_rate: float
    loss: float
    loss_at_larger_rate: float | None
    """At index - 1; None if that run diverged."""
    loss_at_smaller_rate: float | None
    num_runs: int


class LearningRatePrediction(TypedDict):
    """The index to expect at another rung."""

    encoding: str
    rung: str
    index: int
    learning_rate: float
    slope: float
    """s in learning rate ~ N^s, as fitted."""


@dataclass(frozen=True, kw_only=True)
class Sweep(Result):
    """`lerope sweep`: the search for a rung's learning rate, of each encoding on its own."""

    kind: ClassVar[str] = "sweep"
    settings_read: ClassVar[dict[str, Any]] = {"rung": str | None}

    trials: list[Trial]
    """In the order they were made."""
    optima: list[LearningRateOptimum]
    """Of encodings whose search has ended."""
    predictions: list[LearningRatePrediction]
