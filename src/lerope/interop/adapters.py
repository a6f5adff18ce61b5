"""PEFT adapters that were trained with learned frequencies beside them."""

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerope.core.files import write_whole
from lerope.interop.huggingface import convert, rotary_of
from lerope.interop.rotary import Rotary

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
# A field that PEFT does not know, and says so by its name to whoever loads the adapter without us.
_NOTE = "frequencies_need_lerope.interop.adapters.load_adapter"


def save_adapter(model: Any, folder: str | Path, **options: Any) -> None:
    """Saves the adapter of a PEFT model, as its `save_pretrained` does, so that plain PEFT warns where it loads it.

    `PeftModel.from_pretrained` drops frequencies without a word where the base is not converted: a rotary module
    without parameters misses no key, and of keys that it has no place for PEFT says nothing. It does name fields of
    adapter_config.json that it does not know, but writes none but its own.

    Args:
        model: a PEFT model of a converted one, with `modules_to_save=["rotary_emb"]`.
        folder: where to save.
        options: what `save_pretrained` takes.
    """
    if not _save(model, folder, **options) and options.get("is_main_process", True):
        raise ValueError(
            f"the adapter in {folder} holds no frequencies; train it with modules_to_save=['rotary_emb'] on a "
            "converted model, or save it with save_pretrained."
        )


def save_as_adapter(model: Any) -> None:
    """Makes `save_pretrained` of a PEFT model, which trainers call, write what `save_adapter` does."""
    model.save_pretrained = functools.partial(_save, model)


def load_adapter(model: Any, folder: str | Path, encoding: str = "lerope", **options: Any) -> Any:
    """A PEFT model from an adapter's folder, with the frequencies that were learned with it.

    `PeftModel.from_pretrained` drops them unless the model was converted before, and from whatever it was converted:
    this converts it if need be and makes sure that they arrived.

    Args:
        model: the base model, converted or not.
        folder: what `save_adapter`, or `save_pretrained` of the PEFT model, wrote.
        encoding: what `convert` takes.
        options: what `PeftModel.from_pretrained` takes.
    """
    from peft import PeftModel

    path = Path(folder) / _WEIGHTS
    if not path.is_file():
        raise ValueError(f"{path} does not exist; name the folder that save_pretrained of a PEFT model wrote.")
    saved = _frequencies(Path(folder))
    if not saved:
        raise ValueError(
            f"{path} holds no frequencies; train it with modules_to_save=['rotary_emb'] on a converted model, or load "
            "it with PeftModel.from_pretrained."
        )
    if not any(isinstance(module, Rotary) for module in model.modules()):
        convert(model, encoding)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=rf"Unexpected keyword arguments \['{_NOTE}'\]")
        loaded = PeftModel.from_pretrained(model, str(folder), **options)
    found = rotary_of(loaded).state_dict()
    for name, value in saved.items():
        own = found.get("inv_freq." + name.rpartition(".inv_freq.")[2])
        if own is None or not torch.equal(own.cpu(), value.cpu()):
            raise ValueError(f"{path}: {name} did not reach the model, which has other frequencies; got {list(found)}.")
    return loaded


def _save(model: Any, folder: str | Path, *args: Any, **options: Any) -> bool:
    """Saves a PEFT model's adapters and notes where they hold frequencies; whether any does."""
    type(model).save_pretrained(model, str(folder), *args, **options)
    if not options.get("is_main_process", True):
        return False
    # PEFT gives every adapter but the one called default a folder of its own.
    homes = [Path(folder) / ("" if name == "default" else name) for name in model.peft_config]
    noted = [home for home in homes if (home / _CONFIG).is_file() and _frequencies(home)]
    for home in noted:
        content = json.loads((home / _CONFIG).read_bytes())
        write_whole(home / _CONFIG, json.dumps({**content, _NOTE: True}, indent=2, sort_keys=True))
    return bool(noted)


def _frequencies(folder: Path) -> dict[str, Tensor]:
    """What an adapter's weights hold of frequencies; nothing if there are none."""
    from safetensors.torch import load_file

    path = folder / _WEIGHTS
    weights = load_file(path) if path.is_file() else {}
    return {name: value for name, value in weights.items() if ".inv_freq." in name}
