"""Softmax cross-entropy of logits and its gradient in one kernel, which writes the gradient over the logits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Logits a program holds at a time; measured on an H200.
_BLOCK = 8192
_WARPS = 8


@triton.jit
def _cross_entropy(logits, targets, losses, row_stride, num_logits, z_weight, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row: the logsumexp in float32, the loss, then the gradient in place."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * row_stride
    target = tl.load(targets + row)
    column = tl.arange(0, BLOCK)
    greatest = float("-inf")
    total = 0.0
    for first in range(0, num_logits, BLOCK):
        x = tl.load(start + first + column, mask=first + column < num_logits, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(greatest, tl.max(x, axis=0))
        total = total * tl.exp(greatest - higher) + tl.sum(tl.exp(x - higher), axis=0)
        greatest = higher
    logsumexp = greatest + tl.log(total)
    counts = target >= 0
    found = tl.load(start + tl.maximum(target, 0)).to(tl.float32)
    loss = logsumexp - found + z_weight * logsumexp * logsumexp
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    if GRADIENT:
        factor = tl.where(counts, 1.0 + 2.0 * z_weight * logsumexp, 0.0)
        # Every thread has to have read the target's logit before it is written over.
        tl.debug_barrier()
        for first in range(0, num_logits, BLOCK):
            inside = first + column < num_logits
            x = tl.load(start + first + column, mask=inside, other=float("-inf")).to(tl.float32)
            slope = tl.exp(x - logsumexp) * factor
            slope = tl.where(first + column == target, slope - 1.0, slope)
            tl.store(start + first + column, slope.to(logits.dtype.element_ty), mask=inside)


def cross_entropy_(logits: Tensor, targets: Tensor, z_weight: float, gradient: bool) -> Tensor:
    """The loss of each row, float32; afterwards `logits` hold the gradient of their sum where that is asked for.

    Args:
        logits: (rows, vocab_size).
        targets: (rows,); the rows of negative ones have no loss and no gradient.
        z_weight: adds this times the squared logsumexp to each loss.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _cross_entropy[(len(logits),)](
        logits, targets, losses, logits.stride(0), logits.shape[1], z_weight, GRADIENT=gradient, BLOCK=_BLOCK,
        num_warps=_WARPS,
    )  # fmt: skip
    return losses
