"""Any frequencies as a config that serving engines understand: `longrope` with one factor per band.

An engine that reads this rope type turns band m by 1 / (factor[m] * base^(2m / d)) radians per token.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# The factor of a band that does not turn: JSON holds no infinity, and 1e-30 rad per token is no turn at any length.
STILL = 1e30
_LEGACY = ("rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
# What other rope types compute frequencies or the attention factor from, both of which are given here. All other keys
# stay: they may change something else, as mscale_all_dim does the softmax scale of DeepSeek-V3.
_SPENT = {
    "type",
    "rope_type",
    "factor",
    "attention_factor",
    "original_max_position_embeddings",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "truncate",
    "alpha",
}
# Their config classes refuse a `rope_scaling` with any keys but these.
_ONLY_FACTORS = {"phi3": ("type", "short_factor", "long_factor")}
# These models read an attention factor from `short_mscale` and `long_mscale` alone, and fail without.
_NEEDS_MSCALE = {"phimoe"}


def longrope_config(
    config: Mapping[str, Any],
    frequencies: Tensor | Sequence[float] | Mapping[str, Tensor | Sequence[float]],
    attention_factor: float | Mapping[str, float] = 1.0,
) -> dict[str, Any]:
    """The content of a config.json with which engines turn by these frequencies.

    Both key styles are written: `rope_parameters`, and `rope_theta` with `rope_scaling` for engines that read only
    those, with the keys that the model's config class allows. Factors are the same for short and long inputs, and the
    original length is the whole length, so that no engine adds an attention factor of its own: unless the model needs
    its own, or engines that derive the factor from the two lengths find the right one so. What `rope_parameters` says
    beyond frequencies is kept. A model with one set per kind of layer gets only `rope_parameters`, because the older
    keys cannot hold two sets.

    Args:
        config: the content of the model's config.json, as `config.to_dict()` gives it; stays as it is.
        frequencies: radians per token, one per band; one such list per layer type for models with several.
        attention_factor: what cosines and sines are multiplied by, per layer type where there are several.
    """
    content = dict(config)
    head_dim = content.get("head_dim")
    if head_dim is None:
        head_dim = _required(content, "hidden_size") // _required(content, "num_attention_heads")
    length = _required(content, "max_position_embeddings")
    given = content.get("rope_parameters") or content.get("rope_scaling") or {}
    model_type = content.get("model_type")
    content["head_dim"] = head_dim
    if isinstance(frequencies, Mapping):
        for name in _LEGACY:
            content.pop(name, None)
        nested = {}
        for kind, values in frequencies.items():
            factor = attention_factor[kind] if isinstance(attention_factor, Mapping) else attention_factor
            nested[kind] = _parameters(given.get(kind) or {}, values, head_dim, length, factor, model_type)
        # A kind of layer that does not turn at all has null here.
        content["rope_parameters"] = {**dict.fromkeys(given), **nested}
        content["original_max_position_embeddings"] = length
        return content
    if isinstance(attention_factor, Mapping):
        raise ValueError("attention_factor must be one number where layers share frequencies; got one per layer type.")
    old = {name: content.pop(name) for name in _LEGACY if content.get(name) is not None and name != "rope_scaling"}
    if content.get("original_max_position_embeddings") is not None:
        old["original_max_position_embeddings"] = content["original_max_position_embeddings"]
    parameters = _parameters({**old, **given}, frequencies, head_dim, length, attention_factor, model_type)
    content |= {"rope_parameters": parameters, "rope_theta": parameters["rope_theta"]}
    # In transformers this one counts before that in `rope_parameters`.
    content["original_max_position_embeddings"] = parameters["original_max_position_embeddings"]
    content["rope_scaling"] = dict(parameters)
    implied = length_factor(length, parameters["original_max_position_embeddings"])
    if model_type in _ONLY_FACTORS and math.isclose(implied, attention_factor, rel_tol=1e-6):
        # With another attention factor that class had better refuse the folder than forget it.
        legacy = {**parameters, "type": parameters["rope_type"]}
        content["rope_scaling"] = {key: legacy[key] for key in _ONLY_FACTORS[model_type]}
    if "partial_rotary_factor" in parameters:
        content["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    return content


def length_factor(length: int, original_length: int) -> float:
    """The attention factor that engines derive from two lengths, as Phi-3 does: 1 unless the first is more."""
    ratio = length / original_length
    return 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original_length))


def factors(frequencies: Tensor, base: float) -> Tensor:
    """One float32 factor per band, such that 1 / (factor * base^(2m / d)) in float32 is as close as it can be."""
    wanted = frequencies.detach().cpu().double()
    rotary_dim = 2 * len(wanted)
    periods = base ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    near = (1.0 / (wanted * periods.double())).float()
    up, down = near.new_tensor(torch.inf), near.new_tensor(-torch.inf)
    choices = torch.stack([near, near.nextafter(up), near.nextafter(down)])
    errors = ((1.0 / (choices * periods)).double() - wanted).abs()
    chosen = choices.gather(0, errors.argmin(0, keepdim=True))[0]
    chosen = torch.where((1.0 / periods).double() == wanted, 1.0, chosen)
    return torch.where(wanted.abs() < 1 / STILL, STILL, chosen)


def _parameters(
    given: Mapping[str, Any],
    frequencies: Tensor | Sequence[float],
    head_dim: int,
    length: int,
    attention_factor: float,
    model_type: str | None,
) -> dict[str, Any]:
    values = torch.as_tensor(frequencies)
    if values.ndim != 1 or 2 * len(values) > head_dim or not bool(values.isfinite().all()):
        raise ValueError(
            f"frequencies must be finite numbers, at most {head_dim // 2} for head_dim = {head_dim}, because engines "
            f"share them among layers and heads; got shape {tuple(values.shape)}."
        )
    base = given.get("rope_theta")
    if base is None:
        raise ValueError("config has no rope_theta, so it is not a RoPE model; got none in rope_parameters either.")
    list_of_factors = factors(values, float(base)).double().tolist()
    original = _original_length(given, length, attention_factor)
    parameters: dict[str, Any] = {
        **{key: value for key, value in given.items() if key not in _SPENT},
        "rope_type": "longrope",
        "rope_theta": base,
        "short_factor": list_of_factors,
        "long_factor": list_of_factors,
        "original_max_position_embeddings": original,
        # The softmax scale of DeepSeek-V3 and its kin depends on both; otherwise nothing does, beside attention_factor.
        "factor": given.get("factor", 1.0) if given.get("mscale_all_dim") else 1.0,
        "attention_factor": float(attention_factor),
    }
    if attention_factor != 1.0 or original != length or model_type in _NEEDS_MSCALE:
        # Engines that do not read attention_factor read these, or compare lengths.
        parameters |= {"short_mscale": float(attention_factor), "long_mscale": float(attention_factor)}
    if 2 * len(values) != head_dim or "partial_rotary_factor" in given:
        part = given.get("partial_rotary_factor", 1.0)
        fits = int(head_dim * part) == 2 * len(values)
        parameters["partial_rotary_factor"] = part if fits else 2 * len(values) / head_dim
    return parameters


def _original_length(given: Mapping[str, Any], length: int, attention_factor: float) -> int:
    """What to say the length before an extension was."""
    original = given.get("original_max_position_embeddings")
    if original is None:
        return length
    if given.get("llama_4_scaling_beta"):  # queries grow with the position divided by it
        return int(original)
    implied = length_factor(length, original)
    return int(original) if implied != 1.0 and math.isclose(implied, attention_factor, rel_tol=1e-6) else length


def _required(config: Mapping[str, Any], field: str) -> Any:
    value = config.get(field)
    if value is None:
        raise ValueError(f"config has no {field}; pass the content of a causal language model's config.json.")
    return value
