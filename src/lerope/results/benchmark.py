"""How fast a machine trains."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from lerope.results.base import Result


class Timing(TypedDict):
    """How long something took: median and quartiles over rounds, in milliseconds; None where it could not run."""

    median_ms: float | None
    q1_ms: float | None
    q3_ms: float | None
    note: str
    """Why it could not run."""


class Ceiling(Timing):
    """The most the device can do."""

    name: str
    """`matmul` or `copy`."""
    what: str
    work: float
    """FLOPs, or bytes read and written."""
    rate: float | None
    unit: str
    """Of the rate: FLOP/s or B/s."""


class RotaryTime(Timing):
    """One way to rotate, forward or backward alone."""

    tensors: str
    """`x`, one tensor, or `q and k`."""
    num_tokens: int
    num_heads: int
    """Of each tensor."""
    head_dim: int
    name: str
    part: str
    """`forward` or `backward`."""
    learned: bool
    """Whether the frequencies get a gradient."""
    num_bytes: int
    """The least that must move: every input read once, every output written once."""
    share_of_copy: float | None
    """These bytes over the time, as a share of the copy's rate."""


class LayoutTime(Timing):
    """Our rotation of queries and keys with learned frequencies in one of its layouts."""

    layout: str
    norm: bool
    """Whether a norm of queries and keys is part of it."""
    num_tokens: int
    q_heads: int
    k_heads: int
    head_dim: int
    dtype: str
    part: str
    num_bytes: int
    share_of_copy: float | None


class AttentionTime(Timing):
    """One way to attend in one layer."""

    rung: str
    num_rows: int
    row_length: int
    num_heads: int
    num_documents: int
    """In all rows, counted separately in each row."""
    name: str
    masked: bool
    """Whether documents do not see each other."""
    chosen: bool
    """Whether `auto` picks it here."""
    part: str
    """`forward`, or `forward + backward`."""
    flops: float
    """Of whole rows, causal, which is half of the square, whatever documents there are."""
    flops_per_second: float | None
    over_cudnn: float | None
    """Its time relative to cuDNN's causal attention, which ignores documents."""


class HeadTime(Timing):
    """Head and cross-entropy, forward and backward."""

    rung: str
    num_tokens: int
    width: int
    vocab_size: int
    name: str
    flops: float
    share_of_matmul: float | None
    peak_bytes: int | None
    """Device memory beyond inputs and weights, gradients included; None on a CPU."""


class StepTime(Timing):
    """Whole optimizer steps."""

    rung: str
    name: str
    batch_tokens: int
    row_length: int
    micro_batch_rows: int
    tokens_per_second: float | None
    share_of_matmul: float | None
    peak_bytes: int | None
    """Device memory of this model alone, measured before the others take turns with it; None on a CPU."""
    loss: float | None
    """Of the last step, nats per token: shows that it trains."""
    kernels: str
    """What computed our steps; empty for others' models."""


class StepRatio(TypedDict):
    """How two trainers compare, over pairs of steps of one round."""

    rung: str
    what: str
    median: float
    q1: float
    q3: float
    num_pairs: int
    memory: float | None
    """Peak memory of the first relative to the second."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(Result):
    """`lerope bench`: how fast this machine trains, every figure beside the ceilings of the same run."""

    kind: ClassVar[str] = "benchmark"

    stopped: bool
    """Whether it was stopped before its end; what is here was measured by then."""
    ceilings: list[Ceiling]
    rotary: list[RotaryTime]
    layouts: list[LayoutTime]
    attention: list[AttentionTime]
    head: list[HeadTime]
    steps: list[StepTime]
    step_ratios: list[StepRatio]
