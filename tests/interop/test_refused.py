"""What cannot be converted, saved or loaded is refused in one sentence, and left as it was."""

import copy
import json
import sys

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DINOv3ViTConfig,
    GPTJConfig,
    Qwen2VLForConditionalGeneration,
)

import lerope
from lerope.interop.huggingface import rotary_of
from tests.interop.toys import (
    gpt2,
    logits,
    make,
    shake,
)


def qwen2_vl():
    config = AutoConfig.for_model("qwen2_vl")
    for part in (config.text_config, config.vision_config):
        part.depth = part.num_hidden_layers = 1
        part.hidden_size, part.intermediate_size, part.num_attention_heads = 32, 32, 2
    config.text_config.num_key_value_heads, config.text_config.vocab_size = 2, 97
    config.text_config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config.vision_config.embed_dim, config.vision_config.num_heads = 32, 2
    with torch.device("meta"):
        return Qwen2VLForConditionalGeneration(config)


def meta():
    with torch.device("meta"):
        return make()


def dynamic():
    return make(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})


def own_tables():
    model = make()
    forward = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: forward(x, position_ids + 1)
    return model


def gptj():
    return AutoModelForCausalLM.from_config(GPTJConfig(n_embd=32, n_layer=1, n_head=2, rotary_dim=8, vocab_size=97))


def dinov3():
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return AutoModel.from_config(DINOv3ViTConfig(**shape, image_size=32))


def two_rotaries():
    model = make()
    model.extra = copy.deepcopy(model.model.rotary_emb)
    return model


CASES = [
    (gpt2, "lerope", "must have a rotary module.*GPT2LMHeadModel has none"),
    (lambda: nn.Linear(2, 2), "lerope", "must be a transformers model.*got Linear"),
    (lambda: "gpt2", "lerope", "must be a transformers model.*got str"),
    (lambda: lerope.convert(make()), "lerope", "already converted"),
    (qwen2_vl, "lerope", "several axes"),
    (meta, "lerope", "meta device"),
    (dynamic, "lerope", "'dynamic' computes new frequencies"),
    (own_tables, "lerope", "LlamaRotaryEmbedding makes cosines and sines in a way.*not from the positions"),
    (gptj, "lerope", "GPTJForCausalLM turns queries and keys by tables inside each attention layer"),
    (dinov3, "lerope", "DINOv3ViTRopePositionEmbedding makes cosines and sines in a way.*not from the positions"),
    (two_rotaries, "lerope", "one rotary module.*extra"),
    (make, "rope", "encoding must be.*got 'rope'"),
    (make, "lerope,sharing=layer", "encoding must be.*got 'lerope,sharing=layer'"),
    (make, "frozen,parametrization=log", "encoding must be"),
    (make, "lerope,parametrization=cubic", "parametrization must be one of log, linear, direct; got 'cubic'"),
    (make, "nowhere/frequencies.json", "nowhere/frequencies.json does not exist"),
    (make, "f.json,base=3", "takes no option but head_dim=resample; got 'base=3'"),
    (make, "preset:mine", r"does not say for which train length; .*lerope.preset\('mine', head_dim=16, train_length="),
    (make, 3, "encoding must be text or a lerope.Encoding; got int"),
    (make, lerope.LeRoPE, "encoding must be text or a lerope.Encoding; got type"),
    (make, lerope.LeRoPE(32), "LeRoPE must have one set of 8 bands for this model; got 16 bands"),
    (make, lerope.LeRoPE(16, sharing="head", num_heads=2), "LeRoPE must have one set of 8 bands.*sharing='head'"),
    (lambda: make("gemma3"), lerope.RoPE(32), "one per kind of layer"),
]


@pytest.mark.parametrize(("build", "encoding", "message"), CASES)
def test_bad_input_is_one_sentence(build, encoding, message):
    with pytest.raises(ValueError, match=message) as caught:
        lerope.convert(build(), encoding)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")


def test_files_that_do_not_fit(tmp_path):
    lerope.LeRoPE(32).save(tmp_path / "wide.json")
    lerope.LeRoPE(16, sharing="layer", num_layers=2).save(tmp_path / "layers.json")
    for name, bands in (("wide.json", 16), ("layers.json", 8)):
        with pytest.raises(ValueError, match=rf"{name} must have one set of 8 bands.*got {bands} bands"):
            lerope.convert(make(), str(tmp_path / name))
    with pytest.raises(ValueError, match="one per kind of layer"):
        lerope.convert(make("gemma3"), str(tmp_path / "wide.json"))


def test_a_refused_model_is_left_as_it_was():
    model = make()
    before, kind = logits(model), type(model)
    with pytest.raises(ValueError, match="encoding must be"):
        lerope.convert(model, "nope")
    assert torch.equal(logits(model), before)
    assert type(model) is kind


def test_folders_changed_by_hand_and_other_parametrizations(tmp_path):
    model = lerope.convert(make())
    shake(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="learned with parametrization=log"):
        lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path), "lerope,parametrization=direct")
    content = json.loads((tmp_path / "config.json").read_text())
    content["rope_parameters"]["short_factor"][3] *= 1.001
    content["rope_parameters"]["long_factor"][3] *= 1.001
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="its lerope entry"):
        lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path))
    del content["lerope"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert (rotary_of(again).inv_freq.alpha == 0).all()


def test_a_config_that_refuses_other_frequencies_is_found_before_training(monkeypatch):
    """As Cosmos3-Edge's does: it would raise at the first save."""

    def refuse(*_, **__):
        raise TypeError("rope_type must be\n'default'")

    model = make()
    before, kind = logits(model), type(model)
    monkeypatch.setattr(type(model.config), "from_dict", refuse)
    message = r"LlamaForCausalLM could not be saved.*its config cannot hold them: rope_type must be 'default'"
    with pytest.raises(ValueError, match=message):
        lerope.convert(model)
    assert type(model) is kind
    assert torch.equal(logits(model), before)


def test_upload_within_save_is_refused(tmp_path):
    with pytest.raises(ValueError, match="push_to_hub=True would upload"):
        lerope.convert(make()).save_pretrained(tmp_path / "out", push_to_hub=True)
    assert not (tmp_path / "out").exists()


def test_without_transformers(monkeypatch):
    model = make()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"needs the package transformers: pip install 'transformers>="):
        lerope.convert(model)


def test_rotary_of_a_plain_model():
    with pytest.raises(ValueError, match=r"converted with lerope\.convert first"):
        rotary_of(make())


def test_logits_by_position_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="method 'logits' scales each query by its position, which no export can say"):
        lerope.export("runs/any", tmp_path / "out", length=8192, method="logits")
