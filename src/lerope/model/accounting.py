"""What a training run costs, before any of it is spent: parameters, tokens, steps, FLOPs.

Counts follow the paper: gains are left out, tokens are 20 per parameter, compute is 6 N D with N without embeddings.
"""

from dataclasses import dataclass

from lerope.model.config import ModelConfig
from lerope.rotary.frequencies import check_count

BATCH_TOKENS = 131_072
TOKENS_PER_PARAMETER = 20


def block_parameters(config: ModelConfig) -> int:
    """N_ne: the matrices of all blocks, 12 width^2 each."""
    return config.num_layers * (4 * config.width**2 + 2 * config.width * config.mlp_width)


def total_parameters(config: ModelConfig) -> int:
    """N_tot: blocks, embedding and head, without gains."""
    return block_parameters(config) + 2 * config.vocab_size * config.width


def gain_parameters(config: ModelConfig) -> int:
    """The gains of all norms, which the paper's counts leave out."""
    return config.num_layers * (2 * config.width + 2 * config.head_dim) + config.width


def flops_per_token(config: ModelConfig, row_length: int) -> int:
    """Forward and backward, head and causal attention (half of the square) included."""
    matrices = block_parameters(config) + config.vocab_size * config.width
    return 6 * matrices + 6 * config.num_layers * row_length * config.width


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of one run."""

    block_parameters: int
    total_parameters: int
    gain_parameters: int
    tokens: int
    steps: int
    compute: int
    """6 N_ne D, the paper's C: what compute multipliers are about."""
    flops: int
    """What the hardware really has to do."""


def plan(config: ModelConfig, row_length: int = 2048, batch_tokens: int = BATCH_TOKENS) -> Plan:
    """The paper's recipe for a model of this shape."""
    if check_count("batch_tokens", batch_tokens) % check_count("row_length", row_length):
        raise ValueError(f"batch_tokens must hold whole rows of {row_length:,} tokens; got {batch_tokens:,}.")
    total = total_parameters(config)
    steps = round(TOKENS_PER_PARAMETER * total / batch_tokens)
    tokens = steps * batch_tokens
    return Plan(
        block_parameters=block_parameters(config),
        total_parameters=total,
        gain_parameters=gain_parameters(config),
        tokens=tokens,
        steps=steps,
        compute=6 * block_parameters(config) * tokens,
        flops=flops_per_token(config, row_length) * tokens,
    )
