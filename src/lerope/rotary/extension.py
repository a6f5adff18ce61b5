"""Longer contexts at inference: position interpolation, NTK-by-parts, YaRN, slow bands alone, the dominant band alone,
logits alone.

They multiply frequencies by factors between s = train_length / length and 1, logits by one above 1, or both, and do
nothing at or below the train length. Rotations are counted with the actual frequencies, learned or not.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lerope.core.checks import check_choice, check_count, check_number
from lerope.rotary.frequencies import check_frequencies, geometric, widest

Method = Literal["none", "pi", "ntk_by_parts", "yarn", "slow_bands", "dominant_band", "logits"]
WITH_TEMPERATURE = ("yarn", "slow_bands", "dominant_band", "logits")

# Bands with fewer turns over the train length than the first are interpolated, those with more than the second kept.
SLOW_TURNS, FAST_TURNS = 1.0, 32.0


class Extension(NamedTuple):
    """Frequencies for a length beyond the train length, and what to multiply attention logits by."""

    frequencies: Tensor
    """Shape `(*length.shape, *frequencies.shape)`."""
    logit_scale: Tensor | float
    """A float for one length, a tensor of length's shape for many."""


def extend(
    frequencies: Tensor,
    *,
    train_length: int,
    length: int | Tensor,
    method: Method,
    dominant_band: int | None = None,
    temperature: float = 0.1,
    index_ramp_base: float | None = None,
) -> Extension:
    """Adapts frequencies to documents longer than those of training.

    Args:
        frequencies: (..., bands), radians per token; zeros stay zero.
        train_length: the row length of training, in tokens.
        length: the length the model will see, or a tensor with one length per document.
        method: `none`; `pi` slows all bands by s; `ntk_by_parts` slows bands more the fewer turns they made in
            training; `yarn` is ntk_by_parts and a temperature; `slow_bands` slows bands that made less than one turn in
            training, all alike, and no other; `dominant_band` slows only one band; `logits` slows none, so that
            `length` may be a tensor of each query's position + 1, and the extension grows with the text (see
            `scale_by_position`).
        dominant_band: which band that is.
        temperature: c in logit_scale = (c ln(length / train_length) + 1)^2, for `yarn`, `slow_bands`,
            `dominant_band` and `logits`; 0 for none.
        index_ramp_base: ramp linearly over band *indices*, found from this RoPE base, instead of over turns. That is
            what Hugging Face and the engines call YaRN. Right only for a fixed RoPE of this base, and not used by the
            paper; here so that the two can be compared.
    """
    check_choice("method", method, Method)
    check_frequencies(frequencies)
    check_count("train_length", train_length)
    if check_number("temperature", temperature) < 0:
        raise ValueError(f"temperature must be 0 or more; got {temperature!r}.")
    factor = _factor(length, train_length, frequencies)
    s = (1.0 / factor)[(..., *[None] * frequencies.ndim)]
    wide = frequencies.to(widest(frequencies.device))
    if method in ("ntk_by_parts", "yarn"):
        if index_ramp_base is None:
            kept = _turn_ramp(wide, train_length)
        else:
            kept = _index_ramp(wide, train_length, index_ramp_base)
        multiplier = s + kept * (1 - s)
    elif method == "slow_bands":
        multiplier = torch.where(_turns(wide, train_length) < SLOW_TURNS, s, torch.ones_like(s))
    elif method == "dominant_band":
        bands = torch.arange(frequencies.shape[-1], device=frequencies.device)
        band = _check_band(dominant_band, frequencies.shape[-1])
        multiplier = torch.where(bands == band, s, torch.ones_like(s))
    else:
        multiplier = s if method == "pi" else torch.ones_like(s)
    logit_scale = torch.ones_like(factor)
    if method in WITH_TEMPERATURE:
        logit_scale = (temperature * factor.log() + 1).square()
    return Extension(
        frequencies=(wide * multiplier).to(frequencies.dtype),
        logit_scale=logit_scale.to(frequencies.dtype) if isinstance(length, Tensor) else logit_scale.item(),
    )


def scale_by_position(positions: Tensor, train_length: int, temperature: float) -> Tensor:
    """What to multiply queries at these positions by, float32: method `logits`, each query by the text it sees.

    Nothing has to be known of the text's end, keys in a cache stay right, and within the train length it is 1.
    """
    return extend(
        torch.ones(1, device=positions.device),
        train_length=train_length,
        length=positions + 1,
        method="logits",
        temperature=temperature,
    ).logit_scale  # type: ignore[return-value]  # many lengths give a tensor


def _factor(length: int | Tensor, train_length: int, like: Tensor) -> Tensor:
    """How many times longer than training, at least 1, as exactly as the device can."""
    if isinstance(length, Tensor):
        if length.is_floating_point() or length.is_complex() or length.dtype == torch.bool:
            raise ValueError(f"length must be integers; got {length.dtype}.")
        if length.numel() and int(length.min()) < 1:
            raise ValueError(f"length must be positive; got {int(length.min())}.")
    else:
        length = torch.tensor(check_count("length", length))
    return (length.to(like.device).to(widest(like.device)) / train_length).clamp(min=1.0)


def _turns(frequencies: Tensor, train_length: int) -> Tensor:
    """How often bands turn over the train length."""
    return frequencies.abs() * train_length / (2 * math.pi)


def _turn_ramp(frequencies: Tensor, train_length: int) -> Tensor:
    """w in the paper's M = s + w (1 - s): 0 below SLOW_TURNS over the train length, 1 above FAST_TURNS."""
    return ((_turns(frequencies, train_length) - SLOW_TURNS) / (FAST_TURNS - SLOW_TURNS)).clamp(0, 1)


def _index_ramp(frequencies: Tensor, train_length: int, base: float) -> Tensor:
    """The same weight by band index, between the bands that would make FAST_TURNS and SLOW_TURNS turns at `base`."""
    dim = 2 * frequencies.shape[-1]
    geometric(dim, base)  # for its check of base

    def band(turns: float) -> float:
        return dim * math.log(train_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(band(FAST_TURNS)), 0)
    last = min(math.ceil(band(SLOW_TURNS)), dim - 1)
    bands = torch.arange(frequencies.shape[-1], dtype=frequencies.dtype, device=frequencies.device)
    return 1 - ((bands - first) / max(last - first, 0.001)).clamp(0, 1)


def _check_band(band: int | None, num_bands: int) -> int:
    if isinstance(band, bool) or not isinstance(band, int) or not 0 <= band < num_bands:
        raise ValueError(f"dominant_band must be 0 to {num_bands - 1} for method='dominant_band'; got {band!r}.")
    return band
