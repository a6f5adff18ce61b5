"""What decides a run's result (Recipe) and how a machine carries it out (Setup)."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lerope.core.checks import check_choice, check_count, check_fields, check_number
from lerope.core.encoding import EncodingSpec
from lerope.core.ladder import BATCH_TOKENS, LEARNING_RATE_INDEX, ROW_LENGTH, ModelConfig, compute, plan, rung

Attention = Literal["auto", "sdpa", "flex", "varlen", "flash4"]
Compile = Literal["auto", "yes", "no"]
Graph = Literal["auto", "yes", "no"]
Kernel = Literal["auto", "triton", "reference"]
Learn = Literal["rotation"]
Parallel = Literal["ddp", "fsdp", "hybrid"]
Precision = Literal["bf16", "float32"]
RowOrder = Literal["shuffled", "documents"]
Schedule = Literal["cosine", "wsd", "constant"]
Hashing = Literal["changed", "all"]
Tracker = Literal["tensorboard", "wandb", "trackio"]


# Far beyond any batch that was trained with.
_MOST_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a run's result depends on besides its data; two runs form a pair if one field differs."""

    rung: str
    model: ModelConfig
    encoding: str
    """In the spelling of `EncodingSpec.text`."""
    seed: int
    row_length: int
    batch_tokens: int
    steps: int
    learning_rate: float
    frequency_learning_rate: float
    schedule: Schedule
    warmup_steps: int
    weight_decay: float
    """Independent decay summed over a run, before the schedule: each step takes gamma * weight_decay / steps."""
    betas: tuple[float, float]
    eps: float
    max_norm: float
    """Gradients are clipped to this norm."""
    frequency_max_norm: float
    """The frequencies' gradients are clipped on their own, to this norm."""
    precision: Precision
    validation_tokens: int
    """Validation reads whole documents up to the one that reaches this many tokens."""
    z_loss: float
    """Weight of the squared logsumexp of a token's logits, which training adds to the loss and validation does not."""
    row_order: RowOrder
    """The order of rows in an epoch. Runs of the first version had them in document order, which is no longer
    trained."""
    start_from: str | None = None
    """The finished run whose weights it starts from, in place of weights drawn from the seed."""
    learn: Learn | None = None
    """What changes: everything, or only the rotation, which is frequencies and the gains of QK-norm."""

    def __post_init__(self) -> None:
        counts = ("row_length", "batch_tokens", "steps", "validation_tokens")
        for field in counts:
            check_count(field, getattr(self, field))
        check_choice("schedule", self.schedule, Schedule)
        check_choice("precision", self.precision, Precision)
        check_choice("row_order", self.row_order, RowOrder)
        if self.learn is not None:
            check_choice("learn", self.learn, Learn)
            if self.start_from is None:
                raise ValueError(f"learn={self.learn!r} needs a run to start from, because random weights must learn.")
        for field in ("learning_rate", "frequency_learning_rate", "max_norm", "frequency_max_norm", "eps"):
            if not check_number(field, getattr(self, field)) > 0:
                raise ValueError(f"{field} must be positive; got {getattr(self, field)!r}.")
        if not 0 <= check_number("weight_decay", self.weight_decay) < self.steps:
            raise ValueError(
                f"weight_decay must be at least 0 and below steps = {self.steps:,}, or a step would flip weights; "
                f"got {self.weight_decay!r}."
            )
        if check_number("z_loss", self.z_loss) < 0:
            raise ValueError(f"z_loss must be 0 or more; got {self.z_loss!r}.")
        if len(self.betas) != 2 or not all(0 <= check_number("betas", beta) < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {self.betas!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be a whole number in [0, 2^63); got {self.seed!r}.")
        if self.batch_tokens % self.row_length:
            raise ValueError(
                f"batch_tokens must hold whole rows of {self.row_length:,} tokens; got {self.batch_tokens:,}."
            )
        if self.batch_rows > _MOST_ROWS:
            raise ValueError(
                f"batch_tokens must be at most {_MOST_ROWS:,} rows of {self.row_length:,} tokens; got "
                f"{self.batch_tokens:,}."
            )
        if self.spec.horizon is not None and self.spec.horizon < self.row_length:
            raise ValueError(
                f"encoding {self.encoding!r}: horizon must be at least row_length = {self.row_length:,}; got "
                f"{self.spec.horizon:,}."
            )
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(f"warmup_steps must be in [0, steps = {self.steps:,}); got {self.warmup_steps:,}.")

    @cached_property
    def spec(self) -> EncodingSpec:
        """The encoding."""
        return EncodingSpec.parse(self.encoding)

    @property
    def name(self) -> str:
        """The name of a run directory: rung, encoding, seed, and where the run starts from another one."""
        parts = [self.rung, self.spec.name, str(self.seed)]
        if self.start_from is not None:
            parts += ["from", Path(self.start_from).name, str(self.row_length)]
        return "-".join(parts)

    @property
    def batch_rows(self) -> int:
        """Rows per step, over all ranks."""
        return self.batch_tokens // self.row_length

    @property
    def num_tokens(self) -> int:
        """Tokens that the run reads."""
        return self.steps * self.batch_tokens

    @property
    def compute(self) -> float:
        """6 N_ne D, FLOPs in the paper's notation."""
        return float(compute(self.model, self.num_tokens))

    @property
    def torch_weight_decay(self) -> float:
        """AdamW's weight_decay: the independent decay divided by the learning rate, which torch multiplies it by."""
        return self.weight_decay / (self.steps * self.learning_rate)


def recipe(
    name: str, encoding: str = "lerope", seed: int = 42, precision: Precision = "bf16", **changes: Any
) -> Recipe:
    """The paper's recipe for a rung, with any fields changed.

    `vocab_size`, `activation` and `head_dim` change the model; the last leaves its width.

    Steps follow from 20 tokens per parameter; warm-up is 1,000 steps but at most a seventh of the run, weight decay 8
    but at most a tenth of the steps.
    """
    model = rung(name)
    model = replace(model, **{k: changes.pop(k) for k in ("vocab_size", "activation") if k in changes})
    if (head_dim := changes.pop("head_dim", None)) is not None:
        model = model.with_head_dim(head_dim)
    known = {field.name for field in fields(Recipe)}
    for field in changes:
        if field not in known:
            raise ValueError(f"{field} is not a recipe field; those are {', '.join(sorted(known))}.")
    row_length = changes.get("row_length", ROW_LENGTH)
    batch_tokens = changes.get("batch_tokens", BATCH_TOKENS)
    steps = changes.get("steps") or plan(model, row_length, batch_tokens).steps
    learning_rate = changes.get("learning_rate", 2 ** (-LEARNING_RATE_INDEX[name] / 2))
    defaults: dict[str, Any] = {
        "row_length": row_length,
        "batch_tokens": batch_tokens,
        "steps": steps,
        "learning_rate": learning_rate,
        "frequency_learning_rate": learning_rate,
        "schedule": "cosine",
        "warmup_steps": min(1000, steps // 7),
        "weight_decay": min(8.0, steps / 10),
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "max_norm": 1.0,
        "frequency_max_norm": 1.0,
        "validation_tokens": 1 << 20,
        "z_loss": 0.0,
        "row_order": "shuffled",
    }
    fixed: dict[str, Any] = {"rung": name, "model": model, "seed": seed, "precision": precision}
    return Recipe(**fixed, encoding=EncodingSpec.parse(encoding).text, **{**defaults, **changes})


CHANGES = (
    "steps",
    "row_length",
    "batch_tokens",
    "learning_rate",
    "frequency_learning_rate",
    "schedule",
    "warmup_steps",
    "weight_decay",
    "max_norm",
    "frequency_max_norm",
    "z_loss",
    "precision",
    "validation_tokens",
    "vocab_size",
    "activation",
    "head_dim",
    "start_from",
    "learn",
)
"""What `lerope train` takes as options and a study may change."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a machine carries out a recipe. May differ between starts of a run."""

    device: str = "auto"
    """Where to train: cuda, cuda:1, cpu; auto uses a GPU if there is one."""
    parallel: Parallel = "ddp"
    """How ranks share the work: ddp copies the model, fsdp shards it, hybrid shards it within each node."""
    micro_batch_rows: int | None = None
    """Rows per forward pass on each rank; by default, as many as fit."""
    recompute: bool = False
    """Activation checkpointing: less memory, about a third more compute."""
    compile: Compile = "auto"
    """Whether to compile each block with torch.compile; auto does so on CUDA."""
    graph: Graph = "auto"
    """Whether to record steps as CUDA graphs, which frees the host; auto does so on one GPU with compiled blocks,
    unless the encoding is your own."""
    attention: Attention = "auto"
    """Attention backend; auto picks the fastest by a measurement cached for this GPU and shape."""
    kernel: Kernel = "auto"
    """What computes rotations, norms, activations and losses: auto uses fused Triton kernels where they can run,
    reference uses plain torch; triton fails where the rotary kernel cannot run."""
    checkpoint_steps: int = 1000
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints to keep."""
    validation_steps: int = 500
    """Steps between validations; the last step is always validated."""
    frequency_records: int = 250
    """How many records of the frequencies a run keeps, at most; a short run keeps one per step."""
    profile: bool = False
    """Record a few steps with torch's profiler in RUN/profile/rank0.json.gz, for Perfetto."""
    trackers: tuple[Tracker, ...] = ()
    """Where to send metrics besides metrics.jsonl: tensorboard, wandb, trackio."""

    verify: Hashing = "changed"
    """Which files of the data to hash before training: changed, those never hashed or with another size or time than
    then, the others during a run that takes long; all, every file."""

    def __post_init__(self) -> None:
        for field in ("checkpoint_steps", "keep_checkpoints", "validation_steps", "frequency_records"):
            check_count(field, getattr(self, field))
        if self.micro_batch_rows is not None:
            check_count("micro_batch_rows", self.micro_batch_rows)
        for tracker in self.trackers:
            check_choice("trackers", tracker, Tracker)
        check_fields(self)
