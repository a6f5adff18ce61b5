"""The ladder's transformer, from tokens to logits or a loss.

x = x + out(attention(rotate(norm(q)), rotate(norm(k)), v))      q, k, v from norm(x)
x = x + down(activation(up(norm(x))))
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lerope.model import products
from lerope.model.attention import Backend, DocumentMask
from lerope.model.config import ModelConfig
from lerope.model.fused_mlp import mlp
from lerope.model.loss import Head
from lerope.model.products import Linear, compute_dtype, is_plain
from lerope.rotary.encodings import Encoding
from lerope.rotary.kernels import Kernel, obstacle
from lerope.rotary.rotate import Rotation


class AddNorm(nn.RMSNorm):
    """A branch added to the residual stream, and the RMS norm of the sum."""

    fused = True

    def forward(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(..., width) each -> x + branch, and its norm in the branch's dtype. None adds nothing."""
        if self.fused and obstacle(x, x if branch is None else branch, self.weight) is None:
            from lerope.model.triton_norm import add_norm

            assert self.eps is not None
            total, normed, _ = add_norm(x, branch, self.weight, self.eps)
            return total, normed
        total = x if branch is None else x + branch
        return total, super().forward(total).to((x if branch is None else branch).dtype)


class Attention(nn.Module):
    """Multi-head attention with one RMS norm for queries and one for keys, each over the dimensions of a head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.split = (3, config.num_heads, config.head_dim)
        self.qkv = Linear(config.width, 3 * config.width)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.out = Linear(config.width, config.width)

    def forward(self, x: Tensor, rotation: Rotation, mask: DocumentMask) -> Tensor:
        """x (rows, length, width) -> the same shape."""
        qkv = self.qkv(x).unflatten(-1, self.split)
        q, k, v = qkv.unbind(-3)
        fused = rotation.fused(q, k, self.q_norm, self.k_norm) if mask.backend == "flash4" else None
        if fused is not None and mask.packed is not None:
            from lerope.model.fused_attention import attend

            attended = attend(qkv, fused, mask.packed)
        else:
            q, k = (t.to(v.dtype) for t in rotation.after_norm(q, k, self.q_norm, self.k_norm))
            attended = mask.attend(q, k, v)
        out: Tensor = self.out(attended.flatten(-2))
        return out


class MLP(nn.Module):
    """Two matrices with an activation between them."""

    fused = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.squared_relu = config.activation == "relu2"
        self.up = Linear(config.width, config.mlp_width)
        self.down = Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x (rows, length, width) -> the same shape."""
        if self._is_fusable(x):
            return mlp(x, self.up.weight, self.down.weight)
        x = self.up(x)
        x = functional.relu(x).square() if self.squared_relu else self._gelu(x)
        out: Tensor = self.down(x)
        return out

    def _is_fusable(self, x: Tensor) -> bool:
        """Whether one operator can do it all."""
        if not self.fused or self.squared_relu or not (is_plain(self.up) and is_plain(self.down)):
            return False
        return products.obstacle(x, self.up.weight, self.down.weight) is None

    def _gelu(self, x: Tensor) -> Tensor:
        """Exact GELU, by a kernel of our own where rounding to 16 bits hides its small error."""
        if not self.fused or x.element_size() > 2 or obstacle(x) is not None:
            return functional.gelu(x)
        from lerope.model.triton_gelu import gelu

        out: Tensor = gelu(x)
        return out


class Block(nn.Module):
    """One layer: attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = AddNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = AddNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, branch: Tensor | None, rotation: Rotation, mask: DocumentMask
    ) -> tuple[Tensor, Tensor]:
        """(rows, length, width) each: the residual stream, and what is still to be added to it, if anything.

        The last addition is left to whoever comes next, because it is one kernel with the norm that follows.
        """
        x, normed = self.attention_norm(x, branch)
        x, normed = self.mlp_norm(x, self.attention(normed, rotation, mask))
        return x, self.mlp(normed)


class Transformer(nn.Module):
    """A model of the ladder with any encoding. Weights are empty of meaning until `init_weights` has filled them."""

    def __init__(self, config: ModelConfig, encoding: Encoding) -> None:
        super().__init__()
        if encoding.head_dim != config.head_dim:
            raise ValueError(f"encoding must have the model's head_dim of {config.head_dim}; got {encoding.head_dim}.")
        self.config = config
        self.encoding = encoding
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = AddNorm(config.width, eps=config.norm_eps)
        self.head = Head(config.width, config.vocab_size)
        self.recompute = False
        """Activation checkpointing: keep only the inputs of blocks for the backward pass and compute the rest again."""
        self.z_weight = 0.0
        """Times the squared logsumexp of a token's logits, what its loss in training has on top."""

    def use_kernel(self, kernel: Kernel) -> None:
        """Says what computes all but attention: fused kernels where they can run, or torch."""
        self.encoding.kernel = kernel
        for module in self.modules():
            if isinstance(module, AddNorm | Linear | MLP | Head):
                module.fused = kernel != "reference"

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        document_ids: Tensor | DocumentMask | None = None,
        targets: Tensor | None = None,
        centres: Tensor | None = None,
        backend: Backend | None = None,
    ) -> Tensor:
        """Logits of the next token, (rows, length, vocab_size), or with targets the sum of their losses.

        Args:
            tokens: (rows, length).
            positions: (rows, length), starting at 0 in every document and so less than the length; counted along the
                row unless given.
            document_ids: (rows, length), equal where tokens share a document, or a mask made of them beforehand; one
                document per row unless given.
            targets: (rows, length), the next tokens; negative ones do not count.
            centres: (rows, length), the middle position of each token's document: less rounding noise in the gradient
                of the frequencies.
            backend: how to attend; see DocumentMask.
        """
        hidden = self.hidden(tokens, positions, document_ids, centres, backend)
        # Only training pays for large logits; a validation loss is the cross-entropy alone.
        z_weight = self.z_weight if torch.is_grad_enabled() else 0.0
        out: Tensor = self.head(hidden, targets, z_weight)
        return out

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        document_ids: Tensor | DocumentMask | None = None,
        centres: Tensor | None = None,
        backend: Backend | None = None,
        rotations: Sequence[Rotation] | None = None,
    ) -> Tensor:
        """What the head reads, (rows, length, width).

        Args:
            rotations: what each layer turns queries and keys by; the encoding's at these positions unless given.
        """
        if tokens.ndim != 2:
            raise ValueError(f"tokens must have shape (rows, length); got {tuple(tokens.shape)}.")
        mask = document_ids if isinstance(document_ids, DocumentMask) else DocumentMask(document_ids, backend)
        if rotations is None:
            length = tokens.shape[1]
            if positions is None:
                positions = torch.arange(length, device=tokens.device)
            rotations = self._rotations(positions, 0 if centres is None else centres, length)
        x = self.embedding(tokens)
        x = x.to(compute_dtype(x))
        branch = None
        for block, rotation in zip(self.blocks, rotations, strict=True):
            inputs = (x, branch, rotation, mask)
            if self.recompute and torch.is_grad_enabled():
                x, branch = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                x, branch = block(*inputs)
        out: Tensor = self.norm(x, branch)[1]
        return out

    def _rotations(self, positions: Tensor, origin: Tensor | int, length: int) -> list[Rotation]:
        """One rotation for all layers, or one each where layers have frequencies of their own."""
        num_layers = self.config.num_layers
        if self.encoding.num_layers is None:
            return [self.encoding.rotation(positions, None, origin, length)] * num_layers
        return [self.encoding.rotation(positions, layer, origin, length) for layer in range(num_layers)]
