"""What a training run needs of a machine, before any of it is spent: memory and time.

Memory is counted tensor by tensor; tests hold the count against what autograd really keeps. Parameters, tokens and
FLOPs are counted in `lerope.core.ladder`.
"""

from dataclasses import dataclass

from lerope.core.checks import check_choice, check_count, check_number
from lerope.core.ladder import ModelConfig, block_parameters, gain_parameters, total_parameters
from lerope.core.recipe import Parallel, Precision

UTILISATION = 0.4
"""Assumed share of the vendor's dense bfloat16 peak. On one H200 a step of 52M reached 0.47 of it, of 217M 0.54."""

USABLE_MEMORY = 0.9
"""Share of a GPU's memory to plan with; the CUDA context, library workspaces and fragmentation take the rest."""

HEAD_CHUNK_LOGITS = 1 << 29
"""Logits that exist at once on a GPU; fewer where no kernel is fused, as each then takes several times as much."""

_FLOAT32, _BF16 = 4, 2


def run_seconds(flops: int, peak_flops: float, num_gpus: int = 1, utilisation: float = UTILISATION) -> float:
    """How long GPUs of this peak take, each at a `utilisation` of it."""
    if not 0 < check_number("utilisation", utilisation) <= 1:
        raise ValueError(f"utilisation must be a share of the peak, above 0 and at most 1; got {utilisation!r}.")
    return flops / (check_count("num_gpus", num_gpus) * peak_flops * utilisation)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one GPU at the worst moment of a step."""

    weights: int
    """Float32 masters."""
    gradients: int
    """Float32, and once more in DDP's buckets."""
    optimizer: int
    """AdamW's two moments, float32."""
    copies: int
    """Weights that autocast casts, and those that FSDP2 gathers."""
    activations: int
    """What autograd keeps of one micro-batch, and the gradients that flow through one block."""
    head: int
    """Logits of one chunk, and the head's gradient before it joins the others."""

    @property
    def total(self) -> int:
        """All parts."""
        return self.weights + self.gradients + self.optimizer + self.copies + self.activations + self.head


