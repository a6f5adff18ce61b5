"""What decides a run's result (Recipe) and how a machine carries it out (Setup)."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePath
from typing import Any, Literal

import torch

from lerope.model.accounting import Parallel, Precision, plan
from lerope.model.config import ModelConfig, rung
from lerope.rotary.frequencies import check_choice, check_count, check_number
from lerope.rotary.kernels import Kernel
from lerope.train.schedule import Schedule

Compile = Literal["auto", "yes", "no"]
Graph = Literal["auto", "yes", "no"]
Attention = Literal["auto", "sdpa", "flex", "varlen", "flash4"]
Tracker = Literal["tensorboard", "wandb", "trackio"]

# The paper's learning rates, 2^(-index / 2). Below its ladder the index falls with 1 / parameters, as the paper's own
# sweep does: 10 for 19M and demo, whose blocks are the same.
LEARNING_RATE_INDEX = {"demo": 10, "19M": 10, "52M": 13, "217M": 17, "608M": 20, "1.34B": 22, "2.52B": 23}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a run's result depends on, besides its data; two runs are a pair if one field differs."""

    rung: str
    model: ModelConfig
    encoding: str
    seed: int
    row_length: int
    batch_tokens: int
    steps: int
    learning_rate: float
    frequency_learning_rate: float
    schedule: Schedule
    warmup_steps: int
    weight_decay: float
    """Sum over a run of the independent decay before the schedule: each step takes gamma * weight_decay / steps."""
    betas: tuple[float, float]
    eps: float
    max_norm: float
    """Gradients are clipped to this norm."""
    frequency_max_norm: float
    """The frequencies' gradients are clipped on their own, to this norm."""
    precision: Precision
    validation_tokens: int
    """Validation reads whole documents up to the one that reaches this many tokens."""
    z_loss: float = 0.0
    """Times the squared logsumexp of a token's logits, what training adds to its loss and validation does not."""

    def __post_init__(self) -> None:
        counts = ("row_length", "batch_tokens", "steps", "validation_tokens")
        for field in counts:
            check_count(field, getattr(self, field))
        check_choice("schedule", self.schedule, Schedule)
        check_choice("precision", self.precision, Precision)
        for field in ("learning_rate", "frequency_learning_rate", "max_norm", "frequency_max_norm", "eps"):
            if not check_number(field, getattr(self, field)) > 0:
                raise ValueError(f"{field} must be positive; got {getattr(self, field)!r}.")
        if not 0 <= check_number("weight_decay", self.weight_decay) < self.steps:
            raise ValueError(
                f"weight_decay must be from 0 to below steps = {self.steps:,}, or a step would turn weights around; "
                f"got {self.weight_decay!r}."
            )
        if check_number("z_loss", self.z_loss) < 0:
            raise ValueError(f"z_loss must be 0 or more; got {self.z_loss!r}.")
        if len(self.betas) != 2 or not all(0 <= check_number("betas", beta) < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1; got {self.betas!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be a whole number from 0 to below 2^63; got {self.seed!r}.")
        if self.batch_tokens % self.row_length:
            raise ValueError(
                f"batch_tokens must hold whole rows of {self.row_length:,} tokens; got {self.batch_tokens:,}."
            )
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(f"warmup_steps must be from 0 to below steps = {self.steps:,}; got {self.warmup_steps:,}.")

    @property
    def batch_rows(self) -> int:
        """Rows in one step, over all ranks."""
        return self.batch_tokens // self.row_length

    @property
    def torch_weight_decay(self) -> float:
        """AdamW's weight_decay, which torch multiplies by the learning rate: the independent decay undone by it."""
        return self.weight_decay / (self.steps * self.learning_rate)

    @property
    def name(self) -> str:
        """What a run directory is called: rung, encoding, seed."""
        name, *options = self.encoding.split(",")
        label = f"frozen-{_source(PurePath(name))}" if name.endswith(".json") else name.rpartition(":")[2]
        extras = [f"{key}{value}" for key, _, value in (option.partition("=") for option in options)]
        return "-".join([self.rung, label, *extras, str(self.seed)])

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values. A z-loss of 0 is left out, so that runs from before there was one stay what they are."""
        values = {**asdict(self), "betas": list(self.betas)}
        return values if self.z_loss else {name: value for name, value in values.items() if name != "z_loss"}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Recipe":
        """The inverse of `as_dict`."""
        content = {**content, "model": ModelConfig(**content["model"]), "betas": tuple(content["betas"])}
        return cls(**content)


def _source(path: PurePath) -> str:
    """What a frequencies.json is called: after its run, where it lies in one."""
    return path.parts[-3] if path.parts[-2:] == ("model", "frequencies.json") and len(path.parts) > 2 else path.stem


def recipe(
    name: str, encoding: str = "lerope", seed: int = 42, precision: Precision | None = None, **changes: Any
) -> Recipe:
    """The paper's recipe for a rung, with any fields changed; `vocab_size` and `activation` change the model.

    Precision is bf16 where there is a GPU and float32 elsewhere. Steps follow from 20 tokens a parameter; warm-up is
    1,000 steps and at most a seventh of the run, weight decay 8 and at most a tenth of the steps.
    """
    model = rung(name)
    model = replace(model, **{k: changes.pop(k) for k in ("vocab_size", "activation") if k in changes})
    known = {field.name for field in fields(Recipe)}
    for field in changes:
        if field not in known:
            raise ValueError(f"{field} is not a field of a recipe; those are {', '.join(sorted(known))}.")
    row_length = changes.get("row_length", 2048)
    batch_tokens = changes.get("batch_tokens", 131_072)
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
    }
    precision = precision or ("bf16" if torch.cuda.is_available() else "float32")
    fixed: dict[str, Any] = {"rung": name, "model": model, "encoding": encoding, "seed": seed, "precision": precision}
    return Recipe(**fixed, **{**defaults, **changes})


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a machine carries a recipe out. May differ from one start of a run to the next."""

    device: str = "auto"
    """Where to train: cuda, cuda:1, cpu; auto takes a GPU if there is one."""
    parallel: Parallel = "ddp"
    """How several ranks share the work: ddp copies the model, fsdp shards it, hybrid shards it within a node."""
    micro_batch_rows: int | None = None
    """Rows that go through the model at once on each rank; as many as fit unless given."""
    recompute: bool = False
    """Activation checkpointing: less memory, about a third more compute."""
    compile: Compile = "auto"
    """Whether to compile each block with torch.compile; auto does on CUDA."""
    graph: Graph = "auto"
    """Whether to record steps as CUDA graphs, which frees the host; auto does on one GPU where blocks are compiled,
    unless the encoding is one of your own."""
    attention: Attention = "auto"
    """How to attend; auto takes the fastest, by a measurement that is remembered for this GPU and shape."""
    kernel: Kernel = "auto"
    """What computes rotations, norms, activations and losses: auto takes fused Triton kernels where they can run,
    reference plain torch; triton is an error where the rotary kernel cannot run."""
    checkpoint_steps: int = 1000
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many checkpoints stay; the newest ones."""
    validation_steps: int = 500
    """Steps between validations; the last step is always validated."""
    frequency_records: int = 1000
    """How many records of the frequencies a run leaves, at most; as many as steps in a short one."""
    trackers: tuple[Tracker, ...] = ()
    """Where to send metrics besides metrics.jsonl: tensorboard, wandb, trackio."""

    def __post_init__(self) -> None:
        for field in ("checkpoint_steps", "keep_checkpoints", "validation_steps", "frequency_records"):
            check_count(field, getattr(self, field))
        if self.micro_batch_rows is not None:
            check_count("micro_batch_rows", self.micro_batch_rows)
        choices_of = {
            "parallel": Parallel,
            "compile": Compile,
            "graph": Graph,
            "attention": Attention,
            "kernel": Kernel,
        }
        for field, choices in choices_of.items():
            check_choice(field, getattr(self, field), choices)
        for tracker in self.trackers:
            check_choice("trackers", tracker, Tracker)
