"""Methods against a baseline, and what they save in compute."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from lerope.results.base import Result


class RunLoss(TypedDict):
    """The loss of one run among those compared."""

    rung: str
    method: str
    seed: int
    run: str
    loss: float


class MethodEffect(TypedDict):
    """How far a method's loss is from the baseline's over the seeds that both have, in nats per token.

    Below zero the method is better. Intervals are 95 %; those over seeds are None with one seed.
    """

    rung: str
    method: str
    num_seeds: int
    num_documents: int
    num_tokens: int
    loss: float
    baseline_loss: float
    difference: float
    seed_deviation: float | None
    """The standard deviation of the seeds' paired differences; None with one seed."""
    documents_low: float
    documents_high: float
    seeds_low: float | None
    seeds_high: float | None
    both_low: float | None
    both_high: float | None
    beyond_noise: bool | None
    """None where one seed alone differs by more than documents explain."""
    verdict: str


class CapturedGain(TypedDict):
    """The share of the reference's gain over the baseline that a method has, with 95 % intervals over documents."""

    rung: str
    method: str
    num_seeds: int
    """Seeds that the method, the baseline and the reference all have."""
    method_loss: float
    """Nats per token over these seeds, like the two that follow."""
    baseline_loss: float
    reference_loss: float
    loss: float
    loss_low: float
    loss_high: float
    perplexity: float
    perplexity_low: float
    perplexity_high: float


class PositionGap(TypedDict):
    """A method's loss less the baseline's over tokens whose position in their window is in [start, stop)."""

    rung: str
    method: str
    start: int
    stop: int
    num_tokens: int
    difference: float
    standard_error: float | None
    """Clustered by document, given these seeds; None with one document."""


class Multiplier(TypedDict):
    """How much more compute the baseline needs for a method's loss."""

    rung: str | None
    compute: float
    method: str
    estimator: str
    multiplier: float | None
    """None for a loss that the fitted baseline never reaches."""


class LadderLoss(TypedDict):
    """A method's loss at one compute."""

    rung: str | None
    compute: float
    method: str
    loss: float


class FitParameter(TypedDict):
    """One number of a fit to a method's losses."""

    estimator: str
    method: str | None
    """None for the error of a joint fit, which is over all methods."""
    parameter: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """`lerope compare`: methods against a baseline, paired by seed and document, one comparison per rung."""

    kind: ClassVar[str] = "comparison"

    baseline: str
    reference: str | None
    """The method whose gain counts as all of it; None with fewer than three methods, or without lerope where no other
    was named."""
    losses: list[RunLoss]
    effects: list[MethodEffect]
    gains: list[CapturedGain]
    by_position: list[PositionGap]
    multipliers: list[Multiplier]
    """Of methods present at every one of two rungs or more."""
    notes: list[str]
    """What was left out, and why."""


@dataclass(frozen=True, kw_only=True)
class Multipliers(Result):
    """`lerope multipliers`: what methods save in compute, by every estimator that the number of rungs allows."""

    kind: ClassVar[str] = "multipliers"

    baseline: str
    losses: list[LadderLoss]
    multipliers: list[Multiplier]
    fits: list[FitParameter]
    notes: list[str]
    """What was left out, and why."""

    def parameters(self) -> dict[tuple[str, str | None], dict[str, float]]:
        """Of each fit, by estimator and method; the joint one has an overall error of no method."""
        fits: dict[tuple[str, str | None], dict[str, float]] = {}
        for fit in self.fits:
            fits.setdefault((fit["estimator"], fit["method"]), {})[fit["parameter"]] = fit["value"]
        return fits
