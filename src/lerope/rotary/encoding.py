"""What all encodings share: they own frequencies and nothing else, and rotate queries and keys by them.

What an encoding owns stays float32: no cast, no autocast and no trip through the meta device changes a frequency.
"""

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lerope.core.checks import check_choice, check_count, check_rotary_dim
from lerope.core.encoding import Layout, Parametrization, Sharing
from lerope.core.recipe import Kernel
from lerope.rotary import frequencies as fq
from lerope.rotary.artifact import Frequencies, Origin, log_scales
from lerope.rotary.inputs import as_positions, check_heads, heads_last
from lerope.rotary.rotation import Rotation

if TYPE_CHECKING:
    from lerope.rotary.encodings import FrozenRoPE


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
    axes: int = 1
    """Of positions, which are (..., length, axes) where there are several, as of an image's patches."""
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
        return Rotation(positions, frequencies, self.layout, self.head_dim, origin, length, self.kernel, axes=self.axes)

    def forward(
        self,
        q: Tensor | None,
        k: Tensor | None,
        positions: Tensor | int,
        layer: int | None = None,
        heads_first: bool | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Rotates queries and keys.

        Args:
            q, k: (..., length, heads, head_dim); head counts may differ, either may be None.
            positions: integers that broadcast to (..., length), or one integer, the first token's position; of an
                encoding with several axes (..., length, axes).
            layer: the calling layer; needed only where layers have their own frequencies.
            heads_first: whether q and k are (..., heads, length, head_dim) instead; must be said only where one
                integer is the position and it might be one token of several heads or several tokens of one head, and
                should be where there may be as many tokens as heads, which warns.
        """
        q, k, positions = self._given(q, k, positions, heads_first)
        rotation = self.rotation(positions, layer)
        turned = (None if x is None else rotation.turn(x, name) for name, x in (("q", q), ("k", k)))
        q, k = (x.transpose(-3, -2) if heads_first and x is not None else x for x in turned)
        return q, k

    def _given(
        self, q: Tensor | None, k: Tensor | None, positions: Tensor | int, heads_first: bool | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """What `forward` was given, checked: (..., length, heads, head_dim) each, and a position for every token."""
        q, k = (None if x is None else heads_last(name, x, heads_first) for name, x in (("q", q), ("k", k)))
        given = [check_heads(name, x, self.head_dim) for name, x in (("q", q), ("k", k)) if x is not None]
        if not given:
            raise ValueError("q and k are both None; pass at least one of them.")
        if given[0].shape[-3] != given[-1].shape[-3]:
            raise ValueError(
                f"q and k must have the same length, because they share positions; got {given[0].shape[-3]} and "
                f"{given[-1].shape[-3]}; rotate new keys before they join the cache, and pass heads_first=True if "
                "heads come before the length."
            )
        return q, k, as_positions(positions, given, heads_first)

    def freeze(self, frequencies: Tensor | None = None) -> "FrozenRoPE":
        """The same encoding with fixed frequencies: its own as they are now, or for example an extension's."""
        from lerope.rotary.encodings import FrozenRoPE

        values = self._all_frequencies() if frequencies is None else frequencies
        frozen = FrozenRoPE(values, self.head_dim, self.sharing, layout=self.layout, axes=self.axes)
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
        if self.axes != 1:
            raise ValueError(
                f"frequencies.json is for positions with one axis; got axes={self.axes}; save the state_dict instead."
            )
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
        parts += [f"axes={self.axes}"] if self.axes != 1 else []
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


def assign(parameter: Any, value: Tensor) -> None:
    """parameter[:] = value, which every rank holds in full; each keeps its part of a sharded parameter."""
    value = value.to(parameter.device)
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)
