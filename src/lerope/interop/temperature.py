"""An extension's temperature as weights of a transformers model, so that any engine computes it.

Queries multiplied by a factor give logits multiplied by it. Which weights do that differs from model to model: so it
is tried on the model itself, and what is not seen to work is refused.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lerope.rotary.frequencies import widest

Change = tuple[Tensor, Tensor]
"""A parameter and its new value."""
# A power of two, by which floats are multiplied exactly.
_TRIAL = 4.0
_PROBE = "lerope_probe"
_NUM_TOKENS = 16


@contextlib.contextmanager
def folded(model: Any, scale: float) -> Iterator[None]:
    """While this lasts the attention logits of all layers that turn their queries are multiplied by `scale`.

    Layers without rotation keep theirs: an extension changes nothing in them, and YaRN scales none of them in any
    engine.
    """
    kept: list[Change] = []
    try:
        if scale != 1.0:
            with torch.no_grad():
                _fold(model, scale, kept)
        yield
    finally:
        _undo(kept)


def _fold(model: Any, scale: float, kept: list[Change]) -> None:
    name = type(model).__name__
    if getattr(model.config, "clip_qkv", None) is not None:
        raise ValueError(
            f"the temperature cannot be folded into {name}, which clips its queries (clip_qkv = "
            f"{model.config.clip_qkv:g}); pass temperature=0."
        )
    try:
        before = _seen(model)
        elsewhere = _seen(model, stride=max(model.config.max_position_embeddings // _NUM_TOKENS, 2))
    except Exception as error:  # a model whose attention cannot be replaced may raise anything
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the temperature cannot be folded into {name}, because its queries cannot be inspected ({reason}); pass "
            "temperature=0."
        ) from error
    turning = [layer for layer, (query, _) in before.items() if not _is_near(query, elsewhere[layer][0], 1e-3)]
    if not turning:
        raise ValueError(f"the temperature cannot be folded into {name}, which turns no queries; pass temperature=0.")
    found: dict[nn.Module, Callable[..., list[Change]]] = {}
    for way in _WAYS:
        trial: list[Change] = []
        try:
            for layer in turning:
                if layer not in found:
                    _change(way(layer, before[layer][0], _TRIAL), trial)
            after = _seen(model)
        finally:
            _undo(trial)
        for layer in turning:
            if layer not in found and _is_scaled(before[layer], after[layer]):
                found[layer] = way
    for layer in turning:
        if layer not in found:
            raise ValueError(
                f"the temperature cannot be folded into {type(layer).__name__}, because it has no known weights "
                "that scale only its queries; pass temperature=0."
            )
        _change(found[layer](layer, before[layer][0], scale), kept)


def _seen(model: Any, stride: int = 1) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Queries and keys as every layer's attention gets them, for tokens that are `stride` positions apart.

    Attention returns zeros meanwhile, so that no layer sees what was changed in those below it.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def attend(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        seen[layer] = query, key
        rows, num_heads, length = query.shape[:3]
        return value.new_zeros(rows, length, num_heads, value.shape[-1]), None

    positions = torch.arange(_NUM_TOKENS, device=model.device)[None]
    attention, modes = model.config._attn_implementation, {module: module.training for module in model.modules()}
    try:
        ALL_ATTENTION_FUNCTIONS[_PROBE] = attend
        model.config._attn_implementation = _PROBE
        model.eval()(positions % model.config.vocab_size, position_ids=stride * positions, use_cache=False)
    finally:
        model.config._attn_implementation = attention
        for module, trains in modes.items():
            module.training = trains
        del ALL_ATTENTION_FUNCTIONS[_PROBE]
    return seen


def _is_near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by no more than this part of the largest value."""
    return bool((one.float() - other.float()).abs().max() <= tolerance * one.float().abs().max())


def _is_scaled(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> bool:
    """Whether queries were multiplied by the trial's factor, and keys by none."""
    tolerance = 1e-4 if before[0].dtype == torch.float32 else 5e-2
    return _is_near(_TRIAL * before[0], after[0], tolerance) and _is_near(before[1], after[1], tolerance)


def _norms(layer: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters of a layer's norm of queries, whatever it is called."""
    norms = [module for name, module in layer.named_children() if name.startswith("q") and "norm" in name]
    return [parameter for norm in norms[-1:] for parameter in norm.named_parameters()]


def _gain(layer: nn.Module, query: Tensor, scale: float) -> list[Change]:
    return [(parameter, parameter.to(widest(parameter.device)) * scale) for _, parameter in _norms(layer)]


def _gain_over_one(layer: nn.Module, query: Tensor, scale: float) -> list[Change]:
    """For norms that multiply by 1 + weight."""
    changes = []
    for name, parameter in _norms(layer):
        offset = 0.0 if name.endswith("bias") else 1.0
        changes.append((parameter, (offset + parameter.to(widest(parameter.device))) * scale - offset))
    return changes


def _projection(layer: Any, query: Tensor, scale: float) -> list[Change]:
    projection = getattr(layer, "q_proj", None)
    return [] if projection is None else [(p, p.to(widest(p.device)) * scale) for p in projection.parameters()]


def _fused_projection(layer: Any, query: Tensor, scale: float) -> list[Change]:
    """For projections whose first rows make the queries."""
    projection = getattr(layer, "qkv_proj", None)
    num_rows = query.shape[1] * query.shape[3]
    changes = []
    for parameter in () if projection is None else projection.parameters():
        scaled = parameter.to(widest(parameter.device))
        scaled[:num_rows] *= scale
        changes.append((parameter, scaled))
    return changes


_WAYS: tuple[Callable[..., list[Change]], ...] = (_gain, _gain_over_one, _projection, _fused_projection)


def _change(changes: list[Change], kept: list[Change]) -> None:
    """Sets parameters, and appends what they were."""
    for parameter, value in changes:
        kept.append((parameter, parameter.detach().clone()))
        parameter.copy_(value.to(parameter.dtype))


@torch.no_grad()
def _undo(kept: list[Change]) -> None:
    for parameter, before in reversed(kept):
        parameter.copy_(before)
    kept.clear()
