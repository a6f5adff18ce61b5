"""Whether plain transformers makes of a saved folder the function that the converted model in memory is.

The weights are those of the model in memory, shared and not copied: what is tried is the config that was written. That
costs a forward pass over a few tokens and no memory, so that every checkpoint of a large model can afford it.
"""

import inspect
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lerope.interop.huggingface import SHARED, Rotary, rotary_of

_NUM_TOKENS = 16
# The factors in config.json give frequencies back to a rounding or two of float32.
_FREQUENCY_TOLERANCE = 1e-6
# Of logits, relative to the largest: both models compute the same, but a fused kernel may round otherwise. Many layers
# in 16 bits add up such roundings, and a refusal in the middle of training must not be for them.
_TOLERANCE = 1e-4
_NARROW_TOLERANCE = 0.25


@torch.no_grad()
def check_reload(model: Any, folder: Path, extended: Tensor | None = None) -> str | None:
    """Raises if plain transformers would read another function from a folder than the converted model is.

    Args:
        model: the converted model.
        folder: where it was saved; only config.json is read.
        extended: the frequencies that the folder should have, if not the model's own.

    Returns:
        Why logits could not be compared, in words; None if they were.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = model.config._attn_implementation
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        plain = model.plain(config)
    rotary = rotary_of(model)
    name = next(name for name, module in model.named_modules() if module is rotary)
    obstacle = _obstacle(model, plain, name)
    if obstacle is not None:
        return obstacle
    empty = plain.get_submodule(name)
    turning = type(empty)(config=empty.config)
    frequencies = {kind: getattr(turning, _named(kind, "inv_freq")) for kind in rotary.encodings}
    for kind, encoding in rotary.encodings.items():
        wanted = encoding.frequencies() if extended is None else extended
        _check_frequencies(model, wanted.cpu(), frequencies[kind].cpu())
        _check_scaling(model, rotary.scaling[kind], float(getattr(turning, _named(kind, "attention_scaling"))))
    plain.set_submodule(name, turning.to(model.device))
    _share(model, plain)
    try:
        error, is_narrow = _difference(model, plain, rotary, frequencies)
    except RuntimeError as failure:
        return f"it cannot be run here ({str(failure).strip().splitlines()[0]})"
    if not math.isfinite(error):
        return "its outputs are not finite"
    if error > (_NARROW_TOLERANCE if is_narrow else _TOLERANCE):
        raise _refusal(model, f"other logits, off by {error:.1g} of the largest,")
    return None


def _obstacle(model: Any, plain: nn.Module, name: str) -> str | None:
    """Why a plain model cannot take the converted one's weights and run."""
    own = dict(model.named_parameters())
    if getattr(model, "is_quantized", False):
        return "its weights are quantised"
    if any(isinstance(value, DTensor) for value in own.values()):
        return "its weights are spread over processes"
    if len({value.device for value in own.values()}) > 1 or model.device.type == "meta":
        return "its weights are not on one device"
    wanted = dict(plain.named_parameters())
    if any(key not in own or own[key].shape != value.shape for key, value in wanted.items()):
        return "its weights are not those of its class, as with adapters"
    if name not in dict(plain.named_modules()):
        return "its rotary module is wrapped"
    if "input_ids" not in inspect.signature(plain.forward).parameters:
        return "it does not read tokens"
    return None


def _named(kind: str, what: str) -> str:
    """The attribute of a transformers rotary module that holds `what` for this kind of layer."""
    return what if kind == SHARED else f"{kind}_{what}"


def _check_frequencies(model: Any, wanted: Tensor, found: Tensor) -> None:
    same = wanted.shape == found.shape and torch.allclose(found, wanted, rtol=_FREQUENCY_TOLERANCE, atol=1e-25)
    if not same:
        raise _refusal(model, "other frequencies")


def _check_scaling(model: Any, wanted: float, found: float) -> None:
    if not math.isclose(wanted, found, rel_tol=_FREQUENCY_TOLERANCE):
        raise _refusal(model, f"an attention factor of {found:g}, not {wanted:g},")


def _share(model: Any, plain: Any) -> None:
    """Gives a model on the meta device the tensors of another, without copies."""
    state = {key: value for key, value in model.state_dict().items() if key in plain.state_dict()}
    plain.load_state_dict(state, assign=True, strict=False)
    others = dict(model.named_buffers())
    for key, value in list(plain.named_buffers()):
        if value.is_meta:  # not in a state dict, and the same in both, as none of them is the rotary module's
            parent, _, own = key.rpartition(".")
            plain.get_submodule(parent)._buffers[own] = others[key]
    plain.tie_weights()


def _difference(model: Any, plain: Any, rotary: Rotary, frequencies: dict[str, Tensor]) -> tuple[float, bool]:
    """How far the outputs of two models are apart, relative to the largest, and whether they have 16 bits.

    The converted one turns by the frequencies as config.json rounds them meanwhile, so that nothing but an error can
    make a difference, at any position.
    """
    frozen = {kind: encoding.freeze(frequencies[kind].float().cpu()) for kind, encoding in rotary.encodings.items()}
    kept, modes = rotary.inv_freq, {module: module.training for module in model.modules()}
    try:
        rotary.inv_freq = frozen[SHARED] if SHARED in frozen else nn.ModuleDict(frozen)
        rotary.to(model.device)
        ours, theirs = (_output(part.eval(), plain.config.get_text_config()) for part in (model, plain))
    finally:
        rotary.inv_freq = kept
        for module, trains in modes.items():
            module.training = trains
    left, right = ours.cpu().double(), theirs.cpu().double()
    error = (left - right).abs().max() / left.abs().max()
    return float(error), ours.element_size() < 4


def _output(model: Any, config: Any) -> Tensor:
    """What a model makes of a text whose first tokens are at the start of its length, and the last ones at the end."""
    near = torch.arange(_NUM_TOKENS, device=model.device)
    far = near + max(config.max_position_embeddings - _NUM_TOKENS, _NUM_TOKENS)
    positions = torch.cat((near, far))[None]
    given: dict[str, Any] = {"attention_mask": torch.ones_like(positions), "position_ids": positions}
    takes = inspect.signature(model.forward).parameters
    found = model.forward(
        input_ids=(7 * torch.arange(positions.numel(), device=model.device)[None] + 3) % config.vocab_size,
        **{key: value for key, value in given.items() if key in takes},
    )
    output: Tensor = found.logits if hasattr(found, "logits") else found.last_hidden_state
    return output


def _refusal(model: Any, what: str) -> ValueError:
    return ValueError(
        f"{type(model).__name__} cannot be saved: plain transformers would read {what} from the config.json that "
        "lerope writes for it; its weights are safe with torch.save(model.state_dict(), ...)."
    )
