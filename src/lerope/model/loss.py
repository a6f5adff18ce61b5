"""Head and cross-entropy together, some tokens at a time: logits never all exist at once.

loss = sum over counted tokens of logsumexp(W h) - (W h)[target] + z_weight logsumexp(W h)^2
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lerope.model.precision import compute_dtype

# Logits in one chunk. Few enough to pass through the caches of a CPU, or to stay small next to a GPU's memory, of which
# the steps below need several times as much; enough to keep the matrix products efficient.
_CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}


class Head(nn.Linear):
    """The last layer: logits, or with targets the sum of their losses."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__(width, vocab_size, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None, z_weight: float = 0.0) -> Tensor:
        """x (..., width) -> logits (..., vocab_size), or a float64 scalar; negative targets do not count.

        Args:
            z_weight: adds this times the squared logsumexp to each loss, which keeps logits from drifting (z-loss).
        """
        if targets is None:
            return super().forward(x)
        # A custom function is told that a parameter needs a gradient even where none is computed.
        weight = self.weight if torch.is_grad_enabled() else self.weight.detach()
        return _summed_loss(x.flatten(0, -2), weight, targets.flatten(), z_weight, self)

    @torch.no_grad()
    def token_losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss of each token in the shape of targets, float32; 0 where a target is negative. No gradient."""
        chunks = self.chunks(x.flatten(0, -2), self.weight, targets.flatten())
        with torch.autocast(x.device.type, enabled=False):
            parts = [self.losses_(self.logits(h, w), target, 0.0, False)[0] for h, w, target in chunks]
        return torch.cat(parts).view(targets.shape)

    def chunks(self, x: Tensor, weight: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Parts of x and targets with the weight, in the dtype that a linear layer would compute in here."""
        dtype = compute_dtype(x)
        x, weight = x.to(dtype), weight.to(dtype)
        most = max(1, self.chunk_logits(x) // len(weight))
        num_chunks = max(1, math.ceil(len(x) / most))
        size = max(1, math.ceil(len(x) / num_chunks))  # all alike
        parts = zip(x.split(size), targets.long().split(size), strict=True)
        return [(h, weight, target) for h, target in parts]

    def chunk_logits(self, x: Tensor) -> int:
        """How many logits of tensors like x may exist at a time."""
        return _CHUNK_LOGITS.get(x.device.type, _CHUNK_LOGITS["cpu"])

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Logits of one chunk."""
        return x @ weight.t()

    def losses_(self, logits: Tensor, targets: Tensor, z_weight: float, gradient: bool) -> tuple[Tensor, Tensor]:
        """Each row's loss in float32 or wider, and the gradient of their sum by the logits, which are overwritten."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        scores = functional.log_softmax(logits, dim=-1, dtype=wide)
        counted = targets >= 0
        losses = -scores.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        logsumexp = (logits[:, 0].to(wide) - scores[:, 0]) if z_weight else None
        if logsumexp is not None:
            losses = losses + z_weight * logsumexp.square()
        losses = losses.masked_fill(~counted, 0.0)
        if not gradient:
            return losses, scores
        scores.exp_()
        if logsumexp is not None:
            scores *= (1.0 + 2.0 * z_weight * logsumexp)[:, None]
        scores.scatter_add_(1, targets.clamp(min=0)[:, None], scores.new_full((len(scores), 1), -1.0))
        return losses, scores.mul_(counted[:, None]).to(logits.dtype)

    def scaled(self, x: Tensor, factor: Tensor) -> Tensor:
        """x times a number, which a GPU would otherwise round to 16 bits where x has no more."""
        return (x.to(torch.promote_types(x.dtype, torch.float32)) * factor).to(x.dtype)


class _SummedLoss(torch.autograd.Function):
    """Computes the gradients in the forward pass, while each chunk's probabilities are at hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, z_weight: float, head: Head) -> Tensor:
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        chunks = head.chunks(x, weight, targets)
        grad_x = torch.empty_like(x, dtype=chunks[0][0].dtype) if needs_x else None
        wide = torch.promote_types(weight.dtype, torch.float32)
        grad_weight = torch.zeros_like(weight, dtype=wide) if needs_weight else None
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        start = 0
        with torch.autocast(x.device.type, enabled=False):
            for h, w, target in chunks:
                losses, slopes = head.losses_(head.logits(h, w), target, z_weight, needs_x or needs_weight)
                total += losses.sum(dtype=torch.float64)
                if grad_x is not None:
                    torch.mm(slopes, w, out=grad_x[start : start + len(h)])
                if grad_weight is not None:
                    _add_product(grad_weight, slopes.t(), h)
                start += len(h)
                del slopes  # before the next chunk is computed
        ctx.save_for_backward(grad_x, grad_weight)
        ctx.head, ctx.dtype = head, x.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_x, grad_weight = (None if saved is None else ctx.head.scaled(saved, grad) for saved in ctx.saved_tensors)
        return None if grad_x is None else grad_x.to(ctx.dtype), grad_weight, None, None, None


_summed_loss: Callable[..., Tensor] = _SummedLoss.apply


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in the dtype of total."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, out=total)
    else:
        total += a @ b
