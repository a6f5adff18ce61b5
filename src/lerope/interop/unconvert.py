"""`lerope.unconvert`: a converted model as a plain transformers model again, with the frequencies as they are now."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lerope.interop.huggingface import ENTRY, parts, recipe_of
from lerope.interop.probe import named
from lerope.interop.qk_norm import restore_norms
from lerope.interop.rotary import Rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def unconvert(model: "PreTrainedModel") -> "PreTrainedModel":
    """Gives a converted model its own class and rotary module back, in place, and returns it.

    It computes what it did, now with fixed frequencies: its config says `longrope` with one factor per band, as in a
    folder that `save_pretrained` of a converted model writes. For the frequencies before all learning, load the model
    that was converted.

    Example:
        model = lerope.unconvert(lerope.convert(model))
    """
    converted: Any = model
    if not hasattr(type(model), "plain") or not isinstance(model, nn.Module):
        raise ValueError(
            f"model must be one that lerope.convert made, without wrappers around it; got {type(model).__name__}."
        )
    name, rotary = next((name, module) for name, module in model.named_modules() if isinstance(module, Rotary))
    text = converted.config.get_text_config()
    frequencies = {kind: encoding.frequencies() for kind, encoding in rotary.encodings.items()}
    if not rotary.is_buffer:
        for field, value in recipe_of(text, frequencies, rotary.scaling).items():
            setattr(text, field, value)
    if hasattr(text, ENTRY):
        delattr(text, ENTRY)
    assert rotary.plain is not None
    plain: Any = rotary.plain(config=text)
    for kind, values in frequencies.items():
        for buffer in ("inv_freq", "original_inv_freq"):
            if isinstance(known := getattr(plain, named(kind, buffer), None), torch.Tensor):
                known.copy_(values)
    device = next(iter(frequencies.values())).device
    model.set_submodule(name, plain.to(device))
    restore_norms(model)
    for part, own in parts(model, name):
        ours = {f"{own}.{key}" for key in rotary.state_dict()}
        part.__class__ = part.plain
        part._keys_to_ignore_on_save = [key for key in part._keys_to_ignore_on_save or [] if key not in ours]
    return model
