"""NoPE, RoPE, p-RoPE, LeRoPE and frozen frequencies: every encoding maps (q, k, positions) to rotated (q, k)."""

import os
from typing import Any

import torch
from torch import Tensor, nn

from lerope.core.checks import check_choice, check_count, check_rotary_dim
from lerope.core.encoding import BASE, Layout, Parametrization, Sharing
from lerope.rotary import frequencies as fq
from lerope.rotary.artifact import Frequencies, check_shape
from lerope.rotary.encoding import Encoding, assign

__all__ = ["Encoding", "FrozenRoPE", "LeRoPE", "NoPE", "PRoPE", "RoPE", "assign"]


class NoPE(Encoding):
    """No position encoding: q and k come back untouched."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, torch.zeros(check_rotary_dim(head_dim, None) // 2, device="cpu"))

    def forward(
        self,
        q: Tensor | None,
        k: Tensor | None,
        positions: Tensor | int,
        layer: int | None = None,
        heads_first: bool | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        self._given(q, k, positions, heads_first)
        return q, k


class RoPE(Encoding):
    """Fixed frequencies base^(-2m / head_dim). The exponent counts over rotary_dim where that is smaller.

    With several axes each has rotary_dim / axes dimensions, and a series of its own over them: axial RoPE.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = BASE,
        *,
        rotary_dim: int | None = None,
        layout: Layout = "half",
        axes: int = 1,
    ) -> None:
        theta = _series(check_rotary_dim(head_dim, rotary_dim), base, axes)
        super().__init__(head_dim, theta, rotary_dim=rotary_dim, layout=layout)
        self.base = float(base)
        self.axes = axes


class PRoPE(Encoding):
    """p-RoPE: RoPE whose slowest bands, all m >= p * head_dim / 2, do not turn at all."""

    def __init__(self, head_dim: int, base: float = BASE, p: float = 0.75, *, layout: Layout = "half") -> None:
        theta = fq.keep_fastest(fq.geometric(check_rotary_dim(head_dim, None), base), p)
        super().__init__(head_dim, theta, layout=layout)
        self.base = float(base)
        self.p = float(p)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}"


