"""A model on disk: `config.json`, `model.safetensors` (float32), `frequencies.json`, and the tokenizer beside them."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lerope.model.config import ModelConfig
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer
from lerope.rotary.artifact import Frequencies
from lerope.rotary.encodings import FrozenRoPE

CONFIG, WEIGHTS, FREQUENCIES = "config.json", "model.safetensors", "frequencies.json"


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
    partial = directory.with_name(f".{directory.name}.saving")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    content = {"model_type": "lerope", "train_length": frequencies.train_length, **asdict(config)}
    (partial / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    try:
        save_file({name: value.contiguous() for name, value in weights.items()}, partial / WEIGHTS)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    frequencies.save(partial / FREQUENCIES)
    if tokenizer is not None:
        shutil.copyfile(tokenizer, partial / tokenizer.name)
    for path in (*partial.iterdir(), partial):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    shutil.rmtree(directory, ignore_errors=True)
    partial.replace(directory)


def load_model(directory: str | os.PathLike[str], encoding: str | None = None) -> Transformer:
    """A saved model on the CPU with its frequencies fixed, or with an encoding to go on learning (see `spec`).

    Args:
        directory: a run's directory, or the `model` folder in it.
    """
    folder = Path(directory)
    folder = folder / "model" if (folder / "model" / CONFIG).is_file() else folder
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} holds no model; name the directory of a finished run.")
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        content.pop("model_type"), content.pop("train_length")
        config = ModelConfig(**content)
        weights = load_file(folder / WEIGHTS)
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(f"{folder} does not hold a whole model ({error}); train it again or restore it.") from None
    if encoding is None:
        chosen = FrozenRoPE.load(folder / FREQUENCIES)
        weights = {name: value for name, value in weights.items() if not name.startswith("encoding.")}
        weights["encoding.theta"] = chosen.theta
        with torch.device("meta"):
            model = Transformer(config, chosen)
    else:
        model = Transformer(config, build_encoding(encoding, config))
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder} does not fit encoding {encoding!r}, name the one it has: {reason}") from None
    return model
