"""Other libraries, called as intended; one that is not installed raises, which becomes a note."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lerope.bench.timing import Call, Parts

LIGER = "Liger"
FLASH = "flash-attn"
LEARNED = "rotary-embedding-torch"
LIGER_HEAD = "Liger"


def parts(
    turn: Callable[..., Sequence[Tensor]], sets: list[list[Tensor]], leaves: list[Tensor], compiles: bool = False
) -> Parts:
    """Forward, and backward alone: its graph is built once and kept.

    Args:
        turn: inputs to outputs.
        sets: inputs that need gradients, one list per set.
        leaves: other tensors that need gradients.
        compiles: run each backward pass now, while its compilation settings are in place.
    """
    return {
        "forward": [partial(turn, *inputs) for inputs in sets],
        "backward": [_backward(turn, inputs, leaves, compiles) for inputs in sets],
    }


def _backward(turn: Callable[..., Sequence[Tensor]], inputs: list[Tensor], leaves: list[Tensor], now: bool) -> Call:
    outputs = list(turn(*inputs))
    upstream = [torch.randn_like(out) for out in outputs]

    def call() -> object:
        return torch.autograd.grad(outputs, [*inputs, *leaves], upstream, retain_graph=True)

    if now:
        call()
    return call


def _tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(length, bands)"""
    phases = positions[:, None] * frequencies.detach()
    return phases.cos().to(dtype), phases.sin().to(dtype)


def liger_rotary(sets: list[list[Tensor]], positions: Tensor, frequencies: Tensor) -> Parts:
    """Liger's kernel works in place on (rows, length, heads, head_dim) behind views of (rows, heads, length, ...)."""
    apply: Any = import_module("liger_kernel.ops.rope").LigerRopeFunction.apply

    cos, sin = _tables(positions, frequencies, sets[0][0].dtype)
    cos, sin = (torch.cat((table, table), -1)[None] for table in (cos, sin))
    own = [[x.detach().clone().transpose(1, 2).requires_grad_() for x in inputs] for inputs in sets]
    # Some versions return the tables as well.
    return parts(lambda q, k: apply(q, k, cos, sin)[:2], own, [])


def flash_rotary(sets: list[list[Tensor]], positions: Tensor, frequencies: Tensor) -> Parts:
    """flash-attn's kernel, out of place; backward is the same kernel in reverse."""
    apply_rotary: Any = import_module("flash_attn.ops.triton.rotary").apply_rotary

    cos, sin = _tables(positions, frequencies, sets[0][0].dtype)

    def turned(tensors: list[Tensor], back: bool) -> list[Tensor]:
        return [apply_rotary(x.detach(), cos, sin, conjugate=back) for x in tensors]

    upstream = [[torch.randn_like(x) for x in inputs] for inputs in sets]
    return {
        "forward": [partial(turned, inputs, False) for inputs in sets],
        "backward": [partial(turned, grads, True) for grads in upstream],
    }


def rotary_embedding_torch(sets: list[list[Tensor]]) -> Parts:
    """In its own layout, (rows, heads, length, head_dim)."""
    kind: Any = import_module("rotary_embedding_torch").RotaryEmbedding
    own = [[x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs] for inputs in sets]
    first = own[0][0]
    module = kind(dim=first.shape[-1], learned_freq=True).to(first.device)
    return parts(lambda *xs: [module.rotate_queries_or_keys(x) for x in xs], own, [module.freqs])


def liger_head(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean loss; all in autocast's dtype, which its kernels do not choose themselves."""
    module: Any = import_module("liger_kernel.ops.fused_linear_cross_entropy")
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    found = module.LigerFusedLinearCrossEntropyFunction.apply(x, weight, targets)
    loss: Tensor = found[0] if isinstance(found, tuple) else found
    return loss