class LeRoPE(Encoding):
    """Learned frequencies: exp(alpha) * theta, one float32 alpha per band, exactly RoPE at the start.

    Args:
        head_dim: dimensions of one attention head.
        base: base of the RoPE it starts from.
        parametrization: exp(alpha) * theta (log), alpha * theta (linear) or alpha itself (direct).
        sharing: one set of frequencies for all (shared), or one per layer, per head, or per layer and head.
        num_layers: number of layers, where layers have frequencies of their own.
        num_heads: number of *key* heads, where heads have frequencies of their own: with grouped queries the heads of
            a group must turn like the key head they read.
        init: an encoding, such as a preset, whose frequencies it starts from instead of RoPE's; `head_dim` and
            `rotary_dim` then default to its own.
        axes: of positions; bands are dealt out evenly among them and start as axial RoPE.
    """

    alpha: nn.Parameter
    parametrization: Parametrization

    def __init__(
        self,
        head_dim: int | None = None,
        base: float = BASE,
        parametrization: Parametrization = "log",
        sharing: Sharing = "shared",
        num_layers: int | None = None,
        num_heads: int | None = None,
        *,
        rotary_dim: int | None = None,
        layout: Layout = "half",
        init: Encoding | None = None,
        axes: int = 1,
    ) -> None:
        check_choice("parametrization", parametrization, Parametrization)
        check_choice("sharing", sharing, Sharing)
        if isinstance(init, Encoding):
            rotary_dim = init.rotary_dim if head_dim is None and rotary_dim is None else rotary_dim
            head_dim = init.head_dim if head_dim is None else head_dim
            if init.layout != layout:
                raise ValueError(f"layout must be that of init, {init.layout!r}; got {layout!r}.")
        head_dim = check_count("head_dim", head_dim)
        theta = _series(check_rotary_dim(head_dim, rotary_dim), base, axes)
        given = {"num_layers": num_layers, "num_heads": num_heads}
        for field, value in given.items():
            if value is not None or field in fq.SIZES[sharing]:
                check_count(field, value)
        sizes = [check_count(field, given[field]) for field in fq.SIZES[sharing]]
        super().__init__(head_dim, theta, rotary_dim=rotary_dim, layout=layout)
        self.base = float(base)
        self.axes = axes
        self.parametrization = parametrization
        self.sharing = sharing
        self.num_layers = num_layers if "num_layers" in fq.SIZES[sharing] else None
        self.alpha = nn.Parameter(torch.empty(*sizes, len(theta), dtype=torch.float32))
        # Like _initial_theta no buffer, so that it is real under torch.device("meta").
        self._start = None if init is None else _start(init, self.alpha.shape, parametrization)
        self.origin = None if init is None else init._learned_in(None, None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        start = self.theta if self._start is None else self._start.to(self.theta.device)
        assign(self.alpha, fq.alpha_for(start.expand(self.alpha.shape), self.theta, self.parametrization))

    def frequencies(self, layer: int | None = None) -> Tensor:
        return fq.learned(self.theta, self._of_layer(self.whole(self.alpha), layer), self.parametrization)

    @classmethod
    def starting_at(
        cls,
        theta: Tensor,
        head_dim: int | None = None,
        parametrization: Parametrization = "log",
        *,
        base: float | None = None,
        layout: Layout = "half",
    ) -> "LeRoPE":
        """A LeRoPE that starts from given frequencies: a pre-trained model's, its RoPE scaling included.

        Args:
            theta: (bands,), radians per token; a band that starts at zero stays there unless learned directly.
            head_dim: dimensions of one head, if more than the 2 * bands that turn.
            base: what frequencies.json says about the model; nothing is computed from it here.
        """
        bands = fq.check_frequencies(theta).shape[-1]
        check_shape(theta, bands, "shared")
        encoding = cls(head_dim or 2 * bands, parametrization=parametrization, rotary_dim=2 * bands, layout=layout)
        encoding.base = base
        encoding._initial_theta = theta.detach().to("cpu", torch.float32, copy=True)
        # As in FrozenRoPE these frequencies are state: no base yields them.
        encoding.register_buffer("theta", encoding.theta, persistent=True)
        encoding.reset_parameters()
        return encoding

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LeRoPE":
        """A LeRoPE that continues learning from a frequencies.json written by a LeRoPE or RoPE."""
        saved = Frequencies.load(path)
        if saved.base is None:
            raise ValueError(f"{path}: base is null, so there is no RoPE to scale; use FrozenRoPE.load.")
        values = saved.tensor()
        parametrization = saved.parametrization or "log"
        if parametrization == "log" and not bool((values > 0).all()):
            raise ValueError(f"{path}: frequencies must be positive to be learned as logarithms; got {values.min()}.")
        sizes = dict(zip(fq.SIZES[saved.sharing], values.shape, strict=False))
        options: dict[str, Any] = {"rotary_dim": saved.rotary_dim, "layout": saved.layout, **sizes}
        encoding = cls(saved.head_dim, saved.base, parametrization, saved.sharing, **options)
        with torch.no_grad():
            encoding.alpha.copy_(fq.alpha_for(values, fq.geometric(saved.rotary_dim, saved.base), parametrization))
        encoding.origin = saved.origin
        return encoding

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, parametrization={self.parametrization!r}, alpha={tuple(self.alpha.shape)}"


class FrozenRoPE(Encoding):
    """Given frequencies that stay as they are: another run's learned ones, or an extension's.

    Args:
        frequencies: (bands,), (heads, bands), (layers, bands) or (layers, heads, bands), as `sharing` says.
        head_dim: dimensions of one head, if more than the 2 * bands that turn.
    """

    def __init__(
        self,
        frequencies: Tensor,
        head_dim: int | None = None,
        sharing: Sharing = "shared",
        *,
        layout: Layout = "half",
        axes: int = 1,
    ) -> None:
        check_choice("sharing", sharing, Sharing)
        bands = fq.check_frequencies(frequencies).shape[-1]
        check_shape(frequencies, bands, sharing)
        super().__init__(2 * bands if head_dim is None else head_dim, frequencies, rotary_dim=2 * bands, layout=layout)
        self.sharing = sharing
        self.axes = check_count("axes", axes)
        self.num_layers = len(frequencies) if "num_layers" in fq.SIZES[sharing] else None
        # Unlike a series that follows from a base, these frequencies are state: the checkpoint must carry them.
        self.register_buffer("theta", self.theta, persistent=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], head_dim: int | None = None) -> "FrozenRoPE":
        """The frequencies of a frequencies.json, fixed.

        Args:
            head_dim: resample them to heads of this size; by default they stay as they are.
        """
        saved = Frequencies.load(path)
        if head_dim is not None and head_dim != saved.head_dim:
            try:
                saved = saved.resampled(head_dim)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        encoding = cls(saved.tensor(), saved.head_dim, saved.sharing, layout=saved.layout)
        encoding.base = saved.base
        encoding.origin = saved.origin
        return encoding

    def learnable(self, parametrization: Parametrization = "log") -> LeRoPE:
        """A LeRoPE that starts here and learns from here on, to a rounding of float32."""
        sizes = dict(zip(fq.SIZES[self.sharing], self.theta.shape, strict=False))
        base = BASE if self.base is None else self.base
        options: dict[str, Any] = {"rotary_dim": self.rotary_dim, "layout": self.layout, "init": self, **sizes}
        options["axes"] = self.axes
        return LeRoPE(self.head_dim, base, parametrization, self.sharing, **options)


def _series(rotary_dim: int, base: float, axes: int) -> Tensor:
    """RoPE's frequencies, once for each axis over its share of the dimensions."""
    if rotary_dim % (2 * check_count("axes", axes)):
        raise ValueError(
            f"{rotary_dim} dimensions that turn must split into pairs for each of {axes} axes; got axes={axes}."
        )
    return fq.geometric(rotary_dim // axes, base).repeat(axes)


def _start(init: Encoding, shape: torch.Size, parametrization: Parametrization) -> Tensor:
    """The frequencies that a LeRoPE with alpha of this shape starts from."""
    if not isinstance(init, Encoding):
        raise ValueError(f"init must be an encoding, such as lerope.preset(...); got {type(init).__name__}.")
    start = init._all_frequencies().detach().to("cpu", torch.float32, copy=True)
    if start.shape not in (shape, shape[-1:]):
        raise ValueError(f"init must have one set of {shape[-1]} bands, or as many as this; got {tuple(start.shape)}.")
    if parametrization != "direct" and not bool((start > 0).all()):
        raise ValueError(
            f"init must have positive frequencies to be learned as scales; got {start.min()}, which "
            "parametrization='direct' takes."
        )
    return start
