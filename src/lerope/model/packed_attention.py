"""Attention over packed documents by the fastest causal kernels of torch, as one operator that compiles.

cuDNN's causal kernel is the fastest there is on a Hopper GPU, and knows no documents. Most rows of 2,048 tokens lie inside
one document, though. So it runs on all rows, and rows with several documents are computed again by FlashAttention,
which takes documents end to end; its results replace those of cuDNN, forwards and backwards.
"""

from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


class Packed:
    """Where documents lie in packed rows, known to the host, so that nothing waits for the device.

    Args:
        document_ids: (rows, length), on the CPU.
        device: where to attend.
        dense: cuDNN on all rows and FlashAttention on those with several documents, or FlashAttention on all.
    """

    __slots__ = ("counts", "dense", "rows", "starts")

    def __init__(self, document_ids: Tensor, device: torch.device | None, dense: bool):
        num_rows, length = document_ids.shape
        begins = torch.ones_like(document_ids, dtype=torch.bool)
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        several = begins.sum(1) > 1 if dense else torch.ones(num_rows, dtype=torch.bool)
        chosen = several.nonzero()[:, 0]
        starts = begins[chosen].flatten().nonzero()[:, 0]
        ends = torch.cat((starts[1:], torch.tensor([len(chosen) * length]))) if len(starts) else starts
        longest = int((ends - starts).max()) if len(starts) else 0
        self.dense = dense
        # Padded, so that shapes never change and nothing is compiled again; `counts` says how much is meant.
        self.rows = torch.zeros(num_rows, dtype=torch.int64)
        self.rows[: len(chosen)] = chosen
        self.starts = torch.full((num_rows * length + 1,), len(chosen) * length, dtype=torch.int32)
        self.starts[: len(starts)] = starts
        self.counts = torch.tensor([len(chosen), len(starts), longest])
        if device is not None and device.type == "cuda":
            self.rows, self.starts = (
                t.pin_memory().to(device, non_blocking=True) for t in (self.rows, self.starts)
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k / sqrt(head_dim)) v over the tokens each query may see."""
        if q.dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"backends varlen and cudnn need bfloat16 or float16; got {q.dtype}, use flex.")
        out: Tensor = packed_attention(q, k, v, self.rows, self.starts, self.counts, self.dense)[0]
        return out


@torch.library.custom_op("lerope::packed_attention", mutates_args=())
def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, starts: Tensor, counts: Tensor, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of (rows, length, heads, head_dim), and the logsumexp of both kernels for the backward pass.

    Args:
        rows: which rows FlashAttention takes, the first counts[0] of them.
        starts: where documents start among the tokens of these rows, counts[1] of them and the end.
        counts: on the CPU: number of rows, number of documents, tokens of the longest.
        dense: whether cuDNN takes all rows first.
    """
    num_rows, length, heads, _ = q.shape
    sums = q.new_empty((num_rows, heads, length, 1) if dense else 0, dtype=torch.float32)
    packed_sums = q.new_empty(heads * num_rows * length, dtype=torch.float32)
    out = None
    if dense:
        found = _aten._scaled_dot_product_cudnn_attention(*_heads_first(q, k, v), None, True, 0.0, True)
        out, sums = found[0].transpose(1, 2).contiguous(), found[1].reshape(sums.shape).contiguous()
    if int(counts[0]):
        places = _places(rows, starts, counts)
        part, logsumexp, *_ = _aten._flash_attention_forward(*_packed((q, k, v), places[0]), *places[1:], 0.0, True, False)
        packed_sums[: logsumexp.numel()] = logsumexp.flatten()
        out = _replaced(out, part, places[0], q)
    assert out is not None
    return out, sums, packed_sums


@torch.library.custom_op("lerope::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    packed_sums: Tensor,
    rows: Tensor,
    starts: Tensor,
    counts: Tensor,
    dense: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    num_rows, length, heads, _ = q.shape
    grads: list[Tensor | None] = [None, None, None]
    unused = torch.zeros((), dtype=torch.int64, device=q.device)
    if dense:
        found = _aten._scaled_dot_product_cudnn_attention_backward(
            *_heads_first(grad, q, k, v, out), sums, unused, unused, None, None, None, length, length, 0.0, True
        )
        grads = [t.transpose(1, 2).contiguous() for t in found]
    if int(counts[0]):
        places = _places(rows, starts, counts)
        packed_rows = num_rows if places[0] is None else len(places[0])
        count = heads * packed_rows * length
        parts = _aten._flash_attention_backward(
            *_packed((grad, q, k, v, out), places[0]), packed_sums[:count].view(heads, -1), *places[1:], 0.0, True,
            unused, unused,
        )  # fmt: skip
        grads = [_replaced(whole, part, places[0], q) for whole, part in zip(grads, parts, strict=True)]
    dq, dk, dv = grads
    assert dq is not None and dk is not None and dv is not None
    return dq, dk, dv


def _heads_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.transpose(1, 2) for t in tensors)


def _places(rows: Tensor, starts: Tensor, counts: Tensor) -> tuple[Tensor | None, Tensor, Tensor, int, int]:
    """Which rows (None for all), where their documents start, twice, and how long the longest is, twice."""
    num_rows, num_documents, longest = counts.tolist()
    chosen = None if num_rows == len(rows) else rows[:num_rows]
    bounds = starts[: num_documents + 1]
    return chosen, bounds, bounds, longest, longest


def _packed(tensors: tuple[Tensor, ...], rows: Tensor | None) -> list[Tensor]:
    """Tokens of the chosen rows, end to end: (tokens, heads, head_dim)."""
    return [(t if rows is None else t[rows]).flatten(0, 1) for t in tensors]


def _replaced(whole: Tensor | None, part: Tensor, rows: Tensor | None, like: Tensor) -> Tensor:
    """The whole with the chosen rows replaced."""
    if rows is None or whole is None:
        return part.contiguous().view(like.shape)
    whole[rows] = part.view(-1, *like.shape[1:])
    return whole


@packed_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, starts: Tensor, counts: Tensor, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, length, heads, _ = q.shape
    sums = q.new_empty((num_rows, heads, length, 1) if dense else 0, dtype=torch.float32)
    return q.new_empty(q.shape), sums, q.new_empty(heads * num_rows * length, dtype=torch.float32)


@packed_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, packed_sums: Tensor, rows: Tensor,
    starts: Tensor, counts: Tensor, dense: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, rows, starts, counts, ctx.dense = inputs
    ctx.save_for_backward(q, k, v, *output, rows, starts, counts)


def _go_back(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, v, out, sums, packed_sums, rows, starts, counts = ctx.saved_tensors
    grads = packed_attention_backward(
        grad.contiguous(), q, k, v, out, sums, packed_sums, rows, starts, counts, ctx.dense
    )
    return (*grads, None, None, None, None)


packed_attention.register_autograd(_go_back, setup_context=_keep)
