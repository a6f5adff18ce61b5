"""The rotation itself: exact gradients for inputs and frequencies, float32 inside, by whichever kernel can run.

Shapes: x is (..., length, heads, head_dim), positions (..., length), frequencies (bands,), (heads, bands) or anything
that broadcasts to (..., length, heads, bands).
"""

import math
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lerope.core.checks import check_choice, check_positive
from lerope.core.encoding import Layout
from lerope.core.recipe import Kernel
from lerope.rotary import formula
from lerope.rotary.dispatch import Choice, choose
from lerope.rotary.frequencies import check_frequencies
from lerope.rotary.inputs import check_heads, check_positions

Gains = tuple[Tensor, Tensor]
"""Of the norms of queries and keys, (head_dim,) each."""


class Arguments(NamedTuple):
    """What the fused kernel takes besides q and k; see `operators.rotary`."""

    frequencies: Tensor
    cos: Tensor
    sin: Tensor
    entries: Tensor | None
    offsets: Tensor
    half: bool
    q_gain: Tensor | None
    k_gain: Tensor | None
    eps: float


class Rotation:
    """cos and sin for one set of positions: built once per forward pass, called by every layer.

    An opaque class on purpose: FSDP and DDP cast the float tensors they find in tuples and dataclasses to the
    mixed-precision dtype, which would silently ruin the tables.
    """

    __slots__ = ("cos", "frequencies", "head_dim", "index", "kernel", "layout", "offsets", "sin")

    def __init__(
        self,
        positions: Tensor,
        frequencies: Tensor,
        layout: Layout = "half",
        head_dim: int | None = None,
        origin: Tensor | int = 0,
        length: int | None = None,
        kernel: Kernel = "auto",
        scale: float = 1.0,
        axes: int = 1,
    ):
        """Builds the tables.

        Args:
            head_dim: given where a head has more dimensions than the 2 * bands that turn.
            origin: subtracted from the positions where the gradient of the frequencies is summed, and only there.
                Attention depends on differences of positions alone, so any origin per document gives the same
                gradient, and the document's centre gives it with the least rounding noise.
            length: a promise that positions lie in [0, length). The fused kernel then reads one small table however
                many tokens there are, and gives NaN where the promise is broken.
            kernel: the fused Triton kernel where it can run (auto), that kernel or an error (triton), or plain torch.
            scale: what turned dimensions are multiplied by, as YaRN's attention factor.
            axes: of positions, which are then (..., length, axes), as of an image's patches. Bands are dealt out
                evenly: the first bands / axes turn along the first axis, and so on.
        """
        check_choice("layout", layout, Layout)
        check_choice("kernel", kernel, Kernel)
        self.frequencies = check_frequencies(frequencies, look=False)
        if check_positions(positions).ndim == 0:
            raise ValueError("positions must have a length dimension here; got a single integer; pass a range.")
        if positions.device != frequencies.device:
            raise ValueError(
                f"positions must be on {frequencies.device}, where the frequencies are; got {positions.device}; move "
                "the encoding to the model's device."
            )
        self.layout, self.kernel = layout, kernel
        self.head_dim = 2 * frequencies.shape[-1] if head_dim is None else head_dim
        positions = _of_bands(positions, frequencies.shape[-1], axes)
        offsets = positions.long() - (origin[..., None, None] if isinstance(origin, Tensor) else origin)
        self.offsets = offsets.to(frequencies.dtype)
        self.index: Tensor | None = None
        if length is not None:
            check_positive("length", length)
            fuses = choose(kernel, frequencies=frequencies).kernel == "triton"
            if fuses and positions.ndim > 3 and frequencies.ndim <= 2 and axes == 1:
                outside = (positions < 0) | (positions >= length)
                self.index = positions.masked_fill(outside, length)[..., 0, 0].to(torch.int32)
                positions = torch.arange(length, device=positions.device)[:, None, None]
        phases = (positions.to(frequencies.dtype) * frequencies).detach()
        if self.index is not None:
            # One more entry, for positions that break the promise.
            phases = functional.pad(phases, (0, 0, 0, 0, 0, 1), value=math.nan)
        self.cos, self.sin = phases.cos(), phases.sin()
        if scale != 1.0:
            self.cos, self.sin = self.cos * scale, self.sin * scale

    def to(self, device: torch.device | str | int) -> "Rotation":
        """The same rotation on another device; the frequencies there have a gradient too."""
        moved = copy(self)
        moved.frequencies, moved.cos, moved.sin = (t.to(device) for t in (self.frequencies, self.cos, self.sin))
        moved.offsets = self.offsets.to(device)
        moved.index = None if self.index is None else self.index.to(device)
        return moved

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Turns queries and keys."""
        arguments = self._together(q, k)
        return (self.turn(q, "q"), self.turn(k, "k")) if arguments is None else self._launched(q, k, arguments)

    def after_norm(self, q: Tensor, k: Tensor, q_norm: nn.RMSNorm, k_norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
        """Turns q_norm(q) and k_norm(k), both norms over the dimensions of a head; in one kernel where that can run.

        The fused result has q's dtype and is rounded once, at the end.
        """
        arguments = self.fused(q, k, q_norm, k_norm)
        return self(q_norm(q), k_norm(k)) if arguments is None else self._launched(q, k, arguments)

    def after_gains(
        self, q: Tensor, k: Tensor, q_gain: Tensor, k_gain: Tensor, eps: float
    ) -> tuple[Tensor, Tensor] | None:
        """Turns q and k after RMS norms with these gains, (head_dim,) each, in one kernel; None if that cannot run."""
        arguments = self._together(q, k, (q_gain, k_gain), eps)
        return None if arguments is None else self._launched(q, k, arguments)

    def fused(self, q: Tensor, k: Tensor, q_norm: nn.RMSNorm, k_norm: nn.RMSNorm) -> Arguments | None:
        """What the fused kernel needs, besides q and k, to turn them after their norms; None if it cannot."""
        if type(self) is not Rotation or any(type(norm) is not nn.RMSNorm for norm in (q_norm, k_norm)):
            return None  # a subclass with work of its own
        eps = q_norm.eps
        if not eps or eps != k_norm.eps or q_norm.weight is None or k_norm.weight is None:
            return None
        return self._together(q, k, (q_norm.weight, k_norm.weight), eps)

    def _together(self, q: Tensor, k: Tensor, gains: Gains | None = None, eps: float = 0.0) -> Arguments | None:
        """What one launch needs to turn q and k, after norms where there are gains; None if it cannot."""
        same = q.shape[:-2] == k.shape[:-2] and q.dtype == k.dtype
        fits = gains is None or (eps > 0 and all(gain.shape == q.shape[-1:] for gain in gains))
        if not same or not fits or self.choice(q, k, *(gains or ())).kernel != "triton":
            return None
        self._check("q", q)
        self._check("k", k)
        return self._arguments(q, gains, eps)

    def turn(self, x: Tensor, name: str = "x") -> Tensor:
        """Turns one tensor of shape (..., length, heads, head_dim)."""
        self._check(name, x)
        if self.choice(x).kernel == "triton":
            return self._launched(x, None, self._arguments(x))[0]
        frequencies, cos, sin, offsets = self.frequencies, self.cos, self.sin, self.offsets
        if self.index is not None:
            cos, sin = cos[self.index], sin[self.index]
        half, num_sets = self.layout == "half", cos.shape[-2]
        if num_sets == 1 or num_sets == x.shape[-2]:
            return formula.turn(x, frequencies, cos, sin, offsets, half, -3)
        # Grouped queries: the heads of a group turn like the key head they read.
        tables = (t.unsqueeze(-2) for t in (frequencies, cos, sin, offsets))
        return formula.turn(x.unflatten(-2, (num_sets, -1)), *tables, half, -4).flatten(-3, -2)

    def choice(self, *tensors: Tensor) -> Choice:
        """Which kernel turns these tensors, and why; raises if one requested by name cannot run."""
        chosen = choose(self.kernel, *tensors, frequencies=self.frequencies)
        if chosen.kernel == "reference":
            return chosen
        if self.frequencies.requires_grad and self.offsets.shape[-1] > 1:
            reason, fix = "positions have several axes and frequencies are learned", "leave"
        elif self.index is None and not self._lies_along(tensors[0]):
            reason, fix = "positions broadcast over inner dimensions", "give every token its position, or leave"
        else:
            return chosen
        if self.kernel == "triton":
            raise ValueError(f"kernel 'triton' cannot run here, because {reason}; {fix} the kernel at 'auto'.")
        return Choice("reference", reason)

    def _lies_along(self, x: Tensor) -> bool:
        """Whether the tables, repeated end to end, give each token of x its own."""
        lead = tuple(self.cos.shape[:-2])
        while len(lead) > 1 and lead[0] == 1:
            lead = lead[1:]
        return lead == tuple(x.shape[:-2])[x.ndim - 2 - len(lead) :]

    @staticmethod
    def _launched(q: Tensor, k: Tensor | None, arguments: Arguments) -> tuple[Tensor, Tensor]:
        from lerope.rotary.operators import rotary

        out: tuple[Tensor, Tensor] = rotary(q, k, *arguments)
        return out

    def _arguments(self, q: Tensor, gains: Gains | None = None, eps: float = 0.0) -> Arguments:
        cos, sin = (t.reshape(-1, *t.shape[-2:]).contiguous() for t in (self.cos, self.sin))
        index, offsets = self.index, self.offsets[..., 0, 0]
        if index is not None:
            index = index.expand(q.shape[:-2]).contiguous()
        if index is not None or offsets.numel() != cos.shape[0]:
            offsets = offsets.expand(q.shape[:-2])
        half = self.layout == "half"
        q_gain, k_gain = gains or (None, None)
        return Arguments(self.frequencies, cos, sin, index, offsets.flatten(), half, q_gain, k_gain, eps)

    def _check(self, name: str, x: Tensor) -> None:
        check_heads(name, x, self.head_dim)
        *lead, num_sets, _ = self.cos.shape
        if self.index is not None:
            lead = list(self.index.shape)
        if x.shape[-2] % num_sets:
            raise ValueError(
                f"{name} must have a multiple of {num_sets} heads, because that many key heads have frequencies of "
                f"their own; got {x.shape[-2]}."
            )
        wanted = x.shape[:-2]
        pairs = zip(reversed(lead), reversed(wanted), strict=False)
        if len(lead) > len(wanted) or any(a != 1 and a != b for a, b in pairs):
            hint = "; pass heads_first=True if heads come before the length" if x.shape[-2] == lead[-1] else ""
            raise ValueError(
                f"positions must broadcast to {tuple(wanted)}, the dimensions of {name} before heads and head_dim; "
                f"got {tuple(lead)}{hint}."
            )


def _of_bands(positions: Tensor, bands: int, axes: int) -> Tensor:
    """(..., length, 1, 1), or with several axes each band's position along its own, (..., length, 1, bands)."""
    if check_positive("axes", axes) == 1:
        return positions[..., None, None]
    if bands % axes or positions.shape[-1] != axes or positions.ndim < 2:
        raise ValueError(
            f"positions must have shape (..., length, {axes}) and bands must be a multiple of {axes}, the number of "
            f"axes; got positions of shape {tuple(positions.shape)} and {bands} bands."
        )
    return positions.repeat_interleave(bands // axes, dim=-1)[..., None, :]
