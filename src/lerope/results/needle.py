"""Values found among distractors, or far away."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from lerope.results.base import Count, RunResult

FLOOR = 0.02
"""Below this share of correct answers, rates say nothing."""


class NeedleCell(TypedDict):
    """Prompts of one kind: a length, a number of distractors and a depth of the gold needle, or all depths."""

    length: int
    """Tokens of prompt and answer."""
    num_distractors: int
    depth: float | None
    """0 is the prompt's start, 1 its end; None for all depths together."""
    num_samples: int
    num_correct: int
    rate: float
    """Exact match: the greedy answer is the gold value."""
    low: float
    high: float
    """Wilson's 95 % interval of the rate."""
    distractor_rate: float
    """The greedy answer is a distractor's value."""
    other_rate: float
    """The greedy answer is anything else; the three rates add up to 1."""
    gold_log_probability: float
    """Nats per token of the gold value, given the prompt and its earlier tokens."""
    margin: float
    """Log-odds of gold against another value at the first token where they differ, mean over values; 0 is chance."""
    margin_error: float | None
    """Standard error of the margin; None for one prompt."""
    worst_margin: float
    """The same against the value that comes out best; chance lies below 0 and falls with the number of values."""


class NeedleLeftOut(TypedDict):
    """What was requested but does not fit."""

    length: int
    num_distractors: int


@dataclass(frozen=True, kw_only=True)
class Needle(RunResult):
    """`lerope needle`: values that a run finds among distractors, or far away.

    Beside it in .safetensors, one entry per prompt: `length`, `num_distractors`, `depth`, `sample`, `outcome` (0 other,
    1 gold, 2 a distractor), `gold_log_probability`, `margin`, `worst_margin`. Where settings are equal the prompts are
    the same.
    """

    kind: ClassVar[str] = "needle"
    settings_read: ClassVar[dict[str, Any]] = {
        "train_length": Count,
        "samples": Count,
        "depths": list[float],
        "filler": str,
        "num_filler_tokens": Count,
        "to": Count | None,
        "method": str | None,
        "precision": str | None,
    }

    cells: list[NeedleCell]
    totals: list[NeedleCell]
    """The same over all depths."""
    left_out: list[NeedleLeftOut]

    @property
    def at_floor(self) -> bool:
        """Whether so few answers are right that only margins say something."""
        num_correct, num_samples = (sum(cell[name] for cell in self.cells) for name in ("num_correct", "num_samples"))
        return num_correct < FLOOR * num_samples

    @property
    def repeated(self) -> list[int]:
        """Lengths of prompts that the filler is too short for, so that its sentences repeat."""
        lengths = dict.fromkeys(cell["length"] for cell in self.totals)
        return [length for length in lengths if length > self.settings["num_filler_tokens"]]
