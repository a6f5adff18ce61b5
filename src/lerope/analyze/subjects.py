"""Models to look into: what each layer turns, and the loss with bands taken away.

One interface for our own models (here) and for Hugging Face's (`lerope.analyze.huggingface`). A band's two dimensions
are one complex number, so that the band's part of an attention logit is Re(q_s conj(k_t) turns[s - t]).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lerope.core.encoding import Layout
from lerope.data.loader import IGNORED
from lerope.data.shards import Tokens
from lerope.evaluate.scorer import as_tensor, padded
from lerope.model.transformer import Transformer
from lerope.rotary.rotation import Rotation

Meaning = Literal["contribution", "frequency"]
MEANINGS: tuple[Meaning, ...] = ("contribution", "frequency")


@dataclass(frozen=True)
class Turned:
    """Queries and keys of one row in one layer: after QK-norm, before rotation."""

    layer: int
    q: Tensor
    """(length, heads, bands), complex128."""
    k: Tensor
    """(length, key heads, bands), complex128."""
    turns: Tensor
    """(length, 1 or heads, bands), complex128: at each distance, e^{i d theta} and the factor of the logits."""


@dataclass(frozen=True)
class Removal:
    """Bands taken away in all layers: their term of the logits (contribution), or their turning (frequency)."""

    bands: tuple[int, ...]
    meaning: Meaning


See = Callable[[Turned], None]


class Subject(Protocol):
    """A model whose bands can be seen and taken away."""

    device: torch.device
    num_layers: int
    num_heads: int
    num_key_heads: int
    num_bands: int
    frequencies: Tensor
    """(layers, 1 or heads, bands), float64 on the CPU."""

    def watch(self, row: Tokens, see: See) -> None:
        """Runs one row through the model and shows what each layer turns, in order of layers."""
        ...

    def losses(self, rows: Sequence[Tokens], removal: Removal | None = None) -> Tensor:
        """The loss of each row's tokens except the first: (rows, longest - 1), float32, 0 in padding."""
        ...


def as_complex(x: Tensor, num_bands: int, layout: Layout) -> Tensor:
    """The bands of (..., head_dim) as complex numbers: (..., bands)."""
    if layout == "half":
        return torch.complex(x[..., :num_bands], x[..., num_bands : 2 * num_bands])
    return torch.complex(x[..., 0 : 2 * num_bands : 2], x[..., 1 : 2 * num_bands : 2])


class OwnModel:
    """A model of the ladder with any encoding."""

    def __init__(self, model: Transformer, device: torch.device | str = "cpu") -> None:
        self.model, self.device = model.to(device).eval(), torch.device(device)
        encoding, config = model.encoding, model.config
        self.num_layers, self.num_heads, self.num_key_heads = config.num_layers, config.num_heads, config.num_heads
        self.num_bands = encoding.rotary_dim // 2
        every = [self._frequencies(layer).view(-1, self.num_bands) for layer in range(self.num_layers)]
        self.frequencies = torch.stack(every).double().cpu()

    @torch.no_grad()
    def watch(self, row: Tokens, see: See) -> None:
        self._hidden(as_tensor(row)[None], lambda layer: _Watched(self, layer, len(row), see))

    @torch.no_grad()
    def losses(self, rows: Sequence[Tokens], removal: Removal | None = None) -> Tensor:
        tokens = padded([row[:-1] for row in rows])
        targets = padded([row[1:] for row in rows], IGNORED).to(self.device)
        hidden = self._hidden(tokens, lambda layer: _Removed(self, layer, tokens.shape[1], removal))
        return self.model.head.token_losses(hidden, targets)

    def _hidden(self, tokens: Tensor, make: Callable[[int], Rotation]) -> Tensor:
        rotations = [make(layer) for layer in range(self.num_layers)]
        return self.model.hidden(tokens.to(self.device), rotations=rotations)

    def _frequencies(self, layer: int) -> Tensor:
        encoding = self.model.encoding
        return encoding.frequencies(None if encoding.num_layers is None else layer).detach()

    def rotation_arguments(self, layer: int, length: int) -> tuple[Tensor, Tensor, Layout, int]:
        """What a Rotation of this layer is built from: positions, frequencies, layout, head_dim."""
        encoding = self.model.encoding
        positions = torch.arange(length, device=self.device)
        return positions, self._frequencies(layer), encoding.layout, encoding.head_dim


class _Watched(Rotation):
    """A rotation that shows what it is asked to turn."""

    __slots__ = ("layer", "see")

    def __init__(self, subject: OwnModel, layer: int, length: int, see: See) -> None:
        super().__init__(*subject.rotation_arguments(layer, length), kernel=subject.model.encoding.kernel)
        self.layer, self.see = layer, see

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        num_bands = self.frequencies.shape[-1]
        distances = torch.arange(q.shape[1], device=q.device, dtype=torch.float64)
        phases = distances[:, None, None] * self.frequencies.double().view(-1, num_bands)
        turns = torch.polar(torch.full_like(phases, self.head_dim**-0.5), phases)
        q_bands, k_bands = (as_complex(x[0].double(), num_bands, self.layout) for x in (q, k))
        self.see(Turned(self.layer, q_bands, k_bands, turns))
        return super().__call__(q, k)


class _Removed(Rotation):
    """A rotation without some bands."""

    __slots__ = ("kept",)

    def __init__(self, subject: OwnModel, layer: int, length: int, removal: Removal | None) -> None:
        positions, frequencies, layout, head_dim = subject.rotation_arguments(layer, length)
        self.kept: Tensor | None = None
        if removal is not None and removal.meaning == "frequency":
            frequencies = frequencies.clone()
            frequencies[..., list(removal.bands)] = 0.0
        elif removal is not None:
            bands = torch.tensor(removal.bands, device=subject.device)
            first = bands if layout == "half" else 2 * bands
            self.kept = torch.ones(head_dim, device=subject.device)
            self.kept[first] = self.kept[first + (frequencies.shape[-1] if layout == "half" else 1)] = 0.0
        super().__init__(positions, frequencies, layout, head_dim, kernel=subject.model.encoding.kernel)

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().__call__(q if self.kept is None else q * self.kept, k)
