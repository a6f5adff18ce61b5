"""What PEFT and transformers say where an adapter meets a base without its frequencies."""

import warnings

import pytest
import torch

import lerope
from lerope.interop.adapters import load_adapter, save_adapter
from lerope.interop.huggingface import rotary_of
from tests.interop.toys import make, shake

peft = pytest.importorskip("peft")
LORA = {"target_modules": ["q_proj"], "r": 2}


def adapted(family="llama"):
    config = peft.LoraConfig(modules_to_save=["rotary_emb"], **LORA)
    model = peft.get_peft_model(lerope.convert(make(family)), config)
    shake(model)
    return model


def said(load):
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        load()
    return [str(each.message) for each in found]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_plain_peft_names_the_loader_and_ours_is_silent(family, tmp_path):
    model = adapted(family)
    save_adapter(model, tmp_path)
    (warning,) = said(lambda: peft.PeftModel.from_pretrained(make(family), tmp_path))
    assert "frequencies_need_lerope.interop.adapters.load_adapter" in warning
    loaded = []
    assert not said(lambda: loaded.append(load_adapter(make(family), tmp_path)))
    for one, other in zip(rotary_of(loaded[0]).parameters(), rotary_of(model).parameters(), strict=True):
        assert torch.equal(one, other)


def test_why_save_adapter_is_there(tmp_path):
    """Should this fail, PEFT has learned to speak for itself."""
    adapted().save_pretrained(tmp_path)
    found = []
    assert not said(lambda: found.append(peft.PeftModel.from_pretrained(make(), tmp_path)))
    result = found[0].load_adapter(tmp_path, "again")
    assert not result.missing_keys
    assert any(name.endswith("inv_freq.alpha") for name in result.unexpected_keys)


def test_every_adapter_with_frequencies_is_noted(tmp_path):
    model = adapted()
    model.add_adapter("second", peft.LoraConfig(modules_to_save=["rotary_emb"], **LORA))
    model.add_adapter("without", peft.LoraConfig(**LORA))
    save_adapter(model, tmp_path)
    assert said(lambda: peft.PeftModel.from_pretrained(make(), tmp_path / "second"))
    assert not said(lambda: peft.PeftModel.from_pretrained(make(), tmp_path / "without"))


def test_an_adapter_without_frequencies_is_refused(tmp_path):
    model = peft.get_peft_model(lerope.convert(make()), peft.LoraConfig(**LORA))
    with pytest.raises(ValueError, match=r"holds no frequencies; train it with modules_to_save=\['rotary_emb'\]"):
        save_adapter(model, tmp_path)
