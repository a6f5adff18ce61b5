"""A ladder model as Apertus: the architecture of today's engines that computes the same function.

Apertus is a pre-norm decoder with QK-norm before the rotation, a two-matrix MLP and no biases. Its activation xIELU is
max(x, 0)^2 for the scalars below, so a ladder model with squared ReLU is an Apertus, weight for weight.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lerope.core.ladder import ModelConfig
from lerope.interop.longrope import longrope_config
from lerope.model.transformer import Transformer
from lerope.rotary.artifact import Frequencies
from lerope.rotary.encodings import Encoding, FrozenRoPE
from lerope.rotary.extension import Extension

# xIELU(x) = softplus(alpha_p) x^2 + beta x for x > 0,
#            (beta + softplus(alpha_n)) (expm1(min(x, eps)) - x) + beta x otherwise.
# softplus gives exactly 1 and 0 here, in float32 and in bfloat16.
XIELU = {"alpha_p": math.log(math.e - 1), "alpha_n": -200.0, "beta": 0.0, "eps": -1e-6}
# Without a base of its own an encoding gets this one: factors are relative to it.
DEFAULT_BASE = 10_000.0

_OF_MODEL = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_OF_BLOCK = {
    "attention_norm.weight": "attention_layernorm.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "feedforward_layernorm.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
_QKV = ("q", "k", "v")


def other_activation(config: Mapping[str, Any]) -> str | None:
    """The activation of an Apertus' config.json that only transformers reads: others always compute xIELU."""
    activation: str = config.get("hidden_act", "xielu")
    return activation if config["model_type"] == "apertus" and activation != "xielu" else None


def only_transformers(activation: str) -> str:
    """What to say to who exports or serves a model with such an activation."""
    return (
        f"activation {activation!r} runs only in transformers: engines compute xIELU in this architecture; train with "
        "--activation relu2 to serve the model everywhere."
    )


