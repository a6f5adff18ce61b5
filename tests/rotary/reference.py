"""Slow float64 references, written from the paper's equations without any code of the library."""

import math

import torch
from torch import Tensor


def series(head_dim: int, base: float) -> Tensor:
    return torch.tensor([base ** (-2 * m / head_dim) for m in range(head_dim // 2)], dtype=torch.float64)


def rotated(x: Tensor, positions: Tensor, frequencies: Tensor, layout: str = "half") -> Tensor:
    """R_s x in float64, one explicit 2 x 2 matrix per token, head and band; keeps the graph.

    x (..., length, heads, head_dim), positions broadcastable to (..., length), frequencies broadcastable to
    (..., length, heads, bands). Dimensions past 2 * bands stay.
    """
    x = x.double()
    bands = frequencies.shape[-1]
    phases = positions.double()[..., None, None] * frequencies.double()
    matrix = torch.stack((phases.cos(), -phases.sin(), phases.sin(), phases.cos()), -1).unflatten(-1, (2, 2))
    if layout == "half":
        pairs = torch.stack((x[..., :bands], x[..., bands : 2 * bands]), -1)
    else:
        pairs = x[..., : 2 * bands].unflatten(-1, (bands, 2))
    turned = (matrix @ pairs[..., None]).squeeze(-1)
    flat = turned.transpose(-1, -2).flatten(-2) if layout == "half" else turned.flatten(-2)
    return torch.cat((flat, x[..., 2 * bands :]), -1)


def angle_error(actual: Tensor, expected: Tensor) -> Tensor:
    """Distance of two angles on the circle."""
    return (actual - expected + math.pi).remainder(2 * math.pi) - math.pi


def measured_phases(encoding: torch.nn.Module, position: int) -> Tensor:
    """The phase by which an encoding really turns each band at a position, read off a rotated unit vector."""
    head_dim = encoding.head_dim
    half = head_dim // 2
    x = torch.zeros(1, 1, head_dim)
    x[..., :half] = 1
    with torch.no_grad():
        out, _ = encoding(x, None, torch.tensor([position]))
    out = out.double()[0, 0]
    return torch.atan2(out[half:], out[:half])


def attention_loss(q: Tensor, k: Tensor, target: Tensor) -> Tensor:
    """A loss that depends on q and k through causal attention alone; q and k (length, heads, head_dim)."""
    logits = torch.einsum("shd,thd->hst", q, k) / math.sqrt(q.shape[-1])
    mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights.to(target.dtype) @ target).square().sum()
