"""frequencies.json: the small file that carries a set of frequencies between people and programs."""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerope.core.checks import check_choice, check_rotary_dim
from lerope.core.encoding import Layout, Parametrization, Sharing
from lerope.core.files import read_signed, write_signed
from lerope.rotary.frequencies import SIZES, check_frequencies


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
        """A hash of every field: two files with the same fingerprint rotate alike."""
        text = json.dumps(asdict(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all."""
        try:
            write_signed(Path(path), self)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Frequencies":
        """Reads and checks a file; anything wrong with it raises one ValueError that names the file."""
        return read_signed(Path(path), cls, "save it with encoding.save(path)")


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

    return [*map(readable, (frequencies.double() / theta.double()).log().tolist())]