def memory_per_gpu(
    config: ModelConfig,
    row_length: int,
    rows: int,
    *,
    num_gpus: int = 1,
    gpus_per_node: int = 8,
    parallel: Parallel = "ddp",
    precision: Precision = "bf16",
    recompute: bool = False,
    compiled: bool = True,
) -> Memory:
    """An estimate of the memory that training takes on each GPU.

    Args:
        config: the model.
        row_length: tokens of a row.
        rows: rows of one micro-batch on one GPU.
        num_gpus: all GPUs of the run.
        gpus_per_node: how many of them share a node, or more than `num_gpus`.
        parallel: `ddp` holds everything everywhere, `fsdp` shards it over all GPUs, `hybrid` over those of a node.
        precision: bfloat16 autocast, or float32 throughout.
        recompute: keep only the inputs of blocks, and compute each block again in the backward pass.
        compiled: torch.compile or the kernels fuse norms; without either, norms keep their intermediate values.
    """
    tokens = check_count("rows", rows) * check_count("row_length", row_length)
    check_choice("precision", precision, Precision)
    num_shards = _num_shards(parallel, num_gpus, gpus_per_node)
    size = _BF16 if precision == "bf16" else _FLOAT32
    head_weights = config.vocab_size * config.width
    block_weights = block_parameters(config) // config.num_layers
    masters = _FLOAT32 * -(-(total_parameters(config) + gain_parameters(config)) // num_shards)
    # Autograd keeps the casts of all matrices for the way back, but only one block's if blocks are computed again and
    # autocast, which remembers its casts, works inside them. The embedding is looked up, not cast.
    again = recompute and compiled
    cast = head_weights + (block_weights if again else block_parameters(config))
    copies = _BF16 * cast if precision == "bf16" else 0
    if parallel != "ddp":
        # Gathered in float32: embedding and head, a block and the next one, and both gradients until reduced.
        copies += _FLOAT32 * (2 * head_weights + 4 * block_weights)
    # As the product writes them; the loss's kernel puts their gradient in their place.
    logits = min(tokens * config.vocab_size, HEAD_CHUNK_LOGITS) * size
    # The residual stream's gradient, and those before and after the activation, the widest of a block.
    flowing = tokens * size * (config.width + 2 * config.mlp_width)
    return Memory(
        weights=masters,
        gradients=masters,
        optimizer=2 * masters,
        copies=copies,
        activations=kept_bytes(config, tokens, precision, recompute, compiled) + flowing,
        head=logits + _FLOAT32 * head_weights,
    )


def kept_bytes(config: ModelConfig, tokens: int, precision: Precision, recompute: bool, compiled: bool) -> int:
    """What autograd keeps between forward and backward of `tokens` tokens, casts of weights aside."""
    size = _BF16 if precision == "bf16" else _FLOAT32
    block = sum(_kept_by_block(config, size, compiled).values())
    # The last norm: its input, its output while the head reads it, a statistic; then the output's gradient.
    outside = 2 * _norm_size(size, compiled) * config.width + _FLOAT32 + size * config.width
    # Cosines and sines, float32, which all layers share.
    outside += _FLOAT32 * config.head_dim
    if recompute:
        # The residual stream, and what the block before, if there is one, still has to add to it.
        return tokens * ((2 * config.num_layers - 1) * size * config.width + block + outside)
    return tokens * (config.num_layers * block + outside)


def _norm_size(size: int, compiled: bool) -> int:
    """Bytes of an element of the residual stream as a norm keeps it: as it is, or in the float32 it works in."""
    return size if compiled else _FLOAT32


def _kept_by_block(config: ModelConfig, size: int, compiled: bool) -> dict[str, int]:
    """Bytes per token, tensor by tensor; `size` is that of an element where autocast chooses the dtype."""
    width, mlp_width = config.width, config.mlp_width
    kept = {
        "residual stream, before attention": _norm_size(size, compiled) * width,
        "normed, input of qkv": size * width,
        "q, k, v": size * 3 * width,
        "rotated q, k": size * 2 * width,
        "attention's result, input of out": size * width,
        "residual stream, before the MLP": _norm_size(size, compiled) * width,
        "normed, input of up": size * width,
        "before the activation": size * mlp_width,
        "after the activation, input of down": size * mlp_width,
        "statistics: two norms, two for each head, logsumexp": _FLOAT32 * (2 + 3 * config.num_heads),
    }
    if not compiled:
        kept["residual stream, normalised but without gain, twice"] = _FLOAT32 * 2 * width
        kept["q, k, normalised but without gain"] = _FLOAT32 * 2 * width
        if size != _FLOAT32:
            kept["q, k, as the float32 that norms work in"] = _FLOAT32 * 2 * width
    return kept


def _num_shards(parallel: Parallel, num_gpus: int, gpus_per_node: int) -> int:
    """Parts that weights, gradients and moments are cut into."""
    check_choice("parallel", parallel, Parallel)
    check_nodes(num_gpus, gpus_per_node)
    return {"ddp": 1, "fsdp": num_gpus, "hybrid": min(num_gpus, gpus_per_node)}[parallel]


def check_nodes(num_gpus: int, gpus_per_node: int) -> int:
    """The number of nodes; raises unless the GPUs fill them or fit into one."""
    if check_count("num_gpus", num_gpus) <= check_count("gpus_per_node", gpus_per_node):
        return 1
    if num_gpus % gpus_per_node:
        raise ValueError(
            f"num_gpus must be a multiple of gpus_per_node = {gpus_per_node} or at most that; got {num_gpus}."
        )
    return num_gpus // gpus_per_node


def micro_batch_rows(
    config: ModelConfig,
    row_length: int,
    rows_per_rank: int,
    memory_bytes: int,
    *,
    num_gpus: int = 1,
    gpus_per_node: int = 8,
    parallel: Parallel = "ddp",
    precision: Precision = "bf16",
    recompute: bool = False,
    compiled: bool = True,
) -> int:
    """The most rows that go through the model at once: a divisor of `rows_per_rank` that fits into 90 % of the memory.

    For the arguments see memory_per_gpu.
    """
    for parts in range(1, check_count("rows_per_rank", rows_per_rank) + 1):
        if rows_per_rank % parts:
            continue
        rows = rows_per_rank // parts
        memory = memory_per_gpu(
            config,
            row_length,
            rows,
            num_gpus=num_gpus,
            gpus_per_node=gpus_per_node,
            parallel=parallel,
            precision=precision,
            recompute=recompute,
            compiled=compiled,
        )
        if memory.total <= USABLE_MEMORY * memory_bytes:
            return rows
    remedies = [] if recompute else ["activation checkpointing"]
    remedies += ["FSDP2" if parallel == "ddp" and num_gpus > 1 else "FSDP2 over more GPUs", "shorter rows"]
    raise ValueError(
        f"row_length must let a row fit into {100 * USABLE_MEMORY:.0f} % of the GPU's {memory_bytes / 2**30:.1f} GiB; "
        f"got {row_length:,} tokens, which take about {memory.total / 2**30:.1f} GiB, so use {' or '.join(remedies)}."
    )
