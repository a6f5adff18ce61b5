"""Residual addition and RMS norm in one kernel, forwards and backwards.

total = x + branch, out = total / sqrt(mean(total^2) + eps) * gain. The backward kernel adds what comes back along the
residual stream, and writes the gradient in the dtypes of both x and branch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lerope.rotary.triton_launch import add_rows

# Programs that share the rows of a backward pass; fixed, so that sums are the same on every device.
_BACKWARD_PROGRAMS = 528
# Iterations of it that are in flight at once.
_STAGES = 3


@triton.jit
def _forward(
    x, branch, gain, total, out, scales, num_rows, eps,
    ADD: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, PADDED)[None, :]
    keep = (row < num_rows) & (column < WIDTH)
    place = row.to(tl.int64) * WIDTH + column
    value = tl.load(x + place, mask=keep, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(branch + place, mask=keep, other=0.0).to(tl.float32)
    # The norm reads what is stored, so that the backward pass sees the same.
    stored = value.to(total.dtype.element_ty)
    tl.store(total + place, stored, mask=keep)
    value = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) * (1.0 / WIDTH) + eps)
    weight = tl.load(gain + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + place, (value * scale * weight).to(out.dtype.element_ty), mask=keep)
    tl.store(scales + row, scale, mask=row < num_rows)


@triton.jit
def _backward(
    grad, stream, total, gain, scales, x_grad, branch_grad, sums, num_rows,
    ADD: tl.constexpr, TWO: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, PADDED)[None, :]
    weight = tl.load(gain + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    of_gain = tl.zeros((ROWS, PADDED), tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS))[:, None]
        keep = (row < num_rows) & (column < WIDTH)
        place = row.to(tl.int64) * WIDTH + column
        slope = tl.load(grad + place, mask=keep, other=0.0).to(tl.float32)
        value = tl.load(total + place, mask=keep, other=0.0).to(tl.float32)
        if ADD:
            back = tl.load(stream + place, mask=keep, other=0.0).to(tl.float32)
        else:
            back = tl.zeros((ROWS, PADDED), tl.float32)
        scale = tl.load(scales + row, mask=row < num_rows, other=0.0)
        value *= scale
        of_gain += slope * value
        slope *= weight
        along = tl.sum(slope * value, axis=1, keep_dims=True) * (1.0 / WIDTH)
        back += (slope - value * along) * scale
        tl.store(x_grad + place, back.to(x_grad.dtype.element_ty), mask=keep)
        if TWO:
            tl.store(branch_grad + place, back.to(branch_grad.dtype.element_ty), mask=keep)
    column = tl.arange(0, PADDED)
    tl.store(sums + tl.program_id(0) * WIDTH + column, tl.sum(of_gain, axis=0), mask=column < WIDTH)


@torch.library.custom_op("lerope::add_norm", mutates_args=())
def add_norm(x: Tensor, branch: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x + branch in x's dtype, its norm in branch's dtype, what each row was multiplied by).

    Args:
        branch: None adds nothing; the norm is then in x's dtype.
    """
    x = x.contiguous()
    branch = None if branch is None else branch.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x if branch is None else branch)
    width = x.shape[-1]
    num_rows = x.numel() // width
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    rows, num_warps = tile(width)
    _forward[(triton.cdiv(num_rows, rows),)](
        x, x if branch is None else branch, gain, total, out, scales, num_rows, eps, ADD=branch is not None,
        WIDTH=width, PADDED=triton.next_power_of_2(width), ROWS=rows, num_warps=num_warps,
    )  # fmt: skip
    return total, out, scales


@torch.library.custom_op("lerope::add_norm_backward", mutates_args=())
def add_norm_backward(
    grad: Tensor, stream: Tensor | None, total: Tensor, gain: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of branch (empty if it has x's dtype: then they are the same) and of the gain.

    Args:
        stream: the gradient of the sum; None if nothing read it.
    """
    grad = grad.contiguous()
    stream = None if stream is None else stream.contiguous()
    two = grad.dtype != total.dtype
    x_grad = torch.empty_like(total)
    branch_grad = torch.empty_like(grad) if two else grad.new_empty(0)
    width = total.shape[-1]
    num_rows = total.numel() // width
    rows, num_warps = tile(width)
    programs = max(1, min(_BACKWARD_PROGRAMS, triton.cdiv(num_rows, rows)))
    sums = torch.empty(programs, width, dtype=torch.float32, device=total.device)
    _backward[(programs,)](
        grad, total if stream is None else stream, total, gain, scales, x_grad, branch_grad if two else x_grad, sums,
        num_rows, ADD=stream is not None, TWO=two, WIDTH=width, PADDED=triton.next_power_of_2(width), ROWS=rows,
        STAGES=_STAGES, num_warps=num_warps,
    )  # fmt: skip
    return x_grad, branch_grad, add_rows(sums)[0]


def tile(width: int) -> tuple[int, int]:
    """Rows a program takes at a time and its warps; measured on an H200."""
    padded = triton.next_power_of_2(width)
    rows = max(1, 1024 // padded)
    return rows, max(1, min(16, rows * padded // 512))


@add_norm.register_fake
def _(x: Tensor, branch: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    scales = x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)
    return x.new_empty(x.shape), (x if branch is None else branch).new_empty(x.shape), scales


@add_norm_backward.register_fake
def _(
    grad: Tensor, stream: Tensor | None, total: Tensor, gain: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    branch = grad.new_empty(grad.shape if grad.dtype != total.dtype else 0)
    return total.new_empty(total.shape), branch, total.new_empty(total.shape[-1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    _, branch, gain, _ = inputs
    total, _, scales = output
    ctx.save_for_backward(total, gain, scales)
    ctx.adds, ctx.dtype = branch is not None, output[1].dtype


def _go_back(ctx: Any, stream: Tensor | None, grad: Tensor | None, _: Any) -> tuple[Any, ...]:
    total, gain, scales = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(total, dtype=ctx.dtype)
    x, branch, of_gain = add_norm_backward(grad, stream, total, gain, scales)
    of_branch = branch if branch.numel() else x
    return x, of_branch if ctx.adds else None, of_gain.to(gain.dtype), None


add_norm.register_autograd(_go_back, setup_context=_keep)
