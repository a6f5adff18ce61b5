"""A model on disk: `config.json`, `model.safetensors` (float32), `frequencies.json`, and the tokenizer beside them."""

import os
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lerope.core.encoding import EncodingSpec
from lerope.core.files import read_json, sha256_of, whole, write_json
from lerope.core.ladder import ModelConfig
from lerope.core.run import CONFIG, FREQUENCIES, MODEL, TOKENIZER, WEIGHTS, is_run, read_run
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer
from lerope.rotary.artifact import Frequencies
from lerope.rotary.encodings import FrozenRoPE

_FIX = "train it again or restore it"


@dataclass(frozen=True, kw_only=True)
class SavedConfig(ModelConfig):
    """What `config.json` says."""

    model_type: Literal["lerope"] = "lerope"
    train_length: int | None
    weights_sha256: str
    """Of model.safetensors."""

    @property
    def model(self) -> ModelConfig:
        """The shape of the model alone."""
        return ModelConfig(**{field.name: getattr(self, field.name) for field in fields(ModelConfig)})


def save_model(
    directory: Path,
    config: ModelConfig,
    weights: dict[str, Tensor],
    frequencies: Frequencies,
    tokenizer: Path | None = None,
) -> None:
    """Writes a model directory whole or not at all.

    Args:
        weights: the whole weights by name, the encoding's among them.
        frequencies: what `encoding.artifact(train_length)` gives.
        tokenizer: a file to put beside the model.
    """
    with whole(directory) as partial:
        partial.mkdir(parents=True)
        try:
            save_file({name: value.contiguous() for name, value in weights.items()}, partial / WEIGHTS)
        except SafetensorError as error:
            raise OSError(str(error)) from None
        digest = sha256_of(partial / WEIGHTS)
        saved = SavedConfig(**asdict(config), train_length=frequencies.train_length, weights_sha256=digest)
        write_json(partial / CONFIG, saved)
        frequencies.save(partial / FREQUENCIES)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, partial / tokenizer.name)


def read_config(folder: Path) -> SavedConfig:
    """What the `config.json` of a model folder says."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} holds no model; name the directory of a finished run.")
    return read_json(folder / CONFIG, SavedConfig, _FIX)


def read_model(directory: str | os.PathLike[str]) -> tuple[Path, SavedConfig, dict[str, Tensor]]:
    """The folder of a saved model, its config and its weights, checked against their hashes.

    Args:
        directory: a run's directory, or the `model` folder in it.
    """
    folder = Path(directory)
    run = next((read_run(path) for path in (folder, folder.parent) if is_run(path)), None)
    folder = folder / MODEL if (folder / MODEL / CONFIG).is_file() else folder
    saved = read_config(folder)
    if not (folder / WEIGHTS).exists():
        raise ValueError(f"{folder} has no {WEIGHTS}, as in an archive; name the run itself, or train it again.")
    if run is not None and run.model.resolve() == folder.resolve():
        run.check_model(CONFIG, FREQUENCIES, TOKENIZER)  # the first has the hash of the weights
    try:
        if sha256_of(folder / WEIGHTS) != saved.weights_sha256:
            raise ValueError(f"{folder / WEIGHTS} does not match {CONFIG}, so it was changed or damaged; {_FIX}.")
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder} does not hold a complete model ({error}); {_FIX}.") from None
    return folder, saved, weights


def load_model(directory: str | os.PathLike[str], encoding: str | None = None) -> Transformer:
    """A saved model on the CPU with its frequencies fixed, or with an encoding to continue learning (see `spec`).

    Args:
        directory: a run's directory, or the `model` folder in it.
    """
    folder, saved, weights = read_model(directory)
    if encoding is None:
        chosen = FrozenRoPE.load(folder / FREQUENCIES)
        weights = {name: value for name, value in weights.items() if not name.startswith("encoding.")}
        weights["encoding.theta"] = chosen.theta
        with torch.device("meta"):
            model = Transformer(saved.model, chosen)
    else:
        model = Transformer(saved.model, build_encoding(encoding, saved.model, saved.train_length))
        model.horizon = EncodingSpec.parse(encoding).horizon
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder} does not fit encoding {encoding!r}; name the one it has: {reason}") from None
    return model
