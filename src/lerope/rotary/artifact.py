"""frequencies.json: the small file that carries a set of frequencies between people and programs."""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerope.core.checks import check_choice, check_rotary_dim
from lerope.core.encoding import Layout, Parametrization, Sharing, source_name
from lerope.core.files import read_signed, write_signed
from lerope.core.resample import other_bands
from lerope.rotary.frequencies import SIZES, check_frequencies


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where frequencies were learned."""

    source: str
    """The name of a run, or preset:NAME."""
    train_length: int | None
    """Where they were learned, or what a preset was resampled for."""
    fingerprint: str | None
    """Of the file that they were read from; None in the file of the run that learned them."""
    notes: list[str]
    """What was done to them on the way, in sentences."""


@dataclass(frozen=True, kw_only=True)
class Frequencies:
    """The content of a frequencies.json; the frequencies are authoritative, log_scales are for readers."""

    head_dim: int
    rotary_dim: int
    base: float | None
    layout: Layout
    parametrization: Parametrization | None
    sharing: Sharing
    train_length: int | None
    frequencies: list[Any]
    """Radians per token: nested lists of (layers,) (heads,) bands, as `sharing` says."""
    log_scales: list[Any] | None
    """ln(frequency / RoPE's frequency at `base`), null where that is not finite; null without a base."""
    origin: Origin | None = None
    """Null where they were not learned, or nobody said where."""

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, Layout)
        check_choice("sharing", self.sharing, Sharing)
        if self.parametrization is not None:
            check_choice("parametrization", self.parametrization, Parametrization)
        rotary_dim = check_rotary_dim(self.head_dim, self.rotary_dim)
        try:
            values = self.tensor()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"frequencies must be lists of numbers, all of equal length ({error}).") from None
        check_shape(check_frequencies(values), rotary_dim // 2, self.sharing)

    def tensor(self) -> Tensor:
        """The frequencies as a float32 tensor on the CPU."""
        return torch.tensor(self.frequencies, dtype=torch.float32, device="cpu")

    def fingerprint(self) -> str:
        """A hash of every field but the origin: two files with the same fingerprint rotate alike."""
        content = {field: value for field, value in asdict(self).items() if field != "origin"}
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all."""
        if Path(path).is_dir():
            raise ValueError(f"path must be that of a file, such as frequencies.json; got the folder {path}.")
        try:
            write_signed(Path(path), self)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Frequencies":
        """Reads and checks a file; anything wrong with it raises one ValueError that names the file."""
        found = read_signed(Path(path), cls, "save it with encoding.save(path)")
        origin = found.origin
        if origin is None and found.parametrization is not None:  # a file from before origins were kept
            origin = Origin(source=source_name(path), train_length=found.train_length, fingerprint=None, notes=[])
        if origin is not None and origin.fingerprint is None:
            origin = replace(origin, fingerprint=found.fingerprint())
        return replace(found, origin=origin)

    def resampled(self, head_dim: int) -> "Frequencies":
        """The same profile for another head size; see `lerope.core.resample`."""
        if self.rotary_dim != self.head_dim:
            raise ValueError(
                f"rotary_dim must be head_dim = {self.head_dim} for frequencies to be resampled; got {self.rotary_dim}."
            )
        if self.base is None or self.log_scales is None or not bool((self.tensor() > 0).all()):
            raise ValueError("frequencies must be positive and have a base to be resampled, which these are not.")
        base, num_bands = self.base, check_rotary_dim(head_dim, None) // 2
        scales = torch.tensor(self.log_scales, dtype=torch.float64, device="cpu")
        rows = [other_bands(row, base, num_bands) for row in scales.reshape(-1, scales.shape[-1]).tolist()]
        changed = torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(*scales.shape[:-1], num_bands)
        rope = base ** (-torch.arange(num_bands, dtype=torch.float64, device="cpu") / num_bands)
        values = (changed.exp() * rope).float()
        note = f"resampled from head_dim {self.head_dim} to {head_dim}."
        return replace(
            self,
            head_dim=head_dim,
            rotary_dim=head_dim,
            frequencies=values.tolist(),
            log_scales=log_scales(values, rope),
            origin=None if self.origin is None else replace(self.origin, notes=[*self.origin.notes, note]),
        )


def check_shape(frequencies: Tensor, bands: int, sharing: Sharing) -> None:
    """Raises unless the dimensions of `frequencies` match `sharing`."""
    if frequencies.ndim != len(SIZES[sharing]) + 1 or frequencies.shape[-1] != bands:
        shape = ", ".join((*SIZES[sharing], str(bands)))
        raise ValueError(
            f"frequencies must have shape ({shape}) for sharing={sharing!r}; got {tuple(frequencies.shape)}."
        )


def log_scales(frequencies: Tensor, theta: Tensor) -> list[Any]:
    """ln(frequencies / theta) as nested lists, None where the ratio is not positive."""

    def readable(value: Any) -> Any:
        return [*map(readable, value)] if isinstance(value, list) else value if math.isfinite(value) else None

    return [*map(readable, (frequencies.cpu().double() / theta.cpu().double()).log().tolist())]
