"""What people put around converted models: PEFT and Accelerate."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import lerope
from lerope.interop.huggingface import rotary_of
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import adam, logits, make, tokens


def test_peft_trains_the_frequencies_and_its_adapters_alone(tmp_path):
    peft = pytest.importorskip("peft")
    base = lerope.convert(make())
    x = tokens()
    before = logits(base)
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["rotary_emb"], r=2)
    model = peft.get_peft_model(base, config)
    assert torch.equal(logits(model), before)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert sum("lora" in name for name in trainable) == 4
    assert [name for name in trainable if "lora" not in name] == list(frequency_parameters(model))
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-2, weight_decay=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()
    alpha = rotary_of(model).inv_freq.alpha
    assert alpha.abs().min() > 0
    after = logits(model)
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(lerope.convert(make()), tmp_path / "adapter")
    assert torch.equal(rotary_of(loaded).inv_freq.alpha, alpha)
    assert torch.equal(logits(loaded), after)

    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), after)
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    assert torch.equal(logits(again), logits(merged))


def test_peft_adapters_have_frequencies_of_their_own():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["rotary_emb"], r=2)
    model = peft.get_peft_model(lerope.convert(make()), config, adapter_name="first")
    model.add_adapter("second", config)
    found = {}
    for number, name in enumerate(("second", "first", "second"), start=1):
        model.set_adapter(name)
        rotary = rotary_of(model)
        with torch.no_grad():
            rotary.inv_freq.alpha.fill_(number / 10)
        found[name] = rotary
    assert found["first"] is not found["second"]
    for name, alpha in (("first", 0.2), ("second", 0.3)):
        model.set_adapter(name)
        assert rotary_of(model) is found[name]
        plain = lerope.convert(make())
        with torch.no_grad():
            rotary_of(plain).inv_freq.alpha.fill_(alpha)
        assert torch.equal(logits(model), logits(plain))
    with model.disable_adapter():
        assert rotary_of(model) not in found.values()
        assert torch.equal(logits(model), logits(make()))
        assert (rotary_of(model).inv_freq.alpha == 0).all()


def test_accelerate_trains_and_resumes(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")

    def prepared():
        model = lerope.convert(make())
        return accelerator.prepare(model, adam(model))

    def steps(model, optimizer, seeds):
        for seed in seeds:
            optimizer.zero_grad()
            x = tokens(seed=seed)
            accelerator.backward(model(input_ids=x, labels=x).loss)
            optimizer.step()

    model, optimizer = prepared()
    steps(model, optimizer, (1, 2))
    accelerator.save_state(tmp_path / "state")
    steps(model, optimizer, (3,))
    expected = rotary_of(model).inv_freq.alpha.detach().clone()
    assert expected.dtype == torch.float32
    assert expected.abs().min() > 0
    accelerator.free_memory()
    again, optimizer = prepared()
    accelerator.load_state(tmp_path / "state")
    steps(again, optimizer, (3,))
    assert torch.equal(rotary_of(again).inv_freq.alpha, expected)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
