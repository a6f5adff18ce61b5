"""Modules that replace the plain ones and do the same with fused kernels.

They have the parameters of what they replace, and fall back to it, call by call, where a kernel cannot run: on a CPU,
in a dtype or size that it does not take, or where someone has added an adapter or a hook.
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lerope.model.accounting import HEAD_CHUNK_LOGITS
from lerope.model.attention import DocumentMask
from lerope.model.kernels.fused_mlp import mlp
from lerope.model.kernels.products import linear, quack_obstacle, rows
from lerope.model.loss import Head
from lerope.model.transformer import MLP, Attention, Block, Linear, RMSNorm
from lerope.rotary.dispatch import triton_obstacle
from lerope.rotary.rotation import Rotation

Stream = Tensor | tuple[Tensor, Tensor]
"""The residual stream, or two tensors whose sum it is."""


def use_layers(model: nn.Module, fast: bool) -> None:
    """Turns every module of a model into the fast one of its kind, or the plain one."""
    plain, fused = tuple(FAST), tuple(FAST.values())
    wanted = FAST if fast else dict(zip(fused, plain, strict=True))
    for module in model.modules():
        if type(module) in wanted:
            module.__class__ = wanted[type(module)]
        elif hasattr(module, "unshard") and isinstance(module, plain) and isinstance(module, fused) != fast:
            raise ValueError(f"use_kernel must come before FSDP2 shards a model; got a {type(module).__name__}.")


def is_plain(module: nn.Module, *types: type[nn.Module]) -> bool:
    """Whether a module is exactly of one of these types: no adapter around it, no hook on it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) in types and not any(hooks) and "forward" not in module.__dict__


def _terms(x: Stream) -> tuple[Tensor, Tensor | None]:
    return x if isinstance(x, tuple) else (x, None)


class FastLinear(Linear):
    """A linear layer by QuACK."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in_width) -> (..., out_width)."""
        if quack_obstacle(x, self.weight) is not None:
            return super().forward(x)
        out = linear(rows(x), self.weight)
        return out.view(*x.shape[:-1], out.shape[-1])


class FastNorm(RMSNorm):
    """An RMS norm that also computes the sum it normalises."""

    def forward(self, x: Stream) -> Tensor:
        """x (..., width), or two of them -> the norm of x, or of their sum."""
        return self.of_sum(*_terms(x))[1]

    def of_sum(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """(..., width) each -> x + branch, and its norm. None adds nothing."""
        if triton_obstacle(x, x if branch is None else branch, self.weight) is None:
            from lerope.model.kernels.triton_norm import add_norm

            assert self.eps is not None
            total, normed, _ = add_norm(x, branch, self.weight, self.eps)
            return total, normed
        total = x if branch is None else x + branch
        return total, super().forward(total)


class FastAttention(Attention):
    """Norms and rotation in one kernel; with FlashAttention 4 all of it in one operator."""

    def forward(self, x: Tensor, rotation: Rotation, mask: DocumentMask) -> Tensor:
        """x (rows, length, width) -> the same shape."""
        qkv = self.qkv(x).unflatten(-1, self.split)
        q, k, v = qkv.unbind(-3)
        fused = rotation.fused(q, k, self.q_norm, self.k_norm) if mask.backend == "flash4" else None
        if fused is not None and mask.packed is not None:
            from lerope.model.kernels.fused_attention import attend

            attended = attend(qkv, fused, mask.packed)
        else:
            q, k = rotation.after_norm(q, k, self.q_norm, self.k_norm)
            attended = mask.attend(q.to(v.dtype), k.to(v.dtype), v)
        out: Tensor = self.out(attended.flatten(-2))
        return out


class FastMLP(MLP):
    """Both matrices and GELU in one operator by QuACK; or GELU alone by a kernel of our own."""

    def forward(self, x: Tensor) -> Tensor:
        """x (rows, length, width) -> the same shape."""
        matrices = all(is_plain(module, Linear, FastLinear) for module in (self.up, self.down))
        if self.squared_relu or not matrices or quack_obstacle(x, self.up.weight, self.down.weight) is not None:
            return super().forward(x)
        return mlp(x, self.up.weight, self.down.weight)

    def activated(self, x: Tensor) -> Tensor:
        """GELU by our kernel where rounding to 16 bits hides its small error."""
        if self.squared_relu or x.element_size() > 2 or triton_obstacle(x) is not None:
            return super().activated(x)
        from lerope.model.kernels.triton_gelu import gelu

        out: Tensor = gelu(x)
        return out


class FastBlock(Block):
    """Leaves its last addition to the next module, because it is one kernel with the norm that follows."""

    attention_norm: FastNorm
    mlp_norm: FastNorm

    def forward(self, x: Stream, rotation: Rotation, mask: DocumentMask) -> Stream:  # type: ignore[override]
        """(rows, length, width) each."""
        total, branch = _terms(x)
        if not (is_plain(self.attention_norm, FastNorm) and is_plain(self.mlp_norm, FastNorm)):
            return super().forward(total if branch is None else total + branch, rotation, mask)
        total, normed = self.attention_norm.of_sum(total, branch)
        total, normed = self.mlp_norm.of_sum(total, self.attention(normed, rotation, mask))
        return total, self.mlp(normed)

    def recomputed(self, x: Stream, rotation: Rotation, mask: DocumentMask) -> Stream:  # type: ignore[override]
        """A checkpoint looks after tensors only if they are arguments themselves, and this block may get a pair."""
        terms = x if isinstance(x, tuple) else (x,)

        def run(*terms: Tensor) -> Stream:
            out: Stream = self(terms if len(terms) > 1 else terms[0], rotation, mask)
            return out

        out: Stream = checkpoint(run, *terms, use_reentrant=False, preserve_rng_state=False)
        return out


class FastHead(Head):
    """Logits by QuACK, their losses and gradient in one kernel, in larger chunks."""

    def chunk_logits(self, x: Tensor) -> int:
        """As many as `accounting` assumes."""
        return HEAD_CHUNK_LOGITS if triton_obstacle(x) is None else super().chunk_logits(x)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Logits of one chunk."""
        return linear(rows(x), weight) if quack_obstacle(x, weight) is None else super().logits(x, weight)

    def losses_(self, logits: Tensor, targets: Tensor, z_weight: float, gradient: bool) -> tuple[Tensor, Tensor]:
        """Each row's loss, and the gradient of their sum, which replaces the logits."""
        if triton_obstacle(logits) is not None:
            return super().losses_(logits, targets, z_weight, gradient)
        from lerope.model.kernels.triton_loss import cross_entropy_

        return cross_entropy_(logits, targets, z_weight, gradient), logits

    def scaled(self, x: Tensor, factor: Tensor) -> Tensor:
        """x times a number."""
        if triton_obstacle(x) is not None:
            return super().scaled(x, factor)
        from lerope.model.kernels.triton_loss import scaled

        return scaled(x, factor)


FAST: dict[type[nn.Module], type[nn.Module]] = {
    Linear: FastLinear,
    RMSNorm: FastNorm,
    Attention: FastAttention,
    MLP: FastMLP,
    Block: FastBlock,
    Head: FastHead,
}
