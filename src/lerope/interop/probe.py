"""What a transformers model's rotary module does: found, read and called at a few positions, never guessed."""

import math
import warnings
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lerope.core.extras import install
from lerope.interop.fused import pairing
from lerope.interop.rotary import SHARED, Arrangement, Form, Rotary, tables

# Positions at which a rotary module is probed to see how it arranges cosines and sines.
_PROBE = (0, 1, 2, 3, 5, 11)
# Fields of configs of models that compute their own tables in every layer: GPT-J and CodeGen, RoFormer.
_OWN_TABLES = ("rotary_dim", "rotary_value")
# What a rotary module with several axes says of them.
_SECTIONS = "mrope_section"


def find_rotary(model: Any) -> tuple[str, nn.Module]:
    """The name and module of a model's rotary embedding; raises where there is none that we can replace."""
    try:
        from transformers import PreTrainedModel
    except ImportError:
        raise ValueError(f"lerope.convert needs the package transformers: {install('hf', 'transformers')}.") from None
    if not isinstance(model, PreTrainedModel):
        hint = "convert the model inside before wrapping it" if hasattr(model, "modules") else "load one first"
        raise ValueError(f"model must be a transformers model, {hint}; got {type(model).__name__}.")
    if any(isinstance(m, Rotary) for m in model.modules()):
        raise ValueError("model is already converted; its frequencies are in lerope.interop.huggingface.rotary_of.")
    found = [(name, m) for name, m in model.named_modules() if kinds(m)]
    kind, text = type(model).__name__, model.config.get_text_config()
    if not found and any(hasattr(text, field) for field in _OWN_TABLES):
        raise ValueError(
            f"{kind} turns queries and keys by tables inside each attention layer, and convert replaces only a rotary "
            "module that all layers share."
        )
    if not found:
        raise ValueError(f"model must have a rotary module (a RoPE model such as Llama); {kind} has none.")
    if len(found) > 1 and any(hasattr(module, _SECTIONS) for _, module in found):
        raise ValueError(
            f"{kind} has a vision tower that turns along several axes besides its language model (M-RoPE); convert "
            "takes language models alone."
        )
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise ValueError(f"{kind} must have one rotary module for all layers to be converted; got {names}.")
    return found[0]


def kinds(module: nn.Module) -> list[str]:
    """The kinds of layers a rotary module has frequencies for; nothing if it is not a rotary module."""
    buffers = [name for name, _ in module.named_buffers(recurse=False) if not name.endswith("original_inv_freq")]
    if "inv_freq" in buffers:
        return [SHARED]
    return [name.removesuffix("_inv_freq") for name in buffers if name.endswith("_inv_freq")]


def named(kind: str, what: str) -> str:
    """The attribute of a transformers rotary module that holds `what` for this kind of layer."""
    return what if kind == SHARED else f"{kind}_{what}"


def start(module: Any, kind: str) -> Tensor:
    """The frequencies a rotary module turns by; raises where they change with the length."""
    rope_type = getattr(module, "rope_type", "default")
    rope_type = rope_type.get(kind, "default") if isinstance(rope_type, dict) else rope_type
    if "dynamic" in rope_type:
        raise ValueError(
            f"rope_type {rope_type!r} computes new frequencies for every length, so there are none to learn; load the "
            "model with rope_type 'default' or 'yarn'."
        )
    theta: Tensor = getattr(module, named(kind, "inv_freq"))
    if rope_type == "longrope":
        theta = getattr(module, named(kind, "original_inv_freq"))
        parameters = rope_parameters(module.config, kind)
        if parameters.get("short_factor") != parameters.get("long_factor"):
            warnings.warn(
                "the model switches to long_factor beyond "
                f"{parameters.get('original_max_position_embeddings')} positions; the converted one keeps its "
                "frequencies for short inputs at every length.",
                stacklevel=3,
            )
    if theta.is_meta:
        raise ValueError("model is on the meta device and holds no frequencies; load its weights before converting.")
    if theta.ndim != 1:
        raise ValueError(f"frequencies must be one list for all heads; got inv_freq of shape {tuple(theta.shape)}.")
    if theta.dtype != torch.float32:
        warnings.warn(
            f"a cast to {theta.dtype} has rounded the model's frequencies, and the learned ones start there; load it "
            "with dtype=... or convert it before the cast.",
            stacklevel=3,
        )
    return theta.detach().float()


def rope_parameters(config: Any, kind: str) -> dict[str, Any]:
    """What a config says about RoPE for a kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    found: dict[str, Any] = parameters if kind == SHARED else parameters.get(kind) or {}
    return found


def arrangement(module: Any, kind: str, theta: Tensor) -> Arrangement:
    """How a rotary module arranges cosines and sines, seen by calling it at a few positions; raises if in its own way.

    Args:
        theta: the frequencies it turns by.
    """
    positions = torch.tensor([_PROBE], device=theta.device)
    scaling = float(getattr(module, named(kind, "attention_scaling"), math.nan))
    arranged = _matching(module, kind, theta, positions, scaling)
    if arranged is None:
        raise ValueError(
            f"{type(module).__name__} makes cosines and sines in a way that convert does not know: not from the "
            "positions of tokens and its inv_freq alone."
        )
    if arranged.form == "complex" or arranged.axes is not None:
        return arranged
    cos, sin = tables(theta, positions, 1.0, arranged)
    modeling = type(module).__module__
    turns = pairing(modeling, cos, sin, positions, theta)
    return arranged if turns is None else arranged._replace(modeling=modeling, turns=turns)


def _matching(module: Any, kind: str, theta: Tensor, positions: Tensor, scaling: float) -> Arrangement | None:
    """The arrangement that gives what the module gives; None if there is none."""
    axes = _axes(module, theta) if hasattr(module, _SECTIONS) else None
    if axes is not None:
        positions = positions + 3 * torch.arange(max(axes) + 1, device=theta.device)[:, None, None]
    try:
        found = _tables_of(module, kind, positions, torch.float32)
        casts = _tables_of(module, kind, positions, torch.bfloat16)[0].dtype == torch.bfloat16
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return None
    for form in get_args(Form):
        arranged = Arrangement(form, casts, axes)
        expected = tables(theta, positions, scaling, arranged)
        made = (torch.complex(*expected),) if form == "complex" else expected
        if len(found) == len(made) and all(
            one.shape == other.shape and one.is_complex() == other.is_complex() and torch.allclose(one, other)
            for one, other in zip(found, made, strict=True)
        ):
            return arranged
    return None


def _tables_of(module: Any, kind: str, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What a rotary module gives, a complex table as one."""
    found = module(torch.zeros(1, 1, 1, device=positions.device, dtype=dtype), positions, *([kind] * (kind != SHARED)))
    return (found,) if isinstance(found, Tensor) else found


def _axes(module: Any, theta: Tensor) -> tuple[int, ...]:
    """The axis of each band, seen by moving along one axis at a time."""
    num_axes = len(getattr(module, _SECTIONS))
    found = [0] * len(theta)
    for axis in range(num_axes):
        positions = torch.zeros(num_axes, 1, 1, dtype=torch.long, device=theta.device)
        positions[axis] = 1
        sin = _tables_of(module, SHARED, positions, torch.float32)[1]
        for band in sin[0, 0, : len(theta)].nonzero().flatten().tolist():
            found[band] = axis
    return tuple(found)
