"""A model's shape, the ladder of models as data, and their counts: parameters, tokens, compute.

Counts follow the paper: no gains, 20 tokens per parameter, and compute 6 N D where N excludes embeddings.
"""

from dataclasses import dataclass, replace
from typing import Literal

from lerope.core.checks import check_choice, check_count, check_rotary_dim, hint

Activation = Literal["gelu", "relu2"]

ROW_LENGTH = 2048
BATCH_TOKENS = 131_072
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer: pre-norm, QK-norm before the rotation, two-matrix MLP, no biases, untied head."""

    num_layers: int
    num_heads: int
    head_dim: int = 64
    vocab_size: int = 32_000
    activation: Activation = "gelu"
    """Exact GELU as in the paper's recipe, or squared ReLU, which serving engines can run in this MLP."""
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_heads", "vocab_size"):
            check_count(field, getattr(self, field))
        check_rotary_dim(self.head_dim, None)
        check_choice("activation", self.activation, Activation)
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"norm_eps must lie between 0 and 1; got {self.norm_eps!r}.")

    @property
    def width(self) -> int:
        """Dimensions of the residual stream."""
        return self.num_heads * self.head_dim

    def with_head_dim(self, head_dim: int) -> "ModelConfig":
        """The same width in heads of another size."""
        if check_rotary_dim(head_dim, None) > self.width or self.width % head_dim:
            raise ValueError(f"head_dim must divide the width of {self.width:,}; got {head_dim:,}.")
        return replace(self, head_dim=head_dim, num_heads=self.width // head_dim)

    @property
    def mlp_width(self) -> int:
        """Hidden dimensions of the MLP."""
        return 4 * self.width


def _rung(num_layers: int, vocab_size: int = 32_000) -> ModelConfig:
    """The ladder's rule: four heads of 64 dimensions for every three layers."""
    return ModelConfig(num_layers=num_layers, num_heads=4 * num_layers // 3, vocab_size=vocab_size)


# The paper's five rungs, one below them by the same rule, and that one with a small vocabulary for a laptop.
LADDER: dict[str, ModelConfig] = {
    "demo": _rung(3, vocab_size=2_048),
    "19M": _rung(3),
    "52M": _rung(6),
    "217M": _rung(12),
    "608M": _rung(18),
    "1.34B": _rung(24),
    "2.52B": _rung(30),
}

# Learning rates are 2^(-index / 2). From 52M up, the indices are the paper's. Below its ladder, the index scales with
# 1 / parameters, as in the paper's own sweep: 10 for 19M and demo, whose blocks are the same.
LEARNING_RATE_INDEX = {"demo": 10, "19M": 10, "52M": 13, "217M": 17, "608M": 20, "1.34B": 22, "2.52B": 23}


def rung(name: str) -> ModelConfig:
    """The configuration of a rung by name."""
    if name not in LADDER:
        raise ValueError(f"rung must be one of {', '.join(LADDER)}; got {name!r}{hint(name, LADDER)}")
    return LADDER[name]


def block_parameters(config: ModelConfig) -> int:
    """N_ne: the matrices of all blocks, 12 width^2 each."""
    return config.num_layers * (4 * config.width**2 + 2 * config.width * config.mlp_width)


def total_parameters(config: ModelConfig) -> int:
    """N_tot: blocks, embedding and head, without gains."""
    return block_parameters(config) + 2 * config.vocab_size * config.width


def gain_parameters(config: ModelConfig) -> int:
    """The gains of all norms, which the paper does not count."""
    return config.num_layers * (2 * config.width + 2 * config.head_dim) + config.width


def compute(config: ModelConfig, num_tokens: int) -> int:
    """6 N_ne D, the paper's C: FLOPs without embedding, head and attention."""
    return 6 * block_parameters(config) * num_tokens


def flops_per_token(config: ModelConfig, row_length: int) -> int:
    """Forward and backward, including head and causal attention (half of the square)."""
    matrices = block_parameters(config) + config.vocab_size * config.width
    return 6 * matrices + 6 * config.num_layers * row_length * config.width


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of one run."""

    block_parameters: int
    total_parameters: int
    gain_parameters: int
    encoding_parameters: int
    """LeRoPE's log-scales, one per band; other encodings have none."""
    tokens: int
    steps: int
    compute: int
    """6 N_ne D, the paper's C, on which compute multipliers are based."""
    flops: int
    """What the hardware actually computes."""


def plan(config: ModelConfig, row_length: int = ROW_LENGTH, batch_tokens: int = BATCH_TOKENS) -> Plan:
    """The paper's recipe for a model of this shape."""
    if check_count("batch_tokens", batch_tokens) % check_count("row_length", row_length):
        raise ValueError(f"batch_tokens must hold whole rows of {row_length:,} tokens; got {batch_tokens:,}.")
    total = total_parameters(config)
    steps = round(TOKENS_PER_PARAMETER * total / batch_tokens)
    if steps == 0:
        raise ValueError(
            f"batch_tokens must be at most the run's {TOKENS_PER_PARAMETER * total:,}; got {batch_tokens:,}."
        )
    tokens = steps * batch_tokens
    return Plan(
        block_parameters=block_parameters(config),
        total_parameters=total,
        gain_parameters=gain_parameters(config),
        encoding_parameters=config.head_dim // 2,
        tokens=tokens,
        steps=steps,
        compute=compute(config, tokens),
        flops=flops_per_token(config, row_length) * tokens,
    )


def ladder_compute(name: str) -> float:
    """FLOPs of a rung's run in the paper's notation: 6 times parameters without embeddings times tokens."""
    return float(plan(rung(name)).compute)
