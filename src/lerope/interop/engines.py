"""How each engine makes its frequency table from exported files: one small function per engine, by its own formula.

Each takes the content of config.json (llama.cpp's the GGUF file's) and computes in float32 as the engine does. Read in
their sources: transformers, vLLM, SGLang, mlx-lm and llama.cpp in August 2026, ONNX Runtime GenAI's model builder and
the config reading of TensorRT-LLM in older versions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """What an engine turns by."""

    frequencies: Array
    """Radians per token, one per band."""
    attention_factor: float
    """What the engine multiplies cosines and sines by."""


def transformers_table(config: Mapping[str, Any]) -> Table:
    """transformers 5: `rope_parameters`; short factors up to the original length, `attention_factor` as given."""
    rope = _rope(config, "rope_parameters")
    found = rope.get("attention_factor")
    factor = _length_factor(config, rope) if found is None else float(found)
    return Table(_inverse(rope, rope["rope_theta"], "short_factor", config), factor)


def transformers_4_table(config: Mapping[str, Any]) -> Table:
    """transformers 4: `rope_scaling` and `rope_theta`."""
    rope = _rope(config, "rope_scaling")
    found = rope.get("attention_factor")
    factor = _length_factor(config, rope) if found is None else float(found)
    return Table(_inverse(rope, config["rope_theta"], "short_factor", config), factor)


def vllm_table(config: Mapping[str, Any]) -> Table:
    """vLLM: `rope_parameters`; ignores `attention_factor`, reads `long_mscale` or compares lengths."""
    rope = _rope(config, "rope_parameters")
    return Table(_inverse(rope, rope["rope_theta"], "long_factor", config), _mscale(config, rope))


def sglang_table(config: Mapping[str, Any]) -> Table:
    """SGLang: as vLLM, from `rope_scaling` and `rope_theta`."""
    rope = _rope(config, "rope_scaling")
    return Table(_inverse(rope, config["rope_theta"], "long_factor", config), _mscale(config, rope))


def mlx_table(config: Mapping[str, Any]) -> Table:
    """mlx-lm: `rope_scaling` and `rope_theta`; only long factors, held as periods; only compares lengths."""
    rope = _rope(config, "rope_scaling")
    periods = np.array(rope["long_factor"], np.float32) * _powers(config["rope_theta"], config)
    return Table(np.float32(1) / periods, _length_factor(config, rope))


def tensorrt_table(config: Mapping[str, Any]) -> Table:
    """TensorRT-LLM: `rope_scaling` and `rope_theta`; what it does with them after reading is unverified."""
    rope = _rope(config, "rope_scaling")
    return Table(_inverse(rope, config["rope_theta"], "short_factor", config), _mscale(config, rope))


def onnx_table(config: Mapping[str, Any]) -> Table:
    """ONNX Runtime GenAI's builder: bakes cosines and sines of these as caches; compares lengths."""
    rope = _rope(config, "rope_scaling")
    return Table(_inverse(rope, config["rope_theta"], "long_factor", config), _length_factor(config, rope))


def llama_cpp_table(config: Mapping[str, Any], factors: Array) -> Table:
    """llama.cpp: powers of one rounded theta, multiplied up band by band, divided by the tensor's factors."""
    if config["rope_scaling_type"] != "none":
        raise ValueError(f"llama.cpp reads rope_freqs only at rope scaling none; got {config['rope_scaling_type']!r}.")
    theta = np.power(np.float32(config["rope_theta"]), np.float32(-2.0) / np.float32(2 * len(factors)))
    angles = np.empty(len(factors), np.float32)
    angle = np.float32(1)
    for band in range(len(factors)):
        angles[band] = angle
        angle = np.float32(angle * theta)
    return Table(angles / factors, config.get("rope_attention_factor", 1.0))


TABLES: dict[str, Callable[[Mapping[str, Any]], Table]] = {
    "transformers 5": transformers_table,
    "transformers 4": transformers_4_table,
    "vLLM": vllm_table,
    "SGLang": sglang_table,
    "mlx-lm": mlx_table,
    "TensorRT-LLM": tensorrt_table,
    "ONNX Runtime GenAI": onnx_table,
}


def _rope(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    rope = config.get(key)
    if not isinstance(rope, Mapping) or rope.get("rope_type") != "longrope":
        raise ValueError(f"the engine finds no longrope in {key} and would turn by plain RoPE.")
    return rope


def _powers(base: float, config: Mapping[str, Any]) -> Array:
    """base^(2m / d) in float32."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rotary_dim = int(head_dim * config.get("partial_rotary_factor", 1.0))
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    powers: Array = np.power(np.float32(base), exponents)
    return powers


def _inverse(rope: Mapping[str, Any], base: float, key: str, config: Mapping[str, Any]) -> Array:
    factors = np.array(rope[key], np.float32)
    table: Array = np.float32(1) / (factors * _powers(base, config))
    return table


def _mscale(config: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    given = rope.get("long_mscale")
    return _length_factor(config, rope) if given is None else float(given)


def _length_factor(config: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    """Phi-3's attention factor: 1 unless the model's length is more than the original one."""
    original = rope["original_max_position_embeddings"]
    ratio = config["max_position_embeddings"] / original
    return 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
