"""Attention over documents that lie end to end, by FlashAttention 2 or 4, as operators that compile.

Both take a list of where documents start. It has a fixed number of slots, so that shapes stay the same from step to
step; leftover slots hold empty documents.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from lerope.model.kernels import packages

Version = Literal[2, 4]
"""Of FlashAttention: 2 is part of torch, 4 comes with the package flash-attn-4."""

_aten = torch.ops.aten
# Slots come in steps of this many, so that their number seldom changes.
_SLOTS = 64


class Packed:
    """Where documents lie in packed rows.

    Args:
        document_ids: (rows, length), on the device.
        version: which kernels to use.
        num_documents: an upper bound on the number of documents, which end with their row, if the host knows one; else
            the host waits while they are counted.
    """

    __slots__ = ("starts", "version")

    def __init__(self, document_ids: Tensor, version: Version, num_documents: int | None = None):
        begins = torch.ones_like(document_ids, dtype=torch.int64)
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        which = begins.flatten().cumsum(0)
        slots = num_slots(int(which[-1]) if num_documents is None else num_documents)
        # Left unchecked, one document too many would be written past the end.
        torch._assert_async(which[-1] <= slots, "num_documents must be at least the number of documents")
        counts = torch.zeros(slots + 1, dtype=torch.int64, device=document_ids.device)
        counts.scatter_add_(0, which, torch.ones_like(which))
        self.starts = counts.cumsum(0).to(torch.int32)
        torch._dynamo.maybe_mark_dynamic(self.starts, 0)  # or more slots would recompile a model
        self.version: Version = version

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k / sqrt(head_dim)) v over the tokens each query may see."""
        check(q, self.version)
        out: Tensor = flash_attention(q, k, v, self.starts, self.version)[0]
        return out


def check(x: Tensor, version: Version) -> None:
    """Raises unless these kernels take queries like x."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"backends varlen and flash4 need bfloat16 or float16; got {x.dtype}; use flex.")
    head_dim = x.shape[-1]
    if version == 4 and (head_dim % 8 or head_dim > 256):
        raise ValueError(f"backend flash4 needs a head_dim divisible by 8, up to 256; got {head_dim}; use flex.")


def num_slots(num_documents: int) -> int:
    """Slots for this many documents."""
    return -(-num_documents // _SLOTS) * _SLOTS


def flash_obstacle(version: Version, device: torch.device) -> str | None:
    """What keeps these kernels from running; None if nothing does."""
    if version == 2:
        return packages.gpu_obstacle(device, 8)
    if packages.version("flash-attn-4") is None:
        return "flash-attn-4 is not installed"
    return packages.gpu_obstacle(device) or packages.import_obstacle("flash-attn-4", "flash_attn.cute.interface")


@torch.library.custom_op("lerope::flash_attention", mutates_args=())
def flash_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, version: int) -> tuple[Tensor, Tensor]:
    """Attention of (rows, length, heads, head_dim) over documents, and the logsumexp for the backward pass.

    Args:
        q, k, v: may be views of one tensor.
        starts: the first token of each document, and where the last one ends.
        version: of FlashAttention.
    """
    return forward(q, k, v, starts, version)


def forward(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, version: int) -> tuple[Tensor, Tensor]:
    """What `flash_attention` gives."""
    length = q.shape[1]
    if version == 2:
        out, sums, *_ = _aten._flash_attention_forward(
            *_flat(q, k, v), starts, starts, length, length, 0.0, True, False
        )
    else:
        from flash_attn.cute.interface import _flash_attn_fwd

        out, sums, *_ = _flash_attn_fwd(*_flat(q, k, v), **_documents(starts, length), return_lse=True)
    return out.view(q.shape), sums


@torch.library.custom_op("lerope::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, starts: Tensor, version: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, contiguous."""
    if version == 4:
        dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
        backward_into(dq, dk, dv, grad, q, k, v, out, sums, starts)
        return dq, dk, dv
    length = q.shape[1]
    unused = torch.zeros((), dtype=torch.int64, device=q.device)
    grads = _aten._flash_attention_backward(
        *_flat(grad, q, k, v, out), sums, starts, starts, length, length, 0.0, True, unused, unused
    )
    dq, dk, dv = (each.contiguous().view(q.shape) for each in grads)
    return dq, dk, dv


def backward_into(
    dq: Tensor, dk: Tensor, dv: Tensor, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor,
    starts: Tensor,
) -> None:  # fmt: skip
    """Fills dq, dk and dv, which may be views of one tensor, by FlashAttention 4."""
    from flash_attn.cute.interface import _flash_attn_bwd

    own = dict(zip(("dq", "dk", "dv"), _flat(dq, dk, dv), strict=True))
    exact = torch.are_deterministic_algorithms_enabled()
    _flash_attn_bwd(*_flat(q, k, v, out, grad), sums, **_documents(starts, q.shape[1]), **own, deterministic=exact)


def _documents(starts: Tensor, length: int) -> dict[str, Any]:
    """What FlashAttention 4 needs to know about documents."""
    return {
        "causal": True,
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": length,
        "max_seqlen_k": length,
    }


def _flat(*tensors: Tensor) -> list[Tensor]:
    return [t.flatten(0, 1) for t in tensors]


@flash_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, version: int) -> tuple[Tensor, Tensor]:
    rows, length, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, rows * length), dtype=torch.float32)


@flash_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, starts: Tensor, version: int
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, starts, ctx.version = inputs
    ctx.save_for_backward(q, k, v, *output, starts)


def _go_back(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 5
    return (*flash_attention_backward(grad.contiguous(), *ctx.saved_tensors, ctx.version), None, None)


flash_attention.register_autograd(_go_back, setup_context=_keep)
