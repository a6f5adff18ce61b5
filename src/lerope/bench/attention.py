"""Attention of one layer with document masks, against the best causal kernel, which ignores documents."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lerope.bench.bench import Bench
from lerope.bench.timing import Candidate, Parts, free
from lerope.core.ladder import ModelConfig
from lerope.model.attention import BACKENDS, Backend, DocumentMask
from lerope.model.kernels.fastest import fastest
from lerope.results import AttentionTime

FORWARD, BOTH = "forward", "forward + backward"
CUDNN = "cuDNN causal"
YARDSTICKS = {CUDNN: SDPBackend.CUDNN_ATTENTION, "flash causal": SDPBackend.FLASH_ATTENTION}


def attention_flops(part: str, num_rows: int, num_heads: int, row_length: int, head_dim: int) -> float:
    """Two products over half a square forward, and twice that backward; recomputed scores do not count."""
    forward = 2.0 * num_rows * num_heads * row_length**2 * head_dim
    return forward if part == FORWARD else 3 * forward


def measure(bench: Bench) -> Iterator[AttentionTime]:
    """Every backend on the rows of each rung's step."""
    for name, config in bench.models.items():
        bench.watch.signals.check()
        yield from _measured(bench, name, config)
        free(bench.device)


def _measured(bench: Bench, rung: str, config: ModelConfig) -> list[AttentionTime]:
    length = bench.sizes.row_length
    num_rows = bench.batch_tokens(config) // length
    batch = bench.documents.batch(config.vocab_size, length, num_rows)
    document_ids = torch.from_numpy(batch.document_ids)
    shape = (num_rows, length, config.num_heads, config.head_dim)
    q, k, v = (bench.random(*shape).requires_grad_() for _ in range(3))
    upstream = bench.random(*shape)
    masked = {str(name): partial(_masked, document_ids, name, q, k, v, upstream) for name in BACKENDS}
    causal = {name: partial(_causal, backend, q, k, v, upstream) for name, backend in YARDSTICKS.items()}
    candidates = [Candidate(name, build) for name, build in {**masked, **causal}.items()]
    found = bench.watch.measure(f"attention of {rung}", candidates, (FORWARD, BOTH))
    chosen = _chosen(bench, document_ids, config)
    rows: list[AttentionTime] = []
    for part in (FORWARD, BOTH):
        yardstick = found[CUDNN, part].median
        flops = attention_flops(part, num_rows, config.num_heads, length, config.head_dim)
        for name in [*masked, *causal]:
            times = found[name, part]
            seconds = times.median
            rows.append(
                {
                    "rung": rung,
                    "num_rows": num_rows,
                    "row_length": length,
                    "num_heads": config.num_heads,
                    "num_documents": int((batch.positions == 0).sum()),
                    "name": name,
                    "masked": name not in causal,
                    "chosen": name == chosen,
                    "part": part,
                    "flops": flops,
                    "flops_per_second": None if seconds is None else flops / seconds,
                    "over_cudnn": None if seconds is None or yardstick is None else seconds / yardstick,
                    **times.timing,
                }
            )
    return rows


def _chosen(bench: Bench, document_ids: Tensor, config: ModelConfig) -> str | None:
    """What the trainer uses if no backend is named."""
    try:
        return fastest(document_ids, config.num_heads, config.head_dim, bench.dtype, bench.device)
    except RuntimeError:  # none can run, and the rows say why
        return None


def _masked(document_ids: Tensor, backend: Backend, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> Parts:
    mask = DocumentMask(document_ids.to(q.device), backend)

    def attend() -> Tensor:
        return mask.attend(q, k, v)

    return {FORWARD: [attend], BOTH: [lambda: torch.autograd.grad(attend(), (q, k, v), upstream)]}


def _causal(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> Parts:
    def attend() -> Tensor:
        with sdpa_kernel(backend):
            views = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
            return functional.scaled_dot_product_attention(*views, is_causal=True).transpose(1, 2)

    return {FORWARD: [attend], BOTH: [lambda: torch.autograd.grad(attend(), (q, k, v), upstream)]}
