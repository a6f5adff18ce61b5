"""What is saved and exported is, in plain transformers, the function in memory, or it is not saved."""

import copy
import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lerope
from lerope.interop import longrope, reload
from tests.interop import toys

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}
# Their attention depends on more of rope_parameters than frequencies.
MORE = {
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "rope_parameters": {**YARN, "factor": 4.0, "original_max_position_embeddings": 64, "mscale_all_dim": 1.0},
    },
    "ministral3": {
        "head_dim": 16,
        "rope_parameters": {
            **YARN,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "phi3": {
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.5] * 8,
            "long_factor": [1.5] * 8,
        },
    },
}


def converted(family):
    config = AutoConfig.for_model(family, **copy.deepcopy({**toys.SHAPE, **MORE[family]}))
    model = lerope.convert(toys._made(config, seed=0))
    toys.shake(model)
    return model


@pytest.mark.parametrize("family", MORE)
@pytest.mark.filterwarnings("ignore:no tokenizer")
def test_what_rope_parameters_say_beyond_frequencies_is_kept(family, tmp_path):
    model = converted(family)
    tokens = toys.tokens()
    expected = model(tokens).logits
    model.save_pretrained(tmp_path / "saved")
    lerope.export(model, tmp_path / "exported")
    for name in ("saved", "exported"):
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / name).eval()
        torch.testing.assert_close(plain(tokens).logits, expected, rtol=0, atol=2e-6)
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")).eval()
    assert torch.equal(again(tokens).logits, expected)


@pytest.mark.parametrize(("family", "key"), [("deepseek_v3", "mscale_all_dim"), ("ministral3", "llama_4_scaling_beta")])
def test_a_config_that_is_another_function_is_not_saved(family, key, tmp_path, monkeypatch):
    model = converted(family)
    # At toy size attention is all but even: let it matter, as it does in a trained model.
    for name, parameter in model.named_parameters():
        if "proj" in name and parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    monkeypatch.setattr(longrope, "_SPENT", {*longrope._SPENT, key})
    if key == "llama_4_scaling_beta":  # which transformers cannot do without
        put = longrope._parameters
        monkeypatch.setattr(longrope, "_parameters", lambda *args: put(*args) | {key: 0.0})
    with pytest.raises(ValueError, match="other logits"):
        model.save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").iterdir())


def test_the_check_changes_nothing_and_copies_nothing(tmp_path, monkeypatch):
    model = lerope.convert(toys.make("llama")).train()
    model.model.layers[0].eval()
    torch.manual_seed(3)
    expected = torch.rand(3)
    shared = []
    share = reload._share
    monkeypatch.setattr(reload, "_share", lambda *models: (share(*models), shared.append(models[1])))
    torch.manual_seed(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert model.model.layers[1].training
    assert not model.model.layers[0].training
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    own = {name: value.data_ptr() for name, value in model.named_parameters() if "rotary" not in name}
    assert {name: value.data_ptr() for name, value in shared[0].named_parameters()} == own


def test_an_attention_factor_or_frequencies_that_differ(tmp_path):
    model = lerope.convert(toys.scaled("yarn"))
    model.save_pretrained(tmp_path)
    assert reload.check_reload(model, tmp_path) is None
    content = json.loads((tmp_path / "config.json").read_text())
    changed = copy.deepcopy(content)
    changed["rope_parameters"]["attention_factor"] *= 1.1
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="attention factor"):
        reload.check_reload(model, tmp_path)
    changed = copy.deepcopy(content)
    changed["rope_parameters"]["short_factor"][3] *= 1.00001
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="frequencies"):
        reload.check_reload(model, tmp_path)


def test_weights_that_no_plain_model_can_share_are_named(tmp_path):
    import peft

    model = lerope.convert(toys.make("llama"))
    model.save_pretrained(tmp_path)
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    assert "adapters" in reload.check_reload(model, tmp_path)


def test_a_model_that_cannot_be_compared_is_saved_all_the_same(tmp_path, monkeypatch):
    """In the middle of training nothing is worse than a checkpoint that is not written."""
    model = lerope.convert(toys.make("llama"))
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "diverged")
    assert "finite" in reload.check_reload(model, tmp_path / "diverged")

    def fails(*_):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(reload, "_output", fails)
    model.save_pretrained(tmp_path / "large")
    assert (tmp_path / "large" / "config.json").is_file()
    assert "(out of memory)" in reload.check_reload(model, tmp_path / "large")
