"""The ladder's transformer, from tokens to logits or a loss, in plain torch.

x = x + out(attention(rotate(norm(q)), rotate(norm(k)), v))      q, k, v from norm(x)
x = x + down(activation(up(norm(x))))

`use_kernel` replaces these with modules that do the same faster, those of `lerope.model.kernels.layers`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lerope.core.ladder import ModelConfig
from lerope.core.recipe import Kernel
from lerope.model.attention import Backend, DocumentMask
from lerope.model.cache import Cache
from lerope.model.loss import Head
from lerope.model.precision import compute_dtype
from lerope.rotary.encodings import Encoding
from lerope.rotary.rotation import Rotation


class RMSNorm(nn.RMSNorm):
    """An RMS norm whose result has the dtype of its input, in autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) -> the same shape."""
        return super().forward(x).to(x.dtype)


class Linear(nn.Linear):
    """A matrix without a bias."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width, bias=False)


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
        q, k, v = self.qkv(x).unflatten(-1, self.split).unbind(-3)
        q, k = rotation(self.q_norm(q), self.k_norm(k))
        attended = mask.attend(q.to(v.dtype), k.to(v.dtype), v)
        out: Tensor = self.out(attended.flatten(-2))
        return out


class MLP(nn.Module):
    """Two matrices with an activation between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.squared_relu = config.activation == "relu2"
        self.up = Linear(config.width, config.mlp_width)
        self.down = Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x (rows, length, width) -> the same shape."""
        out: Tensor = self.down(self.activated(self.up(x)))
        return out

    def activated(self, x: Tensor) -> Tensor:
        """Squared ReLU or exact GELU of x."""
        return functional.relu(x).square() if self.squared_relu else functional.gelu(x)


class Block(nn.Module):
    """One layer: attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rotation: Rotation, mask: DocumentMask) -> Tensor:
        """x (rows, length, width) -> the same shape."""
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        x = x + self.mlp(self.mlp_norm(x))
        return x

    def recomputed(self, x: Tensor, rotation: Rotation, mask: DocumentMask) -> Tensor:
        """The same; only its input is kept for the backward pass, which computes the rest again."""
        out: Tensor = checkpoint(self, x, rotation, mask, use_reentrant=False, preserve_rng_state=False)
        return out


class Transformer(nn.Module):
    """A model of the ladder with any encoding. Weights are meaningless until `init_weights` has filled them."""

    def __init__(self, config: ModelConfig, encoding: Encoding) -> None:
        super().__init__()
        if encoding.head_dim != config.head_dim:
            raise ValueError(f"encoding must have the model's head_dim of {config.head_dim}; got {encoding.head_dim}.")
        self.config = config
        self.encoding = encoding
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width, eps=config.norm_eps)
        self.head = Head(config.width, config.vocab_size)
        self.recompute = False
        """Activation checkpointing: keep only the inputs of blocks for the backward pass and compute the rest again."""
        self.horizon: int | None = None
        """Positions lie below this, or below the length of rows; more where they skip."""
        self.z_weight = 0.0
        """Times the squared logsumexp of a token's logits, what training adds to its loss."""
        self.use_kernel(encoding.kernel)

    def use_kernel(self, kernel: Kernel) -> None:
        """Says what computes all but attention: fused kernels where they can run, or plain torch.

        Call it before FSDP2 shards the model.
        """
        from lerope.model.kernels.layers import use_layers  # which builds on this module

        use_layers(self, fast=kernel != "reference")
        self.encoding.kernel = kernel

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
            positions: (rows, length), starting at 0 in every document and so less than the length, or than `horizon`
                where they skip; counted along the row unless given.
            document_ids: (rows, length), equal where tokens share a document, or a mask made from them beforehand; one
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
        cache: Cache | None = None,
    ) -> Tensor:
        """What the head reads, (rows, length, width).

        Args:
            rotations: what each layer turns queries and keys by; the encoding's at these positions unless given.
            cache: the earlier tokens of each row, which these continue and join; there is one document per row.
        """
        if tokens.ndim != 2:
            raise ValueError(f"tokens must have shape (rows, length); got {tuple(tokens.shape)}.")
        mask = document_ids if isinstance(document_ids, DocumentMask) else DocumentMask(document_ids, backend)
        masks: Sequence[DocumentMask] = [mask] * len(self.blocks) if cache is None else cache.layers
        if rotations is None:
            past = 0 if cache is None else cache.length
            length = past + tokens.shape[1]
            if positions is None:
                positions = torch.arange(past, length, device=tokens.device)
            reach = max(length, self.horizon or 0)
            rotations = self._rotations(positions, 0 if centres is None else centres, reach)
        x = self.embedding(tokens)
        x = x.to(compute_dtype(x))
        for block, rotation, attention in zip(self.blocks, rotations, masks, strict=True):
            run: Any = block.recomputed if self.recompute and torch.is_grad_enabled() else block
            x = run(x, rotation, attention)
        out: Tensor = self.norm(x)
        return out

    def _rotations(self, positions: Tensor, origin: Tensor | int, length: int) -> list[Rotation]:
        """One rotation for all layers, or one each where layers have frequencies of their own."""
        num_layers = self.config.num_layers
        if self.encoding.num_layers is None:
            return [self.encoding.rotation(positions, None, origin, length)] * num_layers
        return [self.encoding.rotation(positions, layer, origin, length) for layer in range(num_layers)]
