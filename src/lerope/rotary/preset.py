"""`lerope.preset`: frequencies that were learned once, for a model's own head size and train length."""

import os
import warnings

import torch

from lerope.core.encoding import PRESET
from lerope.core.preset import Resampled, read_preset
from lerope.rotary.artifact import Origin
from lerope.rotary.encodings import FrozenRoPE


def preset(name: str | os.PathLike[str], head_dim: int, train_length: int) -> FrozenRoPE:
    """Frequencies that were learned once and stay fixed, for a model that is trained from scratch with them.

    Not for a model that was trained with RoPE, whose weights expect RoPE's frequencies, and not for texts longer than
    `train_length`. Warns where the preset was learned at no such length.

    Args:
        name: a preset of the package, see `lerope presets`, or the path of a file that `lerope presets make` wrote.
        head_dim: dimensions of one head; of those that turn, where not all do.
        train_length: tokens in a row of the training.

    Example:
        encoding = lerope.preset("english", head_dim=128, train_length=4096)
        learned = encoding.learnable()  # a LeRoPE that starts there
    """
    encoding, resampled = _load(name, head_dim, train_length)
    if resampled.is_extrapolated:
        warnings.warn(resampled.notes[-1], stacklevel=2)
    return encoding


def load_preset(name: str | os.PathLike[str], head_dim: int, train_length: int) -> FrozenRoPE:
    """The same without a warning, for callers that show what `origin.notes` say."""
    return _load(name, head_dim, train_length)[0]


def _load(name: str | os.PathLike[str], head_dim: int, train_length: int) -> tuple[FrozenRoPE, Resampled]:
    found = read_preset(name)
    resampled = found.resample(head_dim, train_length)
    encoding = FrozenRoPE(torch.tensor(resampled.frequencies, dtype=torch.float32, device="cpu"))
    encoding.base = found.base
    encoding.origin = Origin(
        source=f"{PRESET}:{found.name}",
        train_length=train_length,
        fingerprint=found.fingerprint(),
        notes=resampled.notes,
    )
    return encoding, resampled