def apertus_frequencies(encoding: Encoding, train_length: int) -> Frequencies:
    """The frequencies as Apertus holds them: every pair of a head is a band, in half layout, the same in all layers."""
    if encoding.sharing != "shared":
        whose = encoding.sharing.replace("_", " and ")
        raise ValueError(
            f"encoding has frequencies of its own for each {whose} (sharing={encoding.sharing!r}), but engines keep "
            "one set for all layers and heads; train with sharing='shared' to export."
        )
    if type(encoding).rotation is not Encoding.rotation:
        raise ValueError(
            f"encoding must turn by nothing but frequencies to be exported; {type(encoding).__name__} does more."
        )
    own = encoding.frequencies().detach().cpu()
    still = own.new_zeros((encoding.head_dim - encoding.rotary_dim) // 2)
    made = _artifact(torch.cat((own, still)), encoding.base or DEFAULT_BASE, train_length)
    return replace(made, origin=encoding.origin)


def extended_frequencies(frequencies: Frequencies, extension: Extension) -> Frequencies:
    """The same with an extension's values."""
    return _artifact(extension.frequencies, frequencies.base or DEFAULT_BASE, frequencies.train_length)


def apertus_weights(model: Transformer, logit_scale: float = 1.0) -> dict[str, Tensor]:
    """A ladder model's weights under Apertus' names, float32 on the CPU.

    Args:
        logit_scale: an extension's, folded into the gains of queries.
    """
    given = {name: value for name, value in model.state_dict().items() if not name.startswith("encoding.")}
    _check_weights(model, given)
    order = _order(model.encoding)
    weights = {theirs: given[ours] for ours, theirs in _OF_MODEL.items()}
    for layer in range(model.config.num_layers):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        weights |= {theirs + name: given[ours + own] for own, name in _OF_BLOCK.items()}
        parts = given[f"{ours}attention.qkv.weight"].unflatten(0, (3, -1, model.config.head_dim))
        for name, part in zip(_QKV, parts, strict=True):
            rows = part if name == "v" else part[:, order]
            weights[f"{theirs}self_attn.{name}_proj.weight"] = rows.flatten(0, 1)
        for name in ("q", "k"):
            weights[f"{theirs}self_attn.{name}_norm.weight"] = given[f"{ours}attention.{name}_norm.weight"][order]
        gain = weights[f"{theirs}self_attn.q_norm.weight"]
        weights[f"{theirs}self_attn.q_norm.weight"] = (gain.double() * logit_scale).to(gain.dtype)
        if model.config.activation == "relu2":
            scalars = {f"{theirs}mlp.act_fn.{name}": torch.tensor(value) for name, value in XIELU.items()}
            weights |= {name: value.view(1) if "alpha" in name else value for name, value in scalars.items()}
    return {name: value.detach().float().cpu().contiguous() for name, value in weights.items()}


def apertus_config(model: ModelConfig, frequencies: Frequencies, length: int, dtype: str) -> dict[str, Any]:
    """The content of config.json, without the tokenizer's part.

    Args:
        length: the longest input that engines should accept.
        dtype: of the weights, as transformers names it.
    """
    content = {
        "architectures": ["ApertusForCausalLM"],
        "model_type": "apertus",
        "dtype": dtype,
        "torch_dtype": dtype,
        "vocab_size": model.vocab_size,
        "hidden_size": model.width,
        "intermediate_size": model.mlp_width,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_heads,
        "head_dim": model.head_dim,
        "hidden_act": "xielu" if model.activation == "relu2" else "gelu",
        "max_position_embeddings": length,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        # mlx-lm needs these three.
        "mlp_bias": False,
        "qk_norm": True,
        "post_norm": False,
        "rope_theta": frequencies.base,
    }
    return longrope_config(content, frequencies.tensor())


def ladder_model(config: dict[str, Any], weights: dict[str, Tensor], frequencies: Frequencies) -> Transformer:
    """The way back: a ladder model from Apertus' weights, for comparisons."""
    activation: Any = "relu2" if config["hidden_act"] == "xielu" else "gelu"
    shape = ModelConfig(
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        vocab_size=config["vocab_size"],
        activation=activation,
        norm_eps=config["rms_norm_eps"],
    )
    encoding = FrozenRoPE(frequencies.tensor())
    content = {ours: weights[theirs] for ours, theirs in _OF_MODEL.items()}
    for layer in range(shape.num_layers):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        content |= {ours + own: weights[theirs + name] for own, name in _OF_BLOCK.items()}
        parts = [weights[f"{theirs}self_attn.{name}_proj.weight"] for name in _QKV]
        content[f"{ours}attention.qkv.weight"] = torch.cat(parts)
    content = {name: value.float() for name, value in content.items()} | {"encoding.theta": encoding.theta}
    with torch.device("meta"):
        model = Transformer(shape, encoding)
    model.load_state_dict(content, assign=True)
    return model.eval()


def _artifact(values: Tensor, base: float, train_length: int | None) -> Frequencies:
    frozen = FrozenRoPE(values)
    frozen.base = base
    return frozen.artifact(train_length)


def _order(encoding: Encoding) -> Tensor:
    """Which of our dimensions of a head goes to each of Apertus'."""
    turning = torch.arange(encoding.rotary_dim)
    first, second = turning.chunk(2) if encoding.layout == "half" else turning.view(-1, 2).unbind(1)
    still = torch.arange(encoding.rotary_dim, encoding.head_dim).view(2, -1)
    return torch.cat((first, still[0], second, still[1]))


def _check_weights(model: Transformer, given: dict[str, Tensor]) -> None:
    """Raises unless the weights are those of the ladder, none shared."""
    with torch.device("meta"):
        wanted = Transformer(model.config, FrozenRoPE(torch.zeros(model.config.head_dim // 2, device="cpu")))
    shapes = {name: value.shape for name, value in wanted.state_dict().items() if not name.startswith("encoding.")}
    for name, value in given.items():
        if not value.is_floating_point() or value.element_size() < 2:
            raise ValueError(
                f"{name} must be float32, bfloat16 or float16; got {value.dtype}; export before quantising."
            )
    for name in sorted(shapes.keys() ^ given.keys()):
        what = "missing" if name in shapes else "unknown to the ladder"
        raise ValueError(f"model must have the ladder's weights to be exported; {name} is {what}.")
    for name, shape in shapes.items():
        if given[name].shape != shape:
            raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(given[name].shape)}.")
        if given[name].is_meta:
            raise ValueError(f"{name} is on the meta device and holds no values; load the model's weights first.")
    if given["embedding.weight"].data_ptr() == given["head.weight"].data_ptr():
        raise ValueError("model must have a head of its own to be exported as Apertus; got one tied to the embedding.")
