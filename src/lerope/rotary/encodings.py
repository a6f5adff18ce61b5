"""NoPE, RoPE, p-RoPE, LeRoPE and frozen frequencies: modules that own frequencies and nothing else.

Every encoding maps (q, k, positions) to rotated (q, k). What it owns stays float32: no cast, no autocast and no
trip through the meta device changes a frequency.
"""

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lerope.core.checks import check_choice, check_count, check_rotary_dim
from lerope.core.encoding import BASE, Layout, Parametrization, Sharing
from lerope.core.recipe import Kernel
from lerope.rotary import frequencies as fq
from lerope.rotary.artifact import Frequencies, Origin, check_shape, log_scales
from lerope.rotary.rotate import Rotation, as_positions, check_heads


class Encoding(nn.Module):
    """Base of all encodings: rotates q and k by `frequencies()`, which a subclass may override.

    Args:
        head_dim: dimensions of one attention head.
        theta: the frequencies a fixed encoding has and a learned one starts from, shape (..., rotary_dim / 2).
        rotary_dim: rotate only this many leading dimensions of each head (prefix-partial rotary, as in GPT-NeoX and
            Phi). Not p-RoPE, which spans the whole head.
        layout: band m is dimensions m and m + rotary_dim / 2 (half) or 2m and 2m + 1 (interleaved).
    """

    theta: Tensor
    base: float | None = None
    parametrization: Parametrization | None = None
    sharing: Sharing = "shared"
    num_layers: int | None = None
    origin: Origin | None = None
    """Where the frequencies that it has, or started from, were learned, if they come from a file."""
    kernel: Kernel = "auto"
    """What rotates: the fused Triton kernel where it can run (auto), that or an error (triton), or plain torch."""

    def __init__(self, head_dim: int, theta: Tensor, *, rotary_dim: int | None = None, layout: Layout = "half") -> None:
        super().__init__()
        self.rotary_dim = check_rotary_dim(head_dim, rotary_dim)
        self.head_dim = head_dim
        check_choice("layout", layout, Layout)
        self.layout = layout
        if fq.check_frequencies(theta).is_meta:
            raise ValueError("frequencies are on the meta device and hold no values; build them with device='cpu'.")
        if 2 * theta.shape[-1] != self.rotary_dim:
            raise ValueError(
                f"theta must have {self.rotary_dim // 2} bands for these dimensions; got {theta.shape[-1]}."
            )
        # Not a buffer, so it is real even under torch.device("meta"): what reset_parameters() restores theta from.
        self._initial_theta = theta.detach().to("cpu", torch.float32, copy=True)
        theta = torch.empty(theta.shape, dtype=torch.float32).copy_(self._initial_theta)
        self.register_buffer("theta", theta, persistent=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets everything to its initial value. Also called on leaving the meta device, which forgets values."""
        self.theta.copy_(self._initial_theta)

    def frequencies(self, layer: int | None = None) -> Tensor:
        """Radians per token, float32 and differentiable: (bands,) or (heads, bands)."""
        return self._of_layer(self.theta, layer)

    def wavelengths(self, layer: int | None = None) -> Tensor:
        """Tokens per full turn; infinite for bands that do not turn."""
        return fq.wavelengths(self.frequencies(layer))

    def rotation(
        self, positions: Tensor, layer: int | None = None, origin: Tensor | int = 0, length: int | None = None
    ) -> Rotation:
        """The rotation for these positions, to be built once per forward pass and called by every layer.

        `origin` lowers the rounding noise of the frequency gradient, `length` the memory of the tables; see Rotation.
        """
        frequencies = self.frequencies(layer)
        return Rotation(positions, frequencies, self.layout, self.head_dim, origin, length, self.kernel)

    def forward(
        self, q: Tensor | None, k: Tensor | None, positions: Tensor | int, layer: int | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Rotates queries and keys.

        Args:
            q, k: (..., length, heads, head_dim); head counts may differ, either may be None.
            positions: integers that broadcast to (..., length), or one integer, the first token's position.
            layer: the calling layer; needed only where layers have their own frequencies.
        """
        rotation = self.rotation(self._check(q, k, positions), layer)
        return None if q is None else rotation.turn(q, "q"), None if k is None else rotation.turn(k, "k")

    def _check(self, q: Tensor | None, k: Tensor | None, positions: Tensor | int) -> Tensor:
        """Checks all three and returns the positions as a tensor."""
        given = [check_heads(name, x, self.head_dim) for name, x in (("q", q), ("k", k)) if x is not None]
        if not given:
            raise ValueError("q and k are both None; pass at least one of them.")
        if given[0].shape[-3] != given[-1].shape[-3]:
            raise ValueError(
                f"q and k must have the same length, because they share positions; got {given[0].shape[-3]} and "
                f"{given[-1].shape[-3]}; rotate new keys before they join the cache."
            )
        return as_positions(positions, given[0])

    def freeze(self, frequencies: Tensor | None = None) -> "FrozenRoPE":
        """The same encoding with fixed frequencies: its own as they are now, or for example an extension's."""
        values = self._all_frequencies() if frequencies is None else frequencies
        frozen = FrozenRoPE(values, self.head_dim, self.sharing, layout=self.layout)
        frozen.base = self.base
        frozen.origin = self._learned_in(None, None) if frequencies is None else None
        return frozen

    def diagnostics(self, train_length: int | None = None, layer: int | None = None) -> fq.Diagnostics:
        """Aliased and dead bands, wavelengths, turns over `train_length`; print it for a table."""
        return fq.diagnose(self.frequencies(layer), train_length)

    def save(self, path: str | os.PathLike[str], train_length: int | None = None) -> None:
        """Writes frequencies.json."""
        self.artifact(train_length).save(path)

    @torch.no_grad()
    def artifact(self, train_length: int | None = None, run: str | None = None) -> Frequencies:
        """What frequencies.json holds: all layers' frequencies and how they came about.

        Args:
            train_length: tokens in a row of the model that has them.
            run: the name of that model's run, which is where learned frequencies come from.
        """
        values = fq.check_frequencies(self._all_frequencies()).float().cpu()
        if train_length is not None:
            check_count("train_length", train_length)
        scales = None if self.base is None else log_scales(values, fq.geometric(self.rotary_dim, self.base))
        return Frequencies(
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            base=self.base,
            layout=self.layout,
            parametrization=self.parametrization,
            sharing=self.sharing,
            train_length=train_length,
            frequencies=values.tolist(),
            log_scales=scales,
            origin=self._learned_in(run, train_length),
        )

    def _learned_in(self, run: str | None, train_length: int | None) -> Origin | None:
        """Where its frequencies, as they are now, were learned; None if nobody said."""
        if not any(True for _ in self.parameters()):
            return self.origin
        if run is None:
            return None
        notes = [] if self.origin is None else [f"started from {self.origin.source}."]
        return Origin(source=run, train_length=train_length, fingerprint=None, notes=notes)

    def extra_repr(self) -> str:
        parts = [f"head_dim={self.head_dim}"]
        parts += [f"base={self.base:g}"] if self.base is not None else []
        parts += [f"rotary_dim={self.rotary_dim}"] if self.rotary_dim != self.head_dim else []
        parts += [f"layout={self.layout!r}"] if self.layout != "half" else []
        return ", ".join(parts)

    def whole(self, parameter: Tensor) -> Tensor:
        """One of this encoding's parameters as a plain float32 tensor, gathered where FSDP2 holds it in shards.

        `frequencies` reads learned parameters through this. The gradient is averaged over ranks as FSDP2 would.
        """
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{type(self).__name__} has a parameter in {parameter.dtype} inside the model: a mixed-precision "
                "wrapper cast it. Give the encoding a unit of its own without mp_policy, fully_shard(encoding), before "
                "fully_shard(model, mp_policy=...)."
            )
        if not hasattr(parameter, "full_tensor"):
            return parameter
        from torch.distributed.tensor import Partial

        sharded: Any = parameter
        gathered: Tensor = sharded.full_tensor(grad_placements=[Partial()] * sharded.device_mesh.ndim)
        num_ranks: int = sharded.device_mesh.size()
        return gathered.detach() + (gathered - gathered.detach()) / num_ranks

    def _all_frequencies(self) -> Tensor:
        """The frequencies of every layer in one tensor, shaped as `sharing` says."""
        if self.num_layers is None:
            return self.frequencies()
        return torch.stack([self.frequencies(layer) for layer in range(self.num_layers)])

    def _of_layer(self, values: Tensor, layer: int | None) -> Tensor:
        """The part of a tensor over all layers that belongs to `layer`; all of it where layers share."""
        if self.num_layers is None:
            return values
        if not isinstance(layer, int) or not 0 <= layer < self.num_layers:
            raise ValueError(f"layer must be 0 to {self.num_layers - 1} for sharing={self.sharing!r}; got {layer!r}.")
        return values[layer]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Encoding":
        """Lets casts and moves change only the device; widening to float64 is allowed, for gradient checks."""
        theta_is_lost, learned_is_lost = self.theta.is_meta, any(p.is_meta for p in self.parameters())

        def pinned(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if not tensor.is_floating_point():
                return moved
            dtype = torch.promote_types(moved.dtype, torch.float32)
            if tensor.is_meta:
                return moved if moved.dtype == dtype else torch.empty_like(moved, dtype=dtype)
            return tensor.to(moved.device, dtype)

        super()._apply(pinned, recurse)
        if not self.theta.is_meta and learned_is_lost:
            self.reset_parameters()
        elif not self.theta.is_meta and theta_is_lost:
            Encoding.reset_parameters(self)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in (*self._parameters, *self._buffers):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and saved.dtype in (torch.bfloat16, torch.float16):
                warnings.warn(
                    f"{prefix}{name} comes from a checkpoint in {saved.dtype} and has lost digits that phases need; "
                    "load a float32 checkpoint, or the frequencies from their frequencies.json.",
                    stacklevel=2,
                )
                state_dict[prefix + name] = saved.float()
        super()._load_from_state_dict(state_dict, prefix, *args)
        loaded = next((p for p in self.parameters() if not p.is_meta), None)
        if self.theta.is_meta and loaded is not None:  # after load_state_dict(assign=True) into a meta build
            self.theta = self._initial_theta.to(loaded.device)


class NoPE(Encoding):
    """No position encoding: q and k come back untouched."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, torch.zeros(check_rotary_dim(head_dim, None) // 2, device="cpu"))

    def forward(
        self, q: Tensor | None, k: Tensor | None, positions: Tensor | int, layer: int | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        self._check(q, k, positions)
        return q, k


class RoPE(Encoding):
    """Fixed frequencies base^(-2m / head_dim). The exponent counts over rotary_dim where that is smaller."""

    def __init__(
        self, head_dim: int, base: float = BASE, *, rotary_dim: int | None = None, layout: Layout = "half"
    ) -> None:
        theta = fq.geometric(check_rotary_dim(head_dim, rotary_dim), base)
        super().__init__(head_dim, theta, rotary_dim=rotary_dim, layout=layout)
        self.base = float(base)


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
    ) -> None:
        check_choice("parametrization", parametrization, Parametrization)
        check_choice("sharing", sharing, Sharing)
        if isinstance(init, Encoding):
            rotary_dim = init.rotary_dim if head_dim is None and rotary_dim is None else rotary_dim
            head_dim = init.head_dim if head_dim is None else head_dim
            if init.layout != layout:
                raise ValueError(f"layout must be that of init, {init.layout!r}; got {layout!r}.")
        head_dim = check_count("head_dim", head_dim)
        theta = fq.geometric(check_rotary_dim(head_dim, rotary_dim), base)
        given = {"num_layers": num_layers, "num_heads": num_heads}
        for field, value in given.items():
            if value is not None or field in fq.SIZES[sharing]:
                check_count(field, value)
        sizes = [check_count(field, given[field]) for field in fq.SIZES[sharing]]
        super().__init__(head_dim, theta, rotary_dim=rotary_dim, layout=layout)
        self.base = float(base)
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
    ) -> None:
        check_choice("sharing", sharing, Sharing)
        bands = fq.check_frequencies(frequencies).shape[-1]
        check_shape(frequencies, bands, sharing)
        super().__init__(2 * bands if head_dim is None else head_dim, frequencies, rotary_dim=2 * bands, layout=layout)
        self.sharing = sharing
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
        return LeRoPE(self.head_dim, base, parametrization, self.sharing, **options)


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


def assign(parameter: Any, value: Tensor) -> None:
    """parameter[:] = value, which every rank holds in full; each keeps its part of a sharded parameter."""
    value = value.to(parameter.device)
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)
