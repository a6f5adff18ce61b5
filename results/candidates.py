"""Learned frequencies under constraints: candidates for a LeRoPE that does not fall off beyond its window.

Encodings of one's own, as `--encoding results.candidates:Gap` takes them from the root of a checkout. What wins becomes
an option of LeRoPE; until then they are nobody's promise.
"""

import math

import torch
from torch import Tensor

from lerope import LeRoPE
from lerope.rotary.rotation import Rotation

_SHARPNESS = 4
_GOLDEN = (math.sqrt(5) - 1) / 2


def outside(theta: Tensor, slow: float, fast: float) -> Tensor:
    """Frequencies moved out of the gap between two: those in it to the nearer edge and beyond, others hardly.

    In log-frequency, with the gap's middle c and half width w, a distance d from c becomes sign(d) (|d|^4 + w^4)^(1/4).
    That rises everywhere but at c, where no band can cross.
    """
    middle, half = (math.log(slow) + math.log(fast)) / 2, (math.log(fast) - math.log(slow)) / 2
    distance = theta.double().log() - middle
    moved = (distance.abs() ** _SHARPNESS + half**_SHARPNESS) ** (1 / _SHARPNESS)
    return (middle + torch.where(distance < 0, -moved, moved)).exp().to(theta.dtype)


class Gap(LeRoPE):
    """A band turns often enough within the window to be learned, or at most a quarter turn up to `reach`.

    Args:
        turns: in a window, of the slowest band on the fast side.
    """

    def __init__(self, head_dim: int, train_length: int = 2048, reach: int = 8192, turns: float = 1.0) -> None:
        super().__init__(head_dim)
        self.slow, self.fast = math.pi / 2 / reach, 2 * math.pi * turns / train_length

    def frequencies(self, layer: int | None = None) -> Tensor:
        """Learned, outside the gap."""
        return outside(super().frequencies(layer), self.slow, self.fast)


class WholeTurns(LeRoPE):
    """A band that does not complete a turn in the window does not turn at all, as in Fourier position embeddings.

    Hua et al., 2024, do so for fixed frequencies. A band that becomes so slow stays still, for nothing then moves it.
    """

    def __init__(self, head_dim: int, train_length: int = 2048) -> None:
        super().__init__(head_dim)
        self.slowest = 2 * math.pi / train_length

    def frequencies(self, layer: int | None = None) -> Tensor:
        """Learned, or zero."""
        theta = super().frequencies(layer)
        return torch.where(theta.detach() < self.slowest, torch.zeros_like(theta), theta)


class WholeTokens(LeRoPE):
    """Wavelengths are whole numbers of tokens, as in Resonance RoPE; the gradient passes as if they were not.

    Wang et al., 2024, do so for fixed frequencies.
    """

    def frequencies(self, layer: int | None = None) -> Tensor:
        """Learned, rounded."""
        theta = super().frequencies(layer)
        wavelengths = (2 * math.pi / theta.detach().double()).round().clamp(min=1)
        return theta + ((2 * math.pi / wavelengths).to(theta.dtype) - theta.detach())


class Slowed(LeRoPE):
    """Bands of less than one turn in the window are slowed, so that up to `reach` no angle is new to the model.

    In training by a factor from 1 to reach / train_length that each forward pass draws anew (so that with other
    micro-batches it is another run), and by the whole of it ever after: a static extension that the weights are ready
    for.
    """

    passes: Tensor

    def __init__(self, head_dim: int, train_length: int = 2048, reach: int = 8192) -> None:
        super().__init__(head_dim)
        self.turn, self.most = 2 * math.pi / train_length, reach / train_length
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def frequencies(self, layer: int | None = None) -> Tensor:
        """Learned, the slow ones slowed."""
        return self._slowed(super().frequencies(layer), torch.tensor(self.most))

    def rotation(
        self, positions: Tensor, layer: int | None = None, origin: Tensor | int = 0, length: int | None = None
    ) -> Rotation:
        """In training with a factor of its own; factors of many passes are evenly spread over their logarithms."""
        if not (self.training and torch.is_grad_enabled()):
            return super().rotation(positions, layer, origin, length)
        self.passes += 1
        factor = self.most ** (self.passes.double() * _GOLDEN).frac()
        frequencies = self._slowed(super().frequencies(layer), factor)
        return Rotation(positions, frequencies, self.layout, self.head_dim, origin, length, self.kernel)

    def _slowed(self, theta: Tensor, factor: Tensor) -> Tensor:
        return torch.where(theta.detach() < self.turn, theta / factor.to(theta), theta)
