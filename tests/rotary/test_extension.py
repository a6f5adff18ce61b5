"""Context extension against the paper's formulas and against Hugging Face's YaRN."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import lerope

ROPE = lerope.RoPE(64).frequencies()

# w for bands 9 to 20 of RoPE(64, 10,000) at train length 2048: turns (the paper) and indices (Hugging Face).
BY_TURNS = [0.756, 0.559, 0.411, 0.300, 0.217, 0.155, 0.108, 0.073, 0.047, 0.027, 0.012, 0.001]
BY_INDEX = [0.923, 0.846, 0.769, 0.692, 0.615, 0.538, 0.462, 0.385, 0.308, 0.231, 0.154, 0.077]


def weights(result: lerope.Extension, s: float) -> torch.Tensor:
    return ((result.frequencies / ROPE).double() - s) / (1 - s)


@pytest.mark.parametrize(("base", "want"), [(None, BY_TURNS), (10_000.0, BY_INDEX)])
def test_ramps_have_the_known_values(base, want):
    result = lerope.extend(ROPE, train_length=2048, length=8192, method="ntk_by_parts", index_ramp_base=base)
    w = weights(result, 0.25)
    torch.testing.assert_close(w[9:21], torch.tensor(want, dtype=torch.float64), rtol=0, atol=6e-4)
    torch.testing.assert_close(w[:8], torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(w[21:], torch.zeros(11, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_published_profile_of_learned_frequencies():
    """reproduction.md section 5: w of the transcribed 217M profile, bands 8 to 15, then zero."""
    profile = torch.tensor([0.084, 0.059, 0.044, 0.031, 0.023, 0.016, 0.0094, 0.0042, 0.0015, 0.0011, 1e-4])
    s = 0.5
    result = lerope.extend(profile, train_length=2048, length=4096, method="ntk_by_parts")
    w = ((result.frequencies / profile).double() - s) / (1 - s)
    want = [0.851, 0.588, 0.430, 0.294, 0.210, 0.136, 0.067, 0.012, 0.0, 0.0, 0.0]
    torch.testing.assert_close(w, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize(
    ("head_dim", "base", "train_length"), [(64, 10_000.0, 2048), (128, 1e6, 32_768), (64, 1e4, 64)]
)
def test_index_ramp_is_hugging_faces_yarn(factor, head_dim, base, train_length):
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=int(factor * train_length),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": base,
            "factor": factor,
            "original_max_position_embeddings": train_length,
        },
    )
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, device="cpu")
    got = lerope.extend(
        lerope.RoPE(head_dim, base).frequencies(),
        train_length=train_length,
        length=int(factor * train_length),
        method="yarn",
        index_ramp_base=base,
    )
    torch.testing.assert_close(got.frequencies, inv_freq, rtol=5e-7, atol=0)
    assert got.logit_scale == pytest.approx(attention_factor**2, rel=1e-12)


@pytest.mark.parametrize(("factor", "scale"), [(2, 1.143), (4, 1.297), (8, 1.459), (16, 1.631)])
def test_temperature_has_the_known_values(factor, scale):
    def logit_scale(**kwargs) -> float:
        return lerope.extend(ROPE, train_length=2048, length=2048 * factor, **kwargs).logit_scale

    assert logit_scale(method="yarn") == pytest.approx(scale, abs=6e-4)
    assert logit_scale(method="yarn", temperature=0.0) == 1.0
    assert logit_scale(method="yarn", temperature=0.2) == pytest.approx((0.2 * math.log(factor) + 1) ** 2)
    assert logit_scale(method="dominant_band", dominant_band=17) == logit_scale(method="yarn")
    assert logit_scale(method="slow_bands") == logit_scale(method="yarn")
    assert logit_scale(method="slow_bands", temperature=0.0) == 1.0
    assert logit_scale(method="logits") == logit_scale(method="yarn")
    for method in ("none", "pi", "ntk_by_parts"):
        assert logit_scale(method=method) == 1.0


def test_each_method_scales_what_it_says():
    def extend(method, **kwargs):
        return lerope.extend(ROPE, train_length=2048, length=6144, method=method, **kwargs).frequencies

    assert torch.equal(extend("none"), ROPE)
    assert torch.equal(extend("logits"), ROPE)
    torch.testing.assert_close(extend("pi"), ROPE / 3, rtol=1e-7, atol=0)
    dominant = extend("dominant_band", dominant_band=17)
    assert dominant[17].item() == pytest.approx(ROPE[17].item() / 3)
    assert torch.equal(dominant[:17], ROPE[:17])
    assert torch.equal(dominant[18:], ROPE[18:])
    assert torch.equal(extend("yarn"), extend("ntk_by_parts"))
    # A band of RoPE turns less than once in 2,048 tokens from band 21 on, at a wavelength of 2,650.
    slow = extend("slow_bands")
    assert torch.equal(slow[:21], ROPE[:21])
    torch.testing.assert_close(slow[21:], ROPE[21:] / 3, rtol=1e-7, atol=0)


@pytest.mark.parametrize("method", ["none", "pi", "ntk_by_parts", "yarn", "slow_bands", "dominant_band", "logits"])
def test_one_length_per_document_equals_one_at_a_time(method):
    lengths = torch.tensor([[100, 2048, 2049], [4096, 9000, 32_768]])
    many = lerope.extend(ROPE, train_length=2048, length=lengths, method=method, dominant_band=16)
    assert many.frequencies.shape == (2, 3, 32)
    assert many.logit_scale.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = lerope.extend(ROPE, train_length=2048, length=int(lengths[i, j]), method=method, dominant_band=16)
            assert torch.equal(many.frequencies[i, j], one.frequencies)
            assert many.logit_scale[i, j].item() == pytest.approx(one.logit_scale, rel=1e-7)


def test_zeros_of_p_rope_stay_zero_and_signs_stay():
    prope = lerope.PRoPE(64, p=0.5).frequencies()
    for method in ("pi", "ntk_by_parts", "yarn", "slow_bands"):
        result = lerope.extend(prope, train_length=2048, length=8192, method=method)
        assert torch.count_nonzero(result.frequencies[16:]) == 0
        mirrored = lerope.extend(-prope, train_length=2048, length=8192, method=method)
        assert torch.equal(mirrored.frequencies, -result.frequencies)


def test_per_head_frequencies_and_rotation_per_document():
    """Per-document frequencies go through rotate by broadcasting; each document turns as it would alone."""
    per_head = torch.stack((ROPE, ROPE / 2))
    lengths = torch.tensor([2048, 8192])
    result = lerope.extend(per_head, train_length=2048, length=lengths, method="yarn")
    assert result.frequencies.shape == (2, 2, 32)
    x = torch.randn(2, 10, 2, 64)
    batched = lerope.rotate(x, 5, result.frequencies[:, None])
    for i in range(2):
        assert torch.equal(batched[i], lerope.rotate(x[i], 5, result.frequencies[i]))


def test_the_dominant_band_is_fully_interpolated_by_turns_but_not_by_index():
    """Why an engine's own YaRN must not be used on learned frequencies: it decides by index, not by frequency."""
    frequencies = ROPE.clone()
    frequencies[17] *= 0.2009
    by_turns = lerope.extend(frequencies, train_length=2048, length=8192, method="yarn")
    by_index = lerope.extend(frequencies, train_length=2048, length=8192, method="yarn", index_ramp_base=1e4)
    assert (by_turns.frequencies[17] / frequencies[17]).item() == pytest.approx(0.25)
    assert (by_index.frequencies[17] / frequencies[17]).item() == pytest.approx(0.481, abs=1e-3)


def test_scales_by_position_grow_from_the_train_length_on():
    scales = lerope.scale_by_position(torch.arange(8192), 2048, 0.2)
    assert scales.dtype == torch.float32
    assert torch.equal(scales[:2048], torch.ones(2048))
    assert scales[2048] > 1
    for position in (4095, 8191):
        one = lerope.extend(ROPE, train_length=2048, length=position + 1, method="logits", temperature=0.2)
        assert scales[position].item() == pytest.approx(one.logit_scale, rel=1e-7)
    assert scales[8191].item() == pytest.approx((0.2 * math.log(4) + 1) ** 2)
