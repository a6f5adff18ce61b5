"""Converted models with every encoding and parametrization, frequencies of a file and presets."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

import lerope
from lerope.interop.huggingface import rotary_of
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import adam, gradients, logits, make, scaled, shake, train
from tests.made_presets import save_preset


def test_frozen_and_the_frequencies_of_a_file(tmp_path):
    learned = lerope.convert(make())
    shake(learned)
    rotary_of(learned).inv_freq.save(tmp_path / "frequencies.json")
    model = lerope.convert(make(), str(tmp_path / "frequencies.json"))
    assert not frequency_parameters(model)
    assert torch.equal(logits(model), logits(learned))
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(logits(lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "model"))), logits(model))

    learned.save_pretrained(tmp_path / "learned")
    frozen = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "learned"), "frozen")
    assert not frequency_parameters(frozen)
    assert torch.equal(logits(frozen), logits(learned))


def test_a_preset_from_scratch(tmp_path):
    """Fixed as it is, learned from there on, saved for plain transformers."""
    preset = lerope.preset(save_preset(tmp_path, 128, 512), head_dim=16, train_length=256)
    model = lerope.convert(make(), encoding=preset)
    assert not frequency_parameters(model)
    assert torch.equal(rotary_of(model).inv_freq.frequencies(), preset.frequencies())
    assert rotary_of(model).inv_freq.origin == preset.origin
    assert not torch.allclose(logits(model), logits(make()))
    model.save_pretrained(tmp_path / "model")
    # The recipe's factors give the frequencies back to a rounding or two of float32.
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-5)
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), "frozen")
    assert torch.equal(logits(again), logits(model))

    learned = lerope.convert(make(), encoding=preset.learnable())
    torch.testing.assert_close(rotary_of(learned).inv_freq.frequencies(), preset.frequencies(), rtol=1e-6, atol=0)
    assert gradients(learned)["model.rotary_emb.inv_freq.alpha"].norm() > 0


def test_encodings_as_they_are(tmp_path):
    model = lerope.convert(make(), encoding=lerope.LeRoPE(16, base=500.0, parametrization="linear"))
    assert rotary_of(model).inv_freq.parametrization == "linear"
    assert torch.equal(rotary_of(model).inv_freq.frequencies(), lerope.RoPE(16, base=500.0).frequencies())
    assert gradients(model)["model.rotary_emb.inv_freq.alpha"].norm() > 0
    before = make()
    assert torch.equal(logits(lerope.convert(make(), lerope.LeRoPE(16))), logits(before))
    fixed = lerope.convert(make(), lerope.RoPE(16))
    assert not frequency_parameters(fixed)
    assert torch.equal(logits(fixed), logits(before))
    lerope.RoPE(32).save(tmp_path / "wide.json")
    resampled = lerope.convert(make(), f"{tmp_path / 'wide.json'},head_dim=resample")
    torch.testing.assert_close(logits(resampled), logits(before), rtol=0, atol=1e-5)


@pytest.mark.parametrize("parametrization", ["linear", "direct"])
def test_parametrizations_start_at_the_model_too(parametrization):
    model = make()
    before = logits(model)
    lerope.convert(model, f"lerope,parametrization={parametrization}")
    assert torch.equal(logits(model), before)
    alpha = rotary_of(model).inv_freq.alpha.detach()
    theta = 10000.0 ** (-torch.arange(8) / 8)
    torch.testing.assert_close(alpha, theta if parametrization == "direct" else torch.ones(8))
    assert gradients(model)["model.rotary_emb.inv_freq.alpha"].norm() > 0


def test_bands_that_start_at_zero_stay_there():
    model = lerope.convert(scaled("proportional"))
    optimizer = adam(model)
    train(model, optimizer, (1, 2))
    frequencies = rotary_of(model).inv_freq.frequencies()
    assert (frequencies[4:] == 0).all()
    assert (frequencies[:4] > 0).all()
    assert frequencies.isfinite().all()


def test_artifact_of_a_converted_model(tmp_path):
    model = lerope.convert(scaled("linear"))
    rotary_of(model).inv_freq.save(tmp_path / "f.json", train_length=64)
    saved = json.loads((tmp_path / "f.json").read_text())
    assert saved["base"] == 10000.0
    assert saved["log_scales"] == pytest.approx([-math.log(4)] * 8, abs=1e-6)
    torch.testing.assert_close(
        lerope.LeRoPE.load(tmp_path / "f.json").frequencies(), rotary_of(model).inv_freq.frequencies()
    )
