"""Keys and values of the tokens read so far: to write one more token, a model reads that token alone."""

import torch
from torch import Tensor
from torch.nn import functional

from lerope.model.attention import DocumentMask

# Tokens that a cache has room for at first.
_TOKENS = 256


class Cache:
    """The memory of one text, for `Transformer.hidden`; a text is a row.

    Args:
        num_layers: the model's.
        logit_scale: what attention logits are multiplied by, for frequencies that `lerope.extend` has adapted; one
            number, or one for the query at each position.
    """

    def __init__(self, num_layers: int, logit_scale: Tensor | float = 1.0) -> None:
        self.layers = [CachedLayer(logit_scale) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Tokens read."""
        return self.layers[-1].length


class CachedLayer(DocumentMask):
    """What one layer remembers. Tokens that come see those before them, in the cache or among themselves."""

    __slots__ = ("keys", "length", "logit_scale", "values")

    def __init__(self, logit_scale: Tensor | float = 1.0) -> None:
        super().__init__(None)
        self.logit_scale, self.length = logit_scale, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        """(rows, heads, room, head_dim) both; keys are rotated already, each by its own position."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of new tokens, (rows, new, heads, head_dim) each; their keys and values join the cache."""
        past, new = self.length, q.shape[1]
        self.keys, self.values = self._joined(self.keys, k), self._joined(self.values, v)
        self.length = past + new
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        # A single token sees all; several see a triangle, which torch knows only where nothing lies before it.
        seen = torch.ones(new, self.length, dtype=torch.bool, device=q.device).tril(past) if past and new > 1 else None
        scale = q.shape[-1] ** -0.5
        if isinstance(self.logit_scale, Tensor):
            q = (q * self.logit_scale[past : self.length, None, None]).to(keys.dtype)
        else:
            scale *= self.logit_scale
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, seen, is_causal=new > 1 and not past, scale=scale
        )
        return out.transpose(1, 2)

    def _joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        """The buffer with new tokens after those it has, larger where they do not fit."""
        rows, length, heads, head_dim = new.shape
        needed = self.length + length
        if old is None or needed > old.shape[2]:
            room = max(_TOKENS, needed, 0 if old is None else 2 * old.shape[2])
            larger = new.new_empty(rows, heads, room, head_dim)
            if old is not None:
                larger[:, :, : self.length] = old[:, :, : self.length]
            old = larger
        old[:, :, self.length : needed] = new.transpose(1, 2)
        return old
