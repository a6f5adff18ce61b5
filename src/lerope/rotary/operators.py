"""`torch.ops.lerope.rotary`: the fused kernels as an operator that autograd, torch.compile and fake tensors know."""

from typing import Any

import torch
from torch import Tensor

from lerope.rotary.triton_launch import Size, gradients, turn, turn_back


@torch.library.custom_op("lerope::rotary", mutates_args=())
def rotary(
    q: Tensor,
    k: Tensor | None,
    frequencies: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor | None,
    offsets: Tensor,
    half: bool,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Turns q and k, after an RMS norm where there are gains; returns new contiguous tensors, empty for a k of None.

    Args:
        q, k: (..., length, heads, head_dim), of any strides.
        frequencies: (bands,) or (key heads, bands); only their gradient passes through here.
        cos, sin: float32 tables, (entries, 1 or key heads, bands).
        index: each token's entry in the tables; without it token t has entry t modulo the number of entries.
        offsets: float32 factors of each token's share in the gradient of the frequencies: its position from any origin
            of its document. One per token, or one per entry.
        half: the layout.
        q_gain, k_gain: (head_dim,) each, or None for no norm.
        eps: the norm's.
    """
    q_out, k_out = turn(q, k, cos, sin, index, half, q_gain, k_gain, eps)
    return q_out, torch.empty(0, dtype=q.dtype, device=q.device) if k is None else k_out


@torch.library.custom_op("lerope::rotary_backward", mutates_args=())
def rotary_backward(
    q_grad: Tensor,
    k_grad: Tensor | None,
    q_saved: Tensor | None,
    k_saved: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    index: Tensor | None,
    offsets: Tensor,
    half: bool,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    eps: float,
    learn: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q and k, and sums from which `gradients` makes those of frequencies and gains.

    `saved` is the input where there is a norm, else the output, then needed only to `learn` frequencies.
    """
    if not learn and q_gain is None:
        q_out, k_out = turn(q_grad, k_grad, cos, sin, index, half, None, None, eps, back=True)
        return q_out, q_grad.new_empty(0) if k_grad is None else k_out, cos.new_empty(1 if k_grad is None else 2, 0)
    q_out = torch.empty(q_grad.shape, dtype=q_grad.dtype, device=q_grad.device)
    k_out = torch.empty(0 if k_grad is None else k_grad.shape, dtype=q_grad.dtype, device=q_grad.device)
    sums = turn_back(
        q_grad, k_grad, q_saved, k_saved, q_out, q_out if k_grad is None else k_out, cos, sin, index, offsets, half,
        q_gain, k_gain, eps, learn,
    )  # fmt: skip
    return q_out, k_out, sums


@rotary.register_fake
def _(
    q: Tensor, k: Tensor | None, frequencies: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None,
    offsets: Tensor, half: bool, q_gain: Tensor | None, k_gain: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), q.new_empty(0) if k is None else k.new_empty(k.shape)


@rotary_backward.register_fake
def _(
    q_grad: Tensor, k_grad: Tensor | None, q_saved: Tensor | None, k_saved: Tensor | None, cos: Tensor, sin: Tensor,
    index: Tensor | None, offsets: Tensor, half: bool, q_gain: Tensor | None, k_gain: Tensor | None, eps: float,
    learn: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    size = Size(q_grad, k_grad, cos, index, half, q_gain)
    k = q_grad.new_empty(0) if k_grad is None else k_grad.new_empty(k_grad.shape)
    return q_grad.new_empty(q_grad.shape), k, cos.new_empty(len(size.parts), size.columns(learn))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, frequencies, cos, sin, index, offsets, ctx.half, q_gain, k_gain, ctx.eps = inputs
    ctx.learn, ctx.has_k, ctx.shape = frequencies.requires_grad, k is not None, frequencies.shape
    saved: tuple[Tensor | None, Tensor | None] = (None, None)
    if q_gain is not None:
        saved = (q, k)
    elif ctx.learn:
        # Attention usually keeps the rotated output anyway, so learning the frequencies costs no memory.
        saved = (output[0], output[1] if k is not None else None)
    ctx.save_for_backward(*saved, cos, sin, index, offsets, q_gain, k_gain)


def _turn_back(ctx: Any, q_grad: Tensor, k_grad: Tensor) -> tuple[Any, ...]:
    q_saved, k_saved, cos, sin, index, offsets, q_gain, k_gain = ctx.saved_tensors
    second = k_grad if ctx.has_k else None
    q, k, sums = rotary_backward(
        q_grad, second, q_saved, k_saved, cos, sin, index, offsets, ctx.half, q_gain, k_gain, ctx.eps, ctx.learn
    )
    frequencies, *gain_grads = gradients(sums, Size(q_grad, second, cos, index, ctx.half, q_gain), ctx.learn)
    if frequencies is not None:
        frequencies = frequencies.view(ctx.shape)
    of_gains = [
        None if grad is None else grad.to(gain.dtype) for gain, grad in zip((q_gain, k_gain), gain_grads, strict=True)
    ]
    return q, k if ctx.has_k else None, frequencies, None, None, None, None, None, *of_gains, None


rotary.register_autograd(_turn_back, setup_context=_keep)
