"""Ways back into converted models, and out of them: classes that load, adapters, plain models again."""

import json

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, EsmConfig

import lerope
from lerope.interop.adapters import load_adapter
from lerope.interop.huggingface import rotary_of, saved_sets
from lerope.interop.rotary import Rotary
from lerope.interop.trainer import LeropeCallback
from tests.interop.toys import SHAPE, gpt2, logits, make, make_any, scaled, shake, tokens
from tests.ranks import run_ranks


def test_the_class_of_a_converted_model_loads_converted_models(tmp_path):
    model = lerope.convert(make())
    shake(model)
    model.save_pretrained(tmp_path / "one")
    again, info = type(model).from_pretrained(tmp_path / "one", output_loading_info=True)
    assert not any(info.values())
    assert type(again) is type(model)
    assert torch.equal(rotary_of(again).inv_freq.alpha, rotary_of(model).inv_freq.alpha)
    assert torch.equal(logits(again), logits(model))
    again.save_pretrained(tmp_path / "two")
    assert torch.equal(logits(type(model).from_pretrained(tmp_path / "two")), logits(model))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3", "phi3", "falcon", "llama4_text", "gpt_oss"])
def test_a_plain_model_again(family, tmp_path):
    kind = type(make_any(family))
    model = lerope.convert(make_any(family))
    shake(model)
    expected = logits(model)
    assert lerope.unconvert(model) is model
    assert type(model) is kind
    assert not any(isinstance(module, Rotary) for module in model.modules())
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-6)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(logits(loaded), expected, rtol=0, atol=1e-5)
    again = lerope.convert(loaded)
    assert all((p == 0).all() for p in rotary_of(again).parameters())  # it starts where it is
    torch.testing.assert_close(logits(again), expected, rtol=0, atol=1e-5)


def test_a_plain_model_of_a_loaded_one_with_a_scale(tmp_path):
    model = lerope.convert(scaled("yarn"))
    shake(model)
    model.save_pretrained(tmp_path)
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path))
    torch.testing.assert_close(logits(lerope.unconvert(again)), logits(model), rtol=0, atol=1e-6)
    assert not hasattr(again.config, "lerope")


def test_only_converted_models_go_back():
    for model in (make(), gpt2(), torch.nn.Linear(2, 2), "llama"):
        with pytest.raises(ValueError, match=r"must be one that lerope\.convert made"):
            lerope.unconvert(model)


def test_esm_keeps_its_frequencies_among_the_weights(tmp_path):
    config = EsmConfig(**{**SHAPE, "vocab_size": 33, "mask_token_id": 32}, position_embedding_type="rotary")
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval()
    x = tokens() % 30 + 1
    with torch.no_grad():
        before = model(x).logits
        assert torch.equal(lerope.convert(model)(x).logits, before)
    model(x, labels=x).loss.backward()
    assert rotary_of(model).inv_freq.alpha.grad.norm() > 0
    shake(model, 1.0)
    with torch.no_grad():
        expected = model(x).logits
    assert not torch.equal(expected, before)
    model.save_pretrained(tmp_path)
    plain, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    with torch.no_grad():
        assert torch.equal(plain(x).logits, expected)
        again = lerope.convert(plain)
        assert torch.equal(again(x).logits, expected)
        assert torch.equal(rotary_of(again).inv_freq.alpha, rotary_of(model).inv_freq.alpha)
        assert torch.equal(lerope.unconvert(again)(x).logits, expected)


def check_ranks(rank, folder):
    for family in ("llama", "gemma3"):
        model = lerope.convert(make(family))
        shake(model)
        expected, alphas = logits(model), [p.detach().clone() for p in rotary_of(model).parameters()]
        fully_shard(rotary_of(model))
        fully_shard(model)
        callback = LeropeCallback()
        callback.model = model
        callback.on_step_end(None, None, None)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:  # alone, as Trainer does
            model.save_pretrained(f"{folder}/{family}", state_dict=state)
            sets = callback.state()["attributes"]["sets"]
            again = lerope.convert(AutoModelForCausalLM.from_pretrained(f"{folder}/{family}"))
            assert all(torch.equal(a, b) for a, b in zip(rotary_of(again).parameters(), alphas, strict=True))
            assert torch.equal(logits(again), expected)
            assert (sets is None) == (family == "llama")
            if sets is not None:
                assert sets == saved_sets(rotary_of(again))
        dist.barrier()


@pytest.mark.slow
def test_one_process_saves_what_fsdp2_has_spread(tmp_path):
    run_ranks(check_ranks, tmp_path, str(tmp_path))


def test_falcon_exports(tmp_path):
    """Its config computes head_dim and takes none."""
    model = lerope.convert(make("falcon"))
    shake(model)
    lerope.export(model, tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-5)


def test_what_could_not_be_saved_is_refused_before_training():
    own = {"num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1]}
    own |= {"use_mem_rope": True, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 32, "num_mem_blocks": 1}
    config = AutoConfig.for_model("zamba2", **{**SHAPE, **own, "attention_head_dim": 32, "attention_hidden_size": 128})
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="Zamba2ForCausalLM could not be saved with learned frequencies"):
        lerope.convert(model)
    assert not any(isinstance(module, Rotary) for module in model.modules())


def test_adapters_bring_their_frequencies(tmp_path):
    peft = pytest.importorskip("peft")
    settings = {"target_modules": ["q_proj"], "r": 2}
    model = peft.get_peft_model(lerope.convert(make()), peft.LoraConfig(modules_to_save=["rotary_emb"], **settings))
    shake(model)
    model.save_pretrained(tmp_path / "adapter")
    expected = logits(model)
    for base in (make(), lerope.convert(make())):
        loaded = load_adapter(base, tmp_path / "adapter")
        assert torch.equal(rotary_of(loaded).inv_freq.alpha, rotary_of(model).inv_freq.alpha)
        assert torch.equal(logits(loaded), expected)
    with pytest.raises(ValueError, match=r"nowhere.*does not exist"):
        load_adapter(make(), tmp_path / "nowhere")
    peft.get_peft_model(make(), peft.LoraConfig(**settings)).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="holds no frequencies"):
        load_adapter(make(), tmp_path / "other")
    assert "rotary_emb" in json.loads((tmp_path / "adapter/adapter_config.json").read_text())["modules_to_save"]
