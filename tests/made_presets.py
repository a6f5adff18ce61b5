"""Presets with made-up profiles that look like learned ones."""

from pathlib import Path
from typing import Any

import numpy as np

from lerope.core.preset import Preset, Profile


def made_log_scales(num_bands: int, train_length: int, base: float = 10_000.0) -> list[float]:
    """Fast bands a little faster, one band at 2.2 train lengths, slower ones all but still."""
    rope = base ** (-np.arange(num_bands) / num_bands)
    turns = rope * train_length / (2 * np.pi)
    # At 3.3 turns, where the paper's dominant band would be, the wavelength is 2.2 train lengths.
    scales = 0.5 * rope**0.7 - np.log(2.2 * 3.3) * (3.3 / turns) ** 1.5
    return np.maximum(scales, -6.0).tolist()


def made_profile(train_length: int = 2048, num_bands: int = 32, base: float = 10_000.0, **changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "train_length": train_length,
        "log_scales": made_log_scales(num_bands, train_length, base),
        "spread": [0.01] * num_bands,
        "dominant_wavelength": None,
        "rungs": ["52M"],
        "seeds": [42, 43],
        "steps": [4000],
        "runs": ["52M-lerope-42", "52M-lerope-43"],
    }
    return Profile(**{**fields, **changes})


def made_preset(*lengths: int, num_bands: int = 32, base: float = 10_000.0, **changes: Any) -> Preset:
    fields: dict[str, Any] = {
        "name": "mine",
        "version": 1,
        "good_for": "tests.",
        "base": base,
        "head_dim": 2 * num_bands,
        "text": ["my-text/"],
        "data": "d" * 64,
        "tokenizer": None,
        "vocab_size": 32_000,
        "encoding": "lerope",
        "profiles": [made_profile(length, num_bands, base) for length in lengths or (2048,)],
        "gains": [],
    }
    return Preset(**{**fields, **changes})


def save_preset(folder: Path, *lengths: int, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    preset = made_preset(*lengths, **changes)
    path = folder / f"{preset.name}.json"
    preset.save(path)
    return path
