"""From the projection of queries, keys and values to attention's output in one operator: norm, rotation, attention.

What it saves over its parts: their backward passes write into one gradient of the whole projection, which autograd
would otherwise put together from three in another pass over memory.
"""

from typing import Any

import torch
from torch import Tensor

from lerope.model.kernels import packed_attention
from lerope.rotary import triton_launch
from lerope.rotary.rotation import Arguments


def attend(qkv: Tensor, rotation: Arguments, documents: packed_attention.Packed) -> Tensor:
    """Attention of normed and rotated queries and keys, (rows, length, heads, head_dim).

    Args:
        qkv: (rows, length, 3, heads, head_dim), contiguous.
        rotation: what `Rotation.fused` gave.
        documents: for FlashAttention 4.
    """
    packed_attention.check(qkv, 4)
    out: Tensor = fused_attention(qkv, *rotation, documents.starts)[0]
    return out


@torch.library.custom_op("lerope::fused_attention", mutates_args=())
def fused_attention(
    qkv: Tensor, frequencies: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, offsets: Tensor, half: bool,
    q_gain: Tensor | None, k_gain: Tensor | None, eps: float, starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention's output, and for the backward pass its logsumexp and the turned q and k."""
    q, k, v = qkv.unbind(2)
    q, k = triton_launch.turn(q, k, cos, sin, index, half, q_gain, k_gain, eps)
    out, sums = packed_attention.forward(q, k, v, starts, 4)
    return out, sums, q, k


@torch.library.custom_op("lerope::fused_attention_backward", mutates_args=())
def fused_attention_backward(
    grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, offsets: Tensor, half: bool,
    q_gain: Tensor | None, k_gain: Tensor | None, eps: float, starts: Tensor, out: Tensor, sums: Tensor, q: Tensor,
    k: Tensor, learn: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of qkv, and sums from which `triton_launch.gradients` makes those of frequencies and gains."""
    qkv_grad = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    q_grad, k_grad, v_grad = qkv_grad.unbind(2)
    packed_attention.backward_into(q_grad, k_grad, v_grad, grad, q, k, qkv[:, :, 2], out, sums, starts)
    saved = (q, k) if q_gain is None else (qkv[:, :, 0], qkv[:, :, 1])
    totals = triton_launch.turn_back(  # in place
        q_grad, k_grad, *saved, q_grad, k_grad, cos, sin, index, offsets, half, q_gain, k_gain, eps, learn
    )
    return qkv_grad, totals


@fused_attention.register_fake
def _(
    qkv: Tensor, frequencies: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, offsets: Tensor, half: bool,
    q_gain: Tensor | None, k_gain: Tensor | None, eps: float, starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows, length, _, heads, head_dim = qkv.shape
    out, q, k = (qkv.new_empty(rows, length, heads, head_dim) for _ in range(3))
    return out, qkv.new_empty(heads, rows * length, dtype=torch.float32), q, k


@fused_attention_backward.register_fake
def _(
    grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, index: Tensor | None, offsets: Tensor, half: bool,
    q_gain: Tensor | None, k_gain: Tensor | None, eps: float, starts: Tensor, out: Tensor, sums: Tensor, q: Tensor,
    k: Tensor, learn: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    size = triton_launch.Size(q, k, cos, index, half, q_gain)
    return qkv.new_empty(qkv.shape), cos.new_empty(2, size.columns(learn))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    qkv, frequencies, cos, sin, index, offsets, ctx.half, q_gain, k_gain, ctx.eps, starts = inputs
    ctx.learn, ctx.shape = frequencies.requires_grad, frequencies.shape
    ctx.save_for_backward(qkv, cos, sin, index, offsets, q_gain, k_gain, starts, *output)


def _go_back(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 11
    qkv, cos, sin, index, offsets, q_gain, k_gain, *rest = ctx.saved_tensors
    qkv_grad, sums = fused_attention_backward(
        grad.contiguous(), qkv, cos, sin, index, offsets, ctx.half, q_gain, k_gain, ctx.eps, *rest, ctx.learn
    )
    size = triton_launch.Size(rest[-2], rest[-1], cos, index, ctx.half, q_gain)
    frequencies, *gains = triton_launch.gradients(sums, size, ctx.learn)
    if frequencies is not None:
        frequencies = frequencies.view(ctx.shape)
    return qkv_grad, frequencies, None, None, None, None, None, *gains, None, None


fused_attention.register_autograd(_go_back, setup_context=_keep)
