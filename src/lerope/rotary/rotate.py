"""Rotation as functions of tensors, for those who keep frequencies themselves; shapes as in `rotation`."""

import torch
from torch import Tensor

from lerope.core.checks import check_choice, check_rotary_dim
from lerope.core.encoding import Layout
from lerope.core.recipe import Kernel
from lerope.rotary.frequencies import check_frequencies, widest
from lerope.rotary.inputs import as_positions, check_heads, heads_last
from lerope.rotary.rotation import Rotation


def rotate(
    x: Tensor,
    positions: Tensor | int,
    frequencies: Tensor,
    layout: Layout = "half",
    rotary_dim: int | None = None,
    kernel: Kernel = "auto",
    heads_first: bool | None = None,
    axes: int = 1,
) -> Tensor:
    """Turns band m of every head of `x` by positions * frequencies[m].

    Args:
        x: (..., length, heads, head_dim), any floating dtype; the result has the same.
        positions: integers that broadcast to (..., length), or one integer: the position of the first token.
        frequencies: radians per token, float32 or float64; differentiable. (bands,), (heads, bands), or three and more
            dimensions that broadcast to (..., length, heads, bands), for example one set per document.
        layout: which dimensions make band m: m and m + rotary_dim / 2 (half), or 2m and 2m + 1 (interleaved).
        rotary_dim: turn only the first `rotary_dim` dimensions of each head. This is the prefix-partial rotary of
            GPT-NeoX and Phi; p-RoPE instead spans the whole head and gives slow bands frequency zero.
        kernel: the fused Triton kernel where it can run (auto), that kernel or an error (triton), or plain torch.
        heads_first: whether x is (..., heads, length, head_dim) instead; must be said only where one integer is the
            position and x might be one token of several heads or several tokens of one head, and should be where there
            may be as many tokens as heads, which warns.
        axes: of positions, which are then (..., length, axes); bands are dealt out evenly among them, in blocks.
    """
    # On a GPU, looking at the values would stall the queue; in a compiled graph it would break the graph.
    look = getattr(frequencies, "device", None) == torch.device("cpu") and not torch.compiler.is_compiling()
    check_frequencies(frequencies, look)
    x = heads_last("x", x, heads_first)
    turned = _rotation(x, positions, frequencies, layout, rotary_dim, kernel, heads_first, axes).turn(x)
    return turned.transpose(-3, -2) if heads_first else turned


def rerotate(
    k: Tensor, positions: Tensor | int, old: Tensor, new: Tensor, layout: Layout = "half", rotary_dim: int | None = None
) -> Tensor:
    """Moves keys that were rotated with frequencies `old` to `new`, for caches that outlive a change of frequencies.

    Both phases are rounded to float32 as `rotate` does and subtracted in float64 (where the device has it), so that
    rerotate(rotate(k, p, old), p, old, new) is rotate(k, p, new) up to the rounding of k. No gradient for frequencies.
    """
    old, new = check_frequencies(old).detach(), check_frequencies(new).detach()
    if old.shape[-1] != new.shape[-1]:
        raise ValueError(f"old and new must have the same number of bands; got {old.shape[-1]} and {new.shape[-1]}.")
    rotation = _rotation(k, positions, new, layout, rotary_dim, "reference", heads_first=False)
    positions = as_positions(positions, [k], heads_first=False)
    phases = [(positions[..., None, None].to(values.dtype) * values).to(widest(values.device)) for values in (new, old)]
    change = phases[0] - phases[1]
    rotation.cos, rotation.sin = change.cos().to(new.dtype), change.sin().to(new.dtype)
    return rotation.turn(k)


def permute_layout(
    weight: Tensor, head_dim: int, target: Layout, rotary_dim: int | None = None, dim: int = 0
) -> Tensor:
    """Reorders a query or key projection, its bias, or a QK-norm gain from the other layout to `target`.

    A model whose W_q, W_k and QK gains are all permuted computes the same logits in the other layout. Dimension `dim`
    is the projection's output and holds whole heads; a gain of length head_dim counts as one.
    """
    check_choice("target", target, Layout)
    rotary_dim = check_rotary_dim(head_dim, rotary_dim)
    if not isinstance(weight, Tensor) or not -weight.ndim <= dim < weight.ndim or weight.shape[dim] % head_dim:
        got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"weight must hold whole heads of head_dim = {head_dim} in dimension {dim}; got {got}.")
    order = torch.arange(rotary_dim, device=weight.device)
    order = (order.view(2, -1) if target == "interleaved" else order.view(-1, 2)).t().flatten()
    order = torch.cat((order, torch.arange(rotary_dim, head_dim, device=weight.device)))
    heads = torch.arange(0, weight.shape[dim], head_dim, device=weight.device)
    return weight.index_select(dim, (heads[:, None] + order).flatten())


def _rotation(
    x: Tensor,
    positions: Tensor | int,
    frequencies: Tensor,
    layout: Layout,
    rotary_dim: int | None,
    kernel: Kernel,
    heads_first: bool | None,
    axes: int = 1,
) -> Rotation:
    """The rotation of x, (..., length, heads, head_dim), whatever order it came in."""
    rotary_dim = check_rotary_dim(check_heads("x", x).shape[-1], rotary_dim)
    if 2 * frequencies.shape[-1] != rotary_dim:
        raise ValueError(
            f"frequencies must have {rotary_dim // 2} bands to turn {rotary_dim} dimensions of each head; "
            f"got {frequencies.shape[-1]}. To turn only the first dimensions, pass rotary_dim."
        )
    return Rotation(
        as_positions(positions, [x], heads_first), frequencies, layout, x.shape[-1], kernel=kernel, axes=axes
    )
