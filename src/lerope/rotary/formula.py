"""The formula of the rotation in plain torch, with its gradients: what everything fast is tested against."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Elements the CPU works on at a time: the temporaries of one tile then stay in its cache.
_TILE_ELEMENTS = 1 << 19


def _split(x: Tensor, bands: int, half: bool) -> tuple[Tensor, Tensor]:
    """The first and the second coordinate of every band."""
    if half:
        return x[..., :bands], x[..., bands : 2 * bands]
    return x[..., 0 : 2 * bands : 2], x[..., 1 : 2 * bands : 2]


def _turned(x: Tensor, both: Tensor, sin: Tensor, half: bool, out: Tensor | None = None) -> Tensor:
    """R x, where R turns every band by its phase: the formula that everything fast is tested against.

    `both` holds the cosine of each dimension's band, and 1 for dimensions that do not turn.
    """
    out = torch.mul(x, both, out=out)
    (a, b), (out_a, out_b) = (_split(t, sin.shape[-1], half) for t in (x, out))
    out_a.addcmul_(b, sin, value=-1)
    out_b.addcmul_(a, sin)
    return out


def _torque(out: Tensor, grad: Tensor, cos: Tensor, half: bool) -> Tensor:
    """dL/dphase = grad . J out, summed down to the shape of the tables; it needs only the rotated output."""
    a, b = _split(out.to(cos.dtype), cos.shape[-1], half)
    grad_a, grad_b = _split(grad.to(cos.dtype), cos.shape[-1], half)
    return torch.addcmul(grad_b * a, grad_a, b, value=-1).sum_to_size(cos.shape)


def _tiles(x: Tensor, cos: Tensor, token_dim: int) -> list[tuple[int, int]]:
    """(start, number) of the tokens the CPU takes at a time; empty where all go at once."""
    length = x.shape[token_dim]
    eager_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if not eager_cpu or x.numel() <= _TILE_ELEMENTS or cos.shape[token_dim] != length:
        return []
    width = math.ceil(length * _TILE_ELEMENTS / x.numel())
    return [(start, min(width, length - start)) for start in range(0, length, width)]


class _Rotate(torch.autograd.Function):
    """x -> R x with gradients for x and for the frequencies behind cos and sin."""

    @staticmethod
    def forward(
        x: Tensor, frequencies: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor, half: bool, token_dim: int
    ) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = cos.to(wide), sin.to(wide)
        both = torch.cat((cos, cos), dim=-1) if half else cos.repeat_interleave(2, dim=-1)
        both = nn.functional.pad(both, (0, x.shape[-1] - both.shape[-1]), value=1.0)
        tiles = _tiles(x, cos, token_dim)
        if not tiles:
            out = _turned(x.to(wide), both, sin, half)
            # torch 2.11 silently compiles a forward that ends in a cast to its own dtype to gradients of zero.
            return out if wide == x.dtype else out.to(x.dtype)
        out = torch.empty_like(x)
        buffers = torch.empty((2, *x.narrow(token_dim, *tiles[0]).shape), dtype=wide) if wide != x.dtype else ()
        for tile in tiles:
            source, target, c, s = (t.narrow(token_dim, *tile) for t in (x, out, both, sin))
            if wide == x.dtype:
                _turned(source, c, s, half, out=target)
            else:
                wide_source, wide_target = (buffer.narrow(token_dim, 0, tile[1]) for buffer in buffers)
                target.copy_(_turned(wide_source.copy_(source), c, s, half, out=wide_target))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, frequencies, cos, sin, offsets, ctx.half, ctx.token_dim = inputs
        # Attention usually keeps the rotated output anyway, so learning the frequencies costs no memory.
        ctx.save_for_backward(frequencies, cos, sin, offsets, output if frequencies.requires_grad else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        frequencies, cos, sin, offsets, out = ctx.saved_tensors
        grad_x = grad_frequencies = None
        if ctx.needs_input_grad[0]:
            grad_x = turn(grad, frequencies, cos, -sin, -offsets, ctx.half, ctx.token_dim)
        if ctx.needs_input_grad[1]:
            dim, tiles = ctx.token_dim, _tiles(grad, cos, ctx.token_dim)
            parts = [[t.narrow(dim, *tile) for t in (out, grad, cos)] for tile in tiles] or [[out, grad, cos]]
            torque = torch.cat([_torque(o, g, c, ctx.half) for o, g, c in parts], dim=dim)
            grad_frequencies = (torque * offsets).sum_to_size(frequencies.shape)
        return grad_x, grad_frequencies, None, None, None, None, None


turn: Callable[..., Tensor] = _Rotate.apply
