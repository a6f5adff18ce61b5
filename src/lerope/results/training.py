"""How a run ended."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from lerope.results.base import RunResult


class Timeline(TypedDict):
    """Where the time of a command went, from the process's start."""

    num_steps: int
    total_seconds: float
    phases: dict[str, float]
    """Seconds of what comes before and after the loop: start (imports), data, model (the choice of kernels included),
    first step (compilation included), finish (the model's files)."""
    hook_seconds: dict[str, float]
    """What steps wait for: validation, frequencies, checkpoints (a copy of the state, where a thread writes it)."""
    median_step_seconds: float | None
    """Of the steps after the first; None without any."""
    step_share: float | None
    """How much of the time was steps: their number times the median, so that compilation does not count as one."""


@dataclass(frozen=True, kw_only=True)
class Training(RunResult):
    """`lerope train`: how a run ended, in results/training.json."""

    kind: ClassVar[str] = "training"

    num_steps: int
    num_tokens: int
    loss: float
    """Of the last step's batch."""
    validation_loss: float | None
    seconds: float
    """Steps alone, over all starts of the run."""
    wait_share: float
    """How much of that the model waited for data."""
    peak_memory_bytes: int | None
    """On a GPU."""
    last_start: Timeline
    """Of the command that finished the run, up to this file."""
