"""Two matrices with GELU between them, the activation computed where a matrix product has its result at hand.

out = gelu(x up^T) down^T. On their own, GELU and its slope would each read and write the widest tensors of a model once
more. What is kept for the backward pass is not the product but the slope there, so that it only has to multiply.
"""

from typing import Any

import torch
from torch import Tensor

from lerope.model.kernels.products import (
    fake_copy,
    multiply,
    narrowed,
    only,
    returned_copy,
    rows,
    settings,
    weight_gradient,
)


def mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """gelu(x up^T) down^T, (..., width).

    Args:
        x: (..., width).
        up: (mlp_width, width), in the dtype of x or a wider one.
        down: (width, mlp_width), likewise.
    """
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (x, up, down))
    out: Tensor = fused_mlp(rows(x), up, down, keeps)[0]
    return out.view(*x.shape[:-1], out.shape[-1])


@torch.library.custom_op("lerope::fused_mlp", mutates_args=())
def fused_mlp(x: Tensor, up: Tensor, down: Tensor, keeps: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output (tokens, width), and for the backward pass GELU, its slopes (tokens, mlp_width) and copies of weights.

    Args:
        keeps: whether there will be a backward pass; slopes are empty otherwise.
    """
    from lerope.model.kernels import cute_products

    copies = [narrowed(weight, x) for weight in (up, down)]
    activated = x.new_empty(len(x), len(up))
    slopes = torch.empty_like(activated) if keeps else x.new_empty(0)
    # Where sums are short, the end of a tile takes longest: smaller tiles.
    how = settings(x, (128, 128) if x.shape[1] < 1024 else (128, 192))
    if keeps:
        cute_products.gelu_and_slope(x, copies[0].t(), out={"D": slopes, "activated": activated}, **how)
    else:
        cute_products.gelu(x, copies[0].t(), out={"activated": activated}, store_d=False, **how)
    out = multiply(activated, copies[1].t())
    return out, activated, slopes, returned_copy(copies[0], up), returned_copy(copies[1], down)


@torch.library.custom_op("lerope::fused_mlp_backward", mutates_args=())
def fused_mlp_backward(
    grad: Tensor, x: Tensor, activated: Tensor, slopes: Tensor, up: Tensor, down: Tensor, up_dtype: torch.dtype,
    down_dtype: torch.dtype, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, up and down, the latter two in their own dtypes; empty where they are not needed."""
    from lerope.model.kernels import cute_products

    x_grad, up_grad, down_grad = (grad.new_empty(0, dtype=dtype) for dtype in (grad.dtype, up_dtype, down_dtype))
    if needs[0] or needs[1]:
        hidden_grad = torch.empty_like(slopes)
        cute_products.scaled(grad, down, slopes, out={"D": hidden_grad}, **settings(x, (128, 192)))
        if needs[0]:
            x_grad = multiply(hidden_grad, up)
        if needs[1]:
            up_grad = weight_gradient(hidden_grad, x, up_dtype)
    if needs[2]:
        down_grad = weight_gradient(grad, activated, down_dtype)
    return x_grad, up_grad, down_grad


@fused_mlp.register_fake
def _(x: Tensor, up: Tensor, down: Tensor, keeps: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    activated = x.new_empty(len(x), len(up))
    slopes = torch.empty_like(activated) if keeps else x.new_empty(0)
    return x.new_empty(len(x), len(down)), activated, slopes, fake_copy(up, x), fake_copy(down, x)


@fused_mlp_backward.register_fake
def _(
    grad: Tensor, x: Tensor, activated: Tensor, slopes: Tensor, up: Tensor, down: Tensor, up_dtype: torch.dtype,
    down_dtype: torch.dtype, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    wanted = zip((x, up, down), (grad.dtype, up_dtype, down_dtype), needs, strict=True)
    x_grad, up_grad, down_grad = (grad.new_empty(t.shape if need else (0,), dtype=dtype) for t, dtype, need in wanted)
    return x_grad, up_grad, down_grad


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    x, up, down, _ = inputs
    _, activated, slopes, *copies = output
    weights = [copy if copy.numel() else weight for copy, weight in zip(copies, (up, down), strict=True)]
    ctx.save_for_backward(x, activated, slopes, *weights)
    ctx.dtypes = up.dtype, down.dtype


def _go_back(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 4
    needs = list(ctx.needs_input_grad[:3])
    return *only(needs, fused_mlp_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.dtypes, needs)), None


fused_mlp.register_autograd(_go_back, setup_context=_keep)
