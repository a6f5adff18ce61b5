"""PEFT adapters that were trained with learned frequencies beside them."""

from pathlib import Path
from typing import Any

import torch

from lerope.interop.huggingface import convert, rotary_of
from lerope.interop.rotary import Rotary


def load_adapter(model: Any, folder: str | Path, encoding: str = "lerope", **options: Any) -> Any:
    """A PEFT model from an adapter's folder, with the frequencies that were learned with it.

    `PeftModel.from_pretrained` drops them without a word unless the model was converted before, and from whatever it
    was converted: this converts it if need be and makes sure that they arrived.

    Args:
        model: the base model, converted or not.
        folder: what `save_pretrained` of the PEFT model wrote.
        encoding: what `convert` takes.
        options: what `PeftModel.from_pretrained` takes.
    """
    from peft import PeftModel
    from safetensors.torch import load_file

    path = Path(folder) / "adapter_model.safetensors"
    if not path.is_file():
        raise ValueError(f"{path} does not exist; name the folder that save_pretrained of a PEFT model wrote.")
    saved = {name: value for name, value in load_file(path).items() if ".inv_freq." in name}
    if not saved:
        raise ValueError(
            f"{path} holds no frequencies; train it with modules_to_save=['rotary_emb'] on a converted model, or load "
            "it with PeftModel.from_pretrained."
        )
    if not any(isinstance(module, Rotary) for module in model.modules()):
        convert(model, encoding)
    loaded = PeftModel.from_pretrained(model, str(folder), **options)
    found = rotary_of(loaded).state_dict()
    for name, value in saved.items():
        own = found.get("inv_freq." + name.rpartition(".inv_freq.")[2])
        if own is None or not torch.equal(own.cpu(), value.cpu()):
            raise ValueError(f"{path}: {name} did not reach the model, which has other frequencies; got {list(found)}.")
    return loaded
