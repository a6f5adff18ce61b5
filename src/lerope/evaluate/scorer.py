"""A model that scores rows: one document or window per row, padded on the right, any device, extended or not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lerope.core.recipe import Precision
from lerope.data.shards import Tokens
from lerope.model.attention import Backend, DocumentMask
from lerope.model.precision import autocast
from lerope.model.transformer import Transformer
from lerope.rotary.extension import Method, extend, scale_by_position
from lerope.rotary.rotation import Rotation


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """How frequencies adapt to rows longer than the train length; the arguments of `lerope.extend`."""

    method: Method = "none"
    temperature: float = 0.0
    dominant_band: int | None = None


class StretchedRotation(Rotation):
    """A rotation with frequencies for each row's length; queries also carry the factor of the logits."""

    __slots__ = ("scale",)

    def __init__(
        self, model: Transformer, layer: int | None, positions: Tensor, lengths: Tensor, train_length: int, how: Stretch
    ):
        """Extends the frequencies of a layer to rows of these lengths.

        Args:
            positions: (length,), the same in all rows.
            lengths: (rows,), how long each row is to the model.
        """
        encoding = model.encoding
        own = encoding.frequencies(layer).detach()
        extension = extend(
            own,
            train_length=train_length,
            length=lengths,
            method=how.method,
            temperature=how.temperature,
            dominant_band=how.dominant_band,
        )
        # (rows, [heads,] bands) -> (rows, length, heads, bands)
        frequencies = extension.frequencies.view(len(lengths), 1, -1, own.shape[-1])
        rows = positions.expand(len(lengths), -1)
        super().__init__(rows, frequencies, encoding.layout, encoding.head_dim, kernel=encoding.kernel)
        if how.method == "logits":
            self.scale = scale_by_position(positions, train_length, how.temperature).view(1, -1, 1, 1)
        else:
            assert isinstance(extension.logit_scale, Tensor)
            self.scale = extension.logit_scale.view(-1, 1, 1, 1)

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().__call__(q, k)
        return q * self.scale, k  # in float32 where q is narrower; attention casts both


class Scorer:
    """Losses and predictions of a model on a device.

    Args:
        model: moved to the device and never changed.
        train_length: tokens of a row in training; `stretch` acts on longer rows.
        precision: float32 is the reference; bf16 is faster on a GPU and rounds.
        stretch: how to go beyond the train length; None leaves frequencies as they are.
        backend: how to attend; torch's fused causal attention unless given.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        train_length: int,
        device: torch.device | str = "cpu",
        precision: Precision = "float32",
        stretch: Stretch | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.model, self.train_length, self.stretch = model.to(device).eval(), train_length, stretch
        self.device, self.precision, self.backend = torch.device(device), precision, backend

    @torch.no_grad()
    def start(self, rows: Sequence[Tokens]) -> Callable[[], Tensor]:
        """Starts computing losses; a GPU works on them until the returned function is called.

        That gives the loss of each row's tokens except the first, all rows end to end, float32, on the CPU.
        """
        inputs = [row[:-1] for row in rows]
        tokens = self._moved(padded(inputs))
        targets = self._moved(torch.cat([as_tensor(row[1:]) for row in rows]))
        # Where the rows' own tokens stand in the padded batch: the head reads no others.
        longest = tokens.shape[1]
        places = [torch.arange(len(row)) + number * longest for number, row in enumerate(inputs)]
        hidden = self._hidden(tokens, [len(row) for row in inputs]).flatten(0, 1)
        with autocast(self.device, self.precision):
            losses = self.model.head.token_losses(hidden[self._moved(torch.cat(places))], targets)
        if self.device.type != "cuda":
            return lambda: losses
        # Only a copy into pinned memory lets the host go on.
        copied = torch.empty_like(losses, device="cpu", pin_memory=True).copy_(losses, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()

        def wait() -> Tensor:
            arrived.synchronize()
            return copied

        return wait

    @torch.no_grad()
    def log_probabilities(
        self, rows: Sequence[Tokens], last: Sequence[int], lengths: Sequence[int] | None = None
    ) -> list[Tensor]:
        """What the model expects in place of each row's last tokens, given all before them; on the CPU, float32.

        Args:
            last: how many tokens of each row; (last, vocab_size) is returned for it.
            lengths: how long each row is to `stretch`; its inputs unless given, as in `start`.
        """
        inputs = [row[:-1] for row in rows]
        hidden = self._hidden(self._moved(padded(inputs)), lengths or [len(row) for row in inputs])
        found = []
        with autocast(self.device, self.precision):
            for row, states, count in zip(rows, hidden, last, strict=True):
                logits = self.model.head(states[len(row) - 1 - count : len(row) - 1])
                found.append(logits.float().log_softmax(-1).cpu())
        return found

    def _hidden(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        # No token looks ahead, so padding on the right needs no mask.
        mask = None
        if self.backend is not None:
            mask = DocumentMask(torch.zeros_like(tokens), self.backend, len(tokens))
        rotations = None
        if self.stretch is not None:
            positions = torch.arange(tokens.shape[1], device=self.device)
            rotations = self._rotations(positions, torch.tensor(lengths, device=self.device), self.stretch)
        with autocast(self.device, self.precision):
            return self.model.hidden(tokens, document_ids=mask, rotations=rotations)

    def _moved(self, tensor: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _rotations(self, positions: Tensor, lengths: Tensor, stretch: Stretch) -> list[StretchedRotation]:
        own_layers = self.model.encoding.num_layers is not None
        num_layers = self.model.config.num_layers
        made = [
            StretchedRotation(self.model, layer, positions, lengths, self.train_length, stretch)
            for layer in (range(num_layers) if own_layers else [None])
        ]
        return made if own_layers else made * num_layers


def padded(rows: Sequence[Tokens], value: int = 0) -> Tensor:
    """Rows of tokens as one tensor, filled up on the right."""
    return pad_sequence([as_tensor(row) for row in rows], True, value)


def as_tensor(tokens: Tokens) -> Tensor:
    """Tokens in the type that torch wants of an index."""
    return torch.from_numpy(tokens.astype("int64"))
