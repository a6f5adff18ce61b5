"""Frequencies as plain tensors: the geometric series, p-RoPE, the parametrizations, a diagnosis.

A band m turns by `theta[m]` radians per token. Nothing in this module holds state.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lerope.core.checks import check_count, check_number
from lerope.core.encoding import Parametrization, Sharing

# What each sharing counts, in the order of the dimensions before the bands.
SIZES: dict[Sharing, tuple[str, ...]] = {
    "shared": (),
    "layer": ("num_layers",),
    "head": ("num_heads",),
    "layer_head": ("num_layers", "num_heads"),
}

# Devices whose arithmetic has no float64, in which float32 must do.
NARROW = {"mps"}

# A band that turns by less than this over the train length carries no useful position.
DEAD_TURNS = 0.01


def widest(device: torch.device) -> torch.dtype:
    """The most exact floating-point type of a device."""
    return torch.float32 if device.type in NARROW else torch.float64


def check_frequencies(frequencies: object, look: bool = True) -> Tensor:
    """Raises unless `frequencies` is a float32 or float64 tensor of bands, finite where we may `look` at values."""
    if not isinstance(frequencies, Tensor):
        raise ValueError(f"frequencies must be a tensor; got {type(frequencies).__name__}.")
    if frequencies.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"frequencies must be float32 or float64 (fewer bits ruin phases); got {frequencies.dtype}.")
    if frequencies.ndim == 0 or frequencies.shape[-1] == 0:
        raise ValueError(f"frequencies must have bands in the last dimension; got shape {tuple(frequencies.shape)}.")
    if look and not frequencies.is_meta and not bool(frequencies.isfinite().all()):
        raise ValueError(f"frequencies must be finite; got {frequencies[~frequencies.isfinite()][0].item()}.")
    return frequencies


def geometric(rotary_dim: int, base: float) -> Tensor:
    """RoPE's series base^(-2m / rotary_dim), float32 on the CPU.

    Two float32 roundings, in the order every engine uses them, so that tables agree to the last bit.
    """
    if check_number("base", base) <= 1:
        raise ValueError(f"base must be larger than 1; got {base!r}.")
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device="cpu") / rotary_dim
    return 1.0 / base**exponents


def keep_fastest(theta: Tensor, p: float) -> Tensor:
    """p-RoPE: bands m < p * bands keep their frequency, the slower ones get exactly zero."""
    if not 0 <= check_number("p", p) <= 1:
        raise ValueError(f"p must lie in [0, 1]; got {p!r}.")
    bands = torch.arange(theta.shape[-1], device=theta.device)
    return torch.where(bands < p * theta.shape[-1], theta, torch.zeros_like(theta))


def learned(theta: Tensor, alpha: Tensor, parametrization: Parametrization) -> Tensor:
    """theta_hat from alpha: exp(alpha) * theta (log), alpha * theta (linear) or alpha (direct).

    The exponential is taken in float64 and rounded once: a float32 error of 1 in the last place would
    be 0.008 rad at position 131,072.
    """
    if parametrization == "direct":
        return alpha
    if parametrization == "linear":
        return alpha * theta
    wide = widest(alpha.device)
    return (alpha.to(wide).exp() * theta.to(wide)).to(alpha.dtype)


def alpha_for(frequencies: Tensor, theta: Tensor, parametrization: Parametrization) -> Tensor:
    """The alpha at which `learned` returns `frequencies`, exactly for theta itself."""
    if parametrization == "direct":
        return frequencies.clone()
    # Where theta is zero and must stay so, the ratio is not a number.
    wide = widest(frequencies.device)
    scale = torch.where(frequencies == theta, 1.0, frequencies.to(wide) / theta.to(wide))
    return (scale.log() if parametrization == "log" else scale).to(theta.dtype)


def wavelengths(frequencies: Tensor) -> Tensor:
    """Tokens per full turn, 2 pi / |theta|; infinite for a band that does not turn."""
    return 2 * math.pi / frequencies.abs()


@dataclass(frozen=True)
class Diagnostics:
    """What a set of frequencies does over a train length, band by band."""

    frequencies: Tensor
    wavelengths: Tensor
    train_length: int | None
    aliased: Tensor
    """True where a band turns by more than pi per token: it then looks like a slower one."""
    dead: Tensor
    """True where a band turns by less than 1 % of a turn over the train length (or not at all)."""
    turns: Tensor | None
    """Full turns over the train length."""

    def __str__(self) -> str:
        flat = self.frequencies.flatten(0, -2) if self.frequencies.ndim > 1 else self.frequencies[None]
        aliased, dead = self.aliased.reshape(flat.shape), self.dead.reshape(flat.shape)
        lines = []
        for row, (values, over, still) in enumerate(zip(flat, aliased, dead, strict=True)):
            if len(flat) > 1:
                lines.append(f"set {row}")
            unit = "" if self.train_length is None else f"   turns in {self.train_length:,}"
            lines.append(f"band   rad/token    wavelength{unit}")
            for m, theta in enumerate(values.tolist()):
                wavelength = 2 * math.pi / abs(theta) if theta else math.inf
                turns = "" if self.train_length is None else f"{self.train_length / wavelength:14.4g}"
                note = "  aliased" if over[m] else "  dead" if still[m] else ""
                lines.append(f"{m:4d}  {theta:10.4g}  {wavelength:12.6g}{turns}{note}")
        lines.append(f"{int(self.aliased.sum())} aliased, {int(self.dead.sum())} dead of {self.dead.numel()} bands")
        return "\n".join(lines)


def diagnose(frequencies: Tensor, train_length: int | None = None) -> Diagnostics:
    """Finds aliased and dead bands, and counts turns over `train_length` if one is given."""
    values = check_frequencies(frequencies).detach().cpu()
    turns = None
    dead = values == 0
    if train_length is not None:
        turns = values.abs() * check_count("train_length", train_length) / (2 * math.pi)
        dead = turns < DEAD_TURNS
    return Diagnostics(
        frequencies=values,
        wavelengths=wavelengths(values),
        train_length=train_length,
        aliased=values.abs() > math.pi,
        dead=dead,
        turns=turns,
    )
