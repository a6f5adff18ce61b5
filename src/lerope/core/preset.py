"""Presets: frequencies that were learned once, as a small file that says where they come from.

A preset holds a profile, alpha(u) with u = 2m / head_dim, for one train length or several. It is read by name from the
package or by the path of a file, and resampled to the head size and train length that are asked for.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lerope.core.checks import check_count, check_number, check_rotary_dim, hint
from lerope.core.files import read_signed, write_signed
from lerope.core.resample import Curve, Learned, resample

FOLDER = Path(__file__).with_name("presets")
"""Where the package has its own."""
MAKE = "lerope presets make RUN... --name NAME"
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What runs learned at one train length."""

    train_length: int
    log_scales: list[float]
    """alpha of band m, at u = m / bands: the mean over runs."""
    spread: list[float] | None
    """Its standard deviation between runs, band by band; None for one run."""
    dominant_wavelength: float | None
    """In tokens, the geometric mean over runs where `lerope analyze` found a band that stands out; None if nowhere."""
    rungs: list[str]
    seeds: list[int]
    steps: list[int]
    runs: list[str]
    """Their names."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What it is worth, in one setting."""

    text: list[str]
    train_length: int
    head_dim: int
    rung: str
    seeds: list[int]
    held_out: bool
    """Whether none of these runs went into the profiles."""
    gain: float
    """Nats per token by which LeRoPE is below RoPE."""
    method: str | None
    """What fixed frequencies were trained as: preset:NAME or frozen; None if nothing was."""
    captured: float | None
    """The share of the gain that they keep."""


@dataclass(frozen=True, kw_only=True)
class Resampled:
    """A preset for one head size and train length."""

    frequencies: list[float]
    """Radians per token, the fastest band first."""
    train_length: int
    notes: list[str]
    """What was done to it, in sentences."""
    is_extrapolated: bool
    """Whether the train length is outside those it was learned at."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The content of a preset's file."""

    name: str
    version: int
    good_for: str
    """One sentence."""
    base: float
    """Of the RoPE that log-scales are relative to."""
    head_dim: int
    text: list[str]
    """Where the text came from, as `lerope data prepare` was told."""
    data: str
    """The fingerprint of the corpus."""
    tokenizer: str | None
    """The SHA-256 of the tokenizer; None where runs do not say."""
    vocab_size: int
    encoding: str
    """How the runs were trained."""
    profiles: list[Profile]
    """At train lengths that rise."""
    gains: list[Gain]
    """Empty until measured."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", self.name):
            raise ValueError(f"name must be letters, digits, - and _; got {self.name!r}.")
        check_count("version", self.version)
        if check_number("base", self.base) <= 1:
            raise ValueError(f"base must be larger than 1; got {self.base!r}.")
        num_bands = check_rotary_dim(self.head_dim, None) // 2
        lengths = [check_count("train_length", profile.train_length) for profile in self.profiles]
        if not lengths or lengths != sorted(set(lengths)):
            raise ValueError(f"profiles must be one or more, at train lengths that rise; got {lengths}.")
        for profile in self.profiles:
            for field, values in (("log_scales", profile.log_scales), ("spread", profile.spread)):
                if values is not None and (len(values) != num_bands or not all(map(math.isfinite, values))):
                    where = f"at train length {profile.train_length}"
                    raise ValueError(f"{field} must be {num_bands} finite numbers {where}; got {str(values)[:60]}.")
            if profile.dominant_wavelength is not None and not profile.dominant_wavelength > 0:
                raise ValueError(f"dominant_wavelength must be positive; got {profile.dominant_wavelength}.")

    def fingerprint(self) -> str:
        """A hash of every field."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """What the file says."""
        return {**asdict(self), "fingerprint": self.fingerprint()}

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        write_signed(path, self)

    def resample(self, head_dim: int, train_length: int) -> Resampled:
        """Its frequencies for a head size and train length; see `lerope.core.resample` for how."""
        num_bands = check_rotary_dim(head_dim, None) // 2
        check_count("train_length", train_length)
        learned = [
            Learned(
                Curve(each.log_scales, self.base),
                each.train_length,
                None if each.dominant_wavelength is None else math.log(2 * math.pi / each.dominant_wavelength),
            )
            for each in self.profiles
        ]
        values = resample(learned, num_bands, train_length)
        notes = [] if head_dim == self.head_dim else [f"resampled from head_dim {self.head_dim} to {head_dim}."]
        lengths = [each.train_length for each in self.profiles]
        is_extrapolated = not lengths[0] <= train_length <= lengths[-1]
        if is_extrapolated:
            notes.append(
                f"train length {train_length:,} is outside of what {self.name} was learned at ({_range(lengths)}): "
                "fast bands keep their wavelength and slow ones change with the length, by extrapolation and not by "
                "measurement."
            )
        elif train_length not in lengths:
            after = next(at for at, each in enumerate(lengths) if each > train_length)
            near = f"{lengths[after - 1]:,} and {lengths[after]:,}"
            notes.append(f"train length {train_length:,} is interpolated between the measured {near}.")
        return Resampled(
            frequencies=list(map(math.exp, values)),
            train_length=train_length,
            notes=notes,
            is_extrapolated=is_extrapolated,
        )


def read_preset(name: str | os.PathLike[str]) -> Preset:
    """A preset of the package by its name, or any by the path of its file."""
    text = os.fspath(name)
    if is_path(text):
        return read_signed(Path(text), Preset, f"make it again with `{MAKE}`")
    known = preset_names()
    if text not in known:
        there = f"those of the package are {', '.join(known)}" if known else "the package has none yet"
        own = "and your own are named by path, as in mine.json"
        raise ValueError(f"preset {text!r} is unknown; {there}, {own}{hint(text, known)}")
    return read_signed(FOLDER / f"{text}.json", Preset, "install lerope again")


def preset_names() -> list[str]:
    """The presets of the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def is_path(text: str) -> bool:
    """Whether this names a file and not a preset of the package."""
    return text.endswith(".json")


def sparkline(values: Sequence[float]) -> str:
    """A bar a value, from the lowest to the highest."""
    low, high = min(values), max(values)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((value - low) / step)] for value in values)


def _range(lengths: list[int]) -> str:
    return f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
