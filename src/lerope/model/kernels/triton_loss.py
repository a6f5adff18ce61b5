"""Softmax cross-entropy of logits and its gradient in one kernel, which writes the gradient over the logits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Logits a program holds at a time; measured on an H200.
_BLOCK = 16384
_WARPS = 16


@triton.jit
def _cross_entropy(
    logits, targets, losses, row_stride, num_logits, z_weight,
    GRADIENT: tl.constexpr, HAS_Z: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: the logsumexp in float32, the loss, then the gradient in place."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * row_stride
    target = tl.load(targets + row)
    column = tl.arange(0, BLOCK)
    log2e = 1.4426950408889634
    greatest = float("-inf")
    total = 0.0
    for first in range(0, num_logits, BLOCK):
        x = tl.load(start + first + column, mask=first + column < num_logits, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(greatest, tl.max(x, axis=0))
        total *= tl.exp2((greatest - higher) * log2e)
        total += tl.sum(tl.exp2(x * log2e - higher * log2e), axis=0)
        greatest = higher
    logsumexp = greatest + tl.log(total)
    counts = (target >= 0) & (target < num_logits)
    found = tl.load(start + target, mask=counts, other=0.0).to(tl.float32)
    loss = logsumexp - found
    factor = tl.where(counts, 1.0, 0.0)
    if HAS_Z:
        loss += z_weight * logsumexp * logsumexp
        factor *= 1.0 + 2.0 * z_weight * logsumexp
    # A target beyond the vocabulary has no meaningful loss.
    tl.store(losses + row, tl.where(counts, loss, tl.where(target < 0, 0.0, float("nan"))))
    if GRADIENT:
        shift = logsumexp * log2e
        if not HAS_Z:
            # e^-inf = 0 makes the row of a target that does not count vanish without a product for each logit.
            shift = tl.where(counts, shift, float("inf"))
        # Every thread must have read the target's logit before it is written over.
        tl.debug_barrier()
        for first in range(0, num_logits, BLOCK):
            inside = first + column < num_logits
            x = tl.load(start + first + column, mask=inside, other=0.0).to(tl.float32)
            slope = tl.exp2(x * log2e - shift)
            if HAS_Z:
                slope *= factor
            tl.store(start + first + column, slope.to(logits.dtype.element_ty), mask=inside)
        tl.debug_barrier()
        slope = tl.exp2(found * log2e - shift)
        if HAS_Z:
            slope *= factor
        tl.store(start + target, (slope - 1.0).to(logits.dtype.element_ty), mask=counts)


def cross_entropy_(logits: Tensor, targets: Tensor, z_weight: float, gradient: bool) -> Tensor:
    """The loss of each row, float32; afterwards `logits` hold the gradient of their sum if requested.

    Args:
        logits: (rows, vocab_size).
        targets: (rows,); the rows of negative ones have no loss and no gradient.
        z_weight: adds this times the squared logsumexp to each loss.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _cross_entropy[(len(logits),)](
        logits, targets, losses, logits.stride(0), logits.shape[1], z_weight, GRADIENT=gradient,
        HAS_Z=z_weight != 0, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return losses


@triton.jit
def _scale(x, factor, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < count, other=0.0).to(tl.float32) * tl.load(factor).to(tl.float32)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=place < count)


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """x times a number on the device; torch's own product of such a pair reads and writes one element at a time."""
    out = torch.empty_like(x)
    _scale[(triton.cdiv(x.numel(), 2048),)](x, factor, out, x.numel(), BLOCK=2048, num_warps=4)
    return out
