"""What stands in for a transformers rotary module: positions to cosines and sines, with gradients."""

import warnings
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lerope.core.encoding import Layout
from lerope.core.recipe import Kernel
from lerope.interop.fused import Turn, takes_turns
from lerope.rotary.dispatch import choose
from lerope.rotary.encodings import Encoding
from lerope.rotary.frequencies import widest
from lerope.rotary.rotation import Rotation

# What a set of frequencies is called where all layers share it.
SHARED = "shared"
# How cosines and sines of the bands lie: twice, in one of two orders; once (GPT-OSS); or as complex numbers (Llama 4).
Form = Literal["half", "interleaved", "once", "complex"]


class Arrangement(NamedTuple):
    """How a model wants its cosines and sines, and what its layers do with them.

    Attributes:
        form: how bands lie.
        casts: whether they come in the dtype of the hidden states.
        axes: the axis of each band, where positions have several: (axes, rows, length).
        modeling: the module whose `apply_rotary_pos_emb` turns queries and keys, if we know what it does.
        turns: how that function pairs dimensions.
    """

    form: Form
    casts: bool = True
    axes: tuple[int, ...] | None = None
    modeling: str | None = None
    turns: Layout = "half"


class Rotary(nn.Module):
    """What stands in for a transformers rotary module.

    The encodings are called `inv_freq` because plain transformers skips checkpoint keys of that name.

    Args:
        encodings: one per kind of layer, or one called `shared`.
        scaling: what cosines and sines are multiplied by, for each of them.
        arrangement: how the model wants them.
        kernel: what turns queries and keys: the fused kernel where it can run (auto), that or an error (triton), or
            the model's own formula (reference).
    """

    def __init__(
        self,
        encodings: dict[str, Encoding],
        scaling: dict[str, float],
        arrangement: Arrangement,
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__()
        self.inv_freq = encodings[SHARED] if SHARED in encodings else nn.ModuleDict(encodings)
        self.scaling = scaling
        self.arrangement = arrangement
        self.kernel: Kernel = kernel
        self.plain: type[nn.Module] | None = None
        """The class of the module that it stands in for."""
        self.is_buffer = False
        """Whether that module keeps its frequencies among the weights, as a buffer (ESM), and config.json has none."""
        self.in_weights = True
        """Whether `save_pretrained` writes the frequencies among the weights; else only config.json has them."""
        self.warns = True
        """Whether to warn of weights that bring no frequencies."""
        self._prepare()

    def _prepare(self) -> None:
        """Makes layers take what `forward` may give; also after a copy, which may be in another process."""
        if self.arrangement.modeling is not None and self.kernel != "reference":
            takes_turns(self.arrangement.modeling)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    @property
    def encodings(self) -> dict[str, Encoding]:
        """The encodings by kind of layer; one called `shared` where there are no kinds."""
        if isinstance(self.inv_freq, Encoding):
            return {SHARED: self.inv_freq}
        return {kind: encoding for kind, encoding in self.inv_freq.items() if isinstance(encoding, Encoding)}

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Cosines and sines, (rows, length, rotary_dim), for hidden states x and integer positions.

        Where the fused kernel turns queries and keys, a `Turn` in place of either.
        """
        kind = layer_type or SHARED
        encoding = self.inv_freq if isinstance(self.inv_freq, Encoding) else self.inv_freq[kind]
        assert isinstance(encoding, Encoding)
        if self._fuses(x, encoding):
            turn = self._turn(encoding, position_ids, self.scaling[kind])
            return turn, turn
        arguments = (position_ids, self.scaling[kind], self.arrangement)
        learned = _learned(encoding)
        if learned:
            cos, sin = _Tables.apply(encoding, *arguments, *learned)
        else:
            cos, sin = tables(encoding.frequencies(), *arguments)
        if self.arrangement.form == "complex":
            return torch.complex(cos, sin).to(x.device)
        dtype = x.dtype if self.arrangement.casts else cos.dtype
        return cos.to(x.device, dtype), sin.to(x.device, dtype)

    def _fuses(self, x: Tensor, encoding: Encoding) -> bool:
        """Whether the fused kernel turns this model's queries and keys."""
        if self.kernel == "reference" or self.arrangement.modeling is None:
            return False
        if not torch.compiler.is_compiling():
            self._prepare()  # again, because patches of others, such as Liger's, may have come after ours
        return choose(self.kernel, x, frequencies=encoding.theta).kernel == "triton"

    def _turn(self, encoding: Encoding, positions: Tensor, scaling: float) -> Turn:
        learned = _learned(encoding)
        frequencies: Tensor = _Frequencies.apply(encoding, *learned) if learned else encoding.frequencies()
        return Turn(
            Rotation(
                positions.to(frequencies.device), frequencies, self.arrangement.turns, kernel=self.kernel, scale=scaling
            )
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        learns = any(p.requires_grad for p in self.parameters())
        if learns and self.warns and not any(key.startswith(f"{prefix}inv_freq.") for key in state_dict):
            warnings.warn(
                "these weights hold no learned frequencies, so the model keeps those it has, which is right only if it "
                "was converted from their folder; else load and convert that folder, or resume with LeropeCallback.",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


def tables(frequencies: Tensor, positions: Tensor, scaling: float, arrangement: Arrangement) -> tuple[Tensor, Tensor]:
    """Cosines and sines in float32, in the arithmetic order of transformers."""
    phases = _offsets(frequencies, positions, arrangement.axes) * frequencies
    if arrangement.form == "complex":
        turns = torch.polar(torch.ones_like(phases), phases) * scaling
        return turns.real, turns.imag
    if arrangement.form == "half":
        phases = torch.cat((phases, phases), dim=-1)
    elif arrangement.form == "interleaved":
        phases = phases.repeat_interleave(2, dim=-1)
    return phases.cos() * scaling, phases.sin() * scaling


def _offsets(frequencies: Tensor, positions: Tensor, axes: tuple[int, ...] | None) -> Tensor:
    """(rows, length, 1), or the position of each band along its own axis, (rows, length, bands)."""
    positions = positions.to(frequencies.device)
    if axes is None:
        return positions[..., None].to(frequencies.dtype)
    if positions.ndim == 2:
        positions = positions.expand(max(axes) + 1, -1, -1)
    return positions[list(axes)].movedim(0, -1).to(frequencies.dtype)


def _learned(encoding: Encoding) -> list[Tensor]:
    """The parameters for which a node of our own stands in; none where autograd or the compiler does as well."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return []
    return [p for p in encoding.parameters() if p.requires_grad]


class _Frequencies(torch.autograd.Function):
    """An encoding's frequencies as a node through which backward may run more than once.

    Reentrant checkpointing runs backward once per layer through what layers share, so nothing here may be freed.
    """

    @staticmethod
    def forward(ctx: Any, encoding: Encoding, *learned: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.frequencies, ctx.learned = encoding.frequencies(), learned
        values: Tensor = ctx.frequencies.detach()
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *torch.autograd.grad(ctx.frequencies, ctx.learned, grad, retain_graph=True)


class _Tables(torch.autograd.Function):
    """`tables` of an encoding as one node that keeps no tensors, for the same reason."""

    @staticmethod
    def forward(
        ctx: Any, encoding: Encoding, positions: Tensor, scaling: float, arrangement: Arrangement, *learned: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.arguments, ctx.learned = (positions, scaling, arrangement), learned
        with torch.enable_grad():
            ctx.frequencies = encoding.frequencies()
        return tables(ctx.frequencies.detach(), *ctx.arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_cos: Tensor, grad_sin: Tensor) -> tuple[Tensor | None, ...]:
        positions, _, arrangement = ctx.arguments
        frequencies = ctx.frequencies.detach()
        cos, sin = tables(frequencies, *ctx.arguments)
        torque = grad_sin * cos - grad_cos * sin
        if arrangement.form == "half":
            torque = torque.unflatten(-1, (2, -1)).sum(-2)
        elif arrangement.form == "interleaved":
            torque = torque.unflatten(-1, (-1, 2)).sum(-1)
        torque = torque.to(widest(torque.device)) * _offsets(frequencies, positions, arrangement.axes)
        gradient = torque.flatten(0, -2).sum(0).to(frequencies.dtype)
        found = torch.autograd.grad(ctx.frequencies, ctx.learned, gradient, retain_graph=True)
        return None, None, None, None, *found
