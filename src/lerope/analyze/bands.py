"""What each band adds to the attention logits at each distance, and which band carries position.

c_m(d) = mean over documents, heads and queries s of Re(q_s conj(k_{s-d}) e^{i d theta_m}) / sqrt(head_dim)

with the two dimensions of a band as one complex number, after QK-norm and before rotation. The sum over s is a
cross-correlation, so that an FFT gives all distances at once, exactly.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lerope.data.shards import Tokens
from lerope.evaluate.documents import Source
from lerope.model.transformer import Transformer
from lerope.rotary.rotate import Rotation

Floats = npt.NDArray[np.float64]


class _Recorder(Rotation):
    """A rotation that also keeps what it was asked to turn."""

    __slots__ = ("seen",)

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = (q, k)
        return super().__call__(q, k)


@torch.no_grad()
def contributions(model: Transformer, rows: Sequence[Tokens], device: torch.device | str = "cpu") -> Floats:
    """c_m(d) of every layer: (layers, bands, length of the longest row).

    Args:
        rows: tokens of one document or window each.
    """
    model = model.to(device).eval()
    encoding, num_layers = model.encoding, model.config.num_layers
    num_bands, longest = encoding.rotary_dim // 2, max(len(row) for row in rows)
    sums = np.zeros((num_layers, num_bands, longest))
    num_pairs = np.zeros(longest)
    for row in rows:
        positions = torch.arange(len(row), device=device)
        layers = [layer if encoding.num_layers is not None else None for layer in range(num_layers)]
        recorders = [
            _Recorder(positions, encoding.frequencies(layer).detach(), encoding.layout, encoding.head_dim)
            for layer in layers
        ]
        model.hidden(torch.from_numpy(row.astype("int64"))[None].to(device), rotations=recorders)
        for layer, recorder in enumerate(recorders):
            q, k = (_complex(t[0], num_bands, encoding.layout == "half") for t in recorder.seen)
            size = 2 * len(row)  # room for every distance, so that the ends do not meet
            crossed = torch.fft.ifft(torch.fft.fft(q, size, 0) * torch.fft.fft(k, size, 0).conj(), dim=0)
            phases = positions.double()[:, None, None] * recorder.frequencies.double().view(-1, num_bands)
            logits = (crossed[: len(row)] * torch.polar(torch.ones_like(phases), phases)).real.sum(1)
            sums[layer, :, : len(row)] += logits.T.cpu().numpy()
        num_pairs[: len(row)] += np.arange(len(row), 0, -1)
    means: Floats = sums / (num_pairs * model.config.num_heads * np.sqrt(encoding.head_dim))
    return means


def dominant_band(values: Floats) -> int:
    """The band whose contribution varies most with distance: the root mean square over d = 1 ... of c_m(d) - its mean.

    Without the mean, a band that hardly turns and adds a constant would win.
    """
    curves = values.mean(0)[:, 1:]
    return int(np.argmax(curves.std(axis=1)))


def full_rows(source: Source, length: int, count: int) -> list[Tokens]:
    """The first `length` tokens of the first `count` documents that have so many; of the longest ones if none has."""
    lengths = np.asarray(source.lengths).astype(np.int64)
    chosen = np.flatnonzero(lengths >= length)[:count]
    if not len(chosen):
        chosen = np.argsort(-lengths, kind="stable")[:count]
    return [source.document(int(index), 0, length) for index in chosen]


def _complex(x: Tensor, num_bands: int, half: bool) -> Tensor:
    """(length, heads, head_dim) -> (length, heads, bands), complex128."""
    x = x.double()
    if half:
        return torch.complex(x[..., :num_bands], x[..., num_bands : 2 * num_bands])
    return torch.view_as_complex(x[..., : 2 * num_bands].unflatten(-1, (num_bands, 2)).contiguous())
