"""The recipe, against each engine's formula written out in float32 numpy, and read by transformers itself."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lerope.interop.longrope import longrope_config

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}


def learned(bands: int, base: float = 500000.0) -> np.ndarray:
    theta = base ** (-np.arange(bands) / bands)
    return (theta * np.exp(np.random.default_rng(0).normal(0, 1, bands))).astype(np.float32)


def engine_table(scaling: dict, base: float, key: str) -> np.ndarray:
    """What vLLM, SGLang, mlx-lm and ONNX Runtime GenAI compute: 1 / (factor * base^(2m / d))."""
    factor = np.array(scaling[key], np.float32)
    exponent = np.arange(0, 2 * len(factor), 2, dtype=np.float32) / np.float32(2 * len(factor))
    return 1 / (factor * np.float32(base) ** exponent)


@pytest.mark.parametrize("bands", [32, 20])
def test_both_key_styles_give_the_frequencies(bands):
    frequencies = learned(bands)
    config = {**CONFIG, "rope_parameters": {**CONFIG["rope_parameters"], "partial_rotary_factor": bands / 32}}
    before = copy.deepcopy(config)
    content = longrope_config(config, torch.from_numpy(frequencies))
    assert config == before
    for scaling in (content["rope_parameters"], content["rope_scaling"]):
        for key in ("short_factor", "long_factor"):
            table = engine_table(scaling, content["rope_theta"], key)
            # numpy's power may be a last place off torch's where exponents are no binary fractions
            np.testing.assert_allclose(table, frequencies, rtol=1.3e-7 if bands == 32 else 2.5e-7)
        assert scaling["original_max_position_embeddings"] == content["max_position_embeddings"] == 4096
        assert scaling["attention_factor"] == scaling["factor"] == 1.0
    assert content["head_dim"] == 64
    assert content.get("partial_rotary_factor", 1.0) == bands / 32


@pytest.mark.parametrize("style", ["both", "rope_parameters", "rope_scaling"])
def test_transformers_reads_every_style(style):
    frequencies = learned(32)
    content = longrope_config(CONFIG, frequencies.tolist(), attention_factor=1.25)
    if style == "rope_parameters":
        del content["rope_scaling"], content["rope_theta"]
    elif style == "rope_scaling":
        del content["rope_parameters"]
    config = AutoConfig.for_model(**content)
    for length in (10, 10_000):
        table, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
        np.testing.assert_allclose(table.numpy(), frequencies, rtol=1.3e-7)
        assert factor == 1.25


def test_plain_rope_and_bands_that_stand_still():
    theta = 1.0 / 500000.0 ** (torch.arange(0, 64, 2).float() / 64)
    assert longrope_config(CONFIG, theta)["rope_parameters"]["short_factor"] == [1.0] * 32
    theta[20:] = 0
    factors = longrope_config(CONFIG, theta)["rope_parameters"]["long_factor"]
    assert factors == [1.0] * 20 + [torch.tensor(1e30).item()] * 12


def test_one_set_per_kind_of_layer():
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    config = {**CONFIG, "model_type": "gemma3_text", "head_dim": 64, "rope_parameters": kinds, "rope_theta": 1e6}
    sets = {"full_attention": learned(32, 1e6), "sliding_attention": learned(32, 1e4)}
    content = longrope_config(config, {kind: torch.from_numpy(values) for kind, values in sets.items()})
    loaded = AutoConfig.for_model(**content)
    for kind, values in sets.items():
        table, _ = ROPE_INIT_FUNCTIONS["longrope"](loaded, "cpu", layer_type=kind)
        np.testing.assert_allclose(table.numpy(), values, rtol=1.3e-7)
    assert not {"rope_scaling", "rope_theta"} & set(content)


@pytest.mark.parametrize(
    ("change", "frequencies", "message"),
    [
        ({"max_position_embeddings": None}, learned(32), "config has no max_position_embeddings"),
        ({"rope_parameters": None}, learned(32), "config has no rope_theta"),
        ({}, learned(33), r"at most 32 for head_dim = 64.*got shape \(33,\)"),
        ({}, np.ones((2, 32)), r"share them among layers and heads; got shape \(2, 32\)"),
        ({}, np.full(32, np.nan), "must be finite"),
    ],
)
def test_bad_input(change, frequencies, message):
    with pytest.raises(ValueError, match=message):
        longrope_config({**CONFIG, **change}, torch.from_numpy(frequencies))
