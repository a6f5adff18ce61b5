"""Converted models saved and loaded: bit for bit by lerope, as the same function by transformers, whole after kills."""

import copy
import io
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    modeling_utils,
)

import lerope
from lerope.interop import huggingface
from lerope.interop.huggingface import rotary_of
from tests.interop.toys import (
    FAMILIES,
    SCALINGS,
    SHAPE,
    adam,
    logits,
    make,
    scaled,
    shake,
    tokens,
    train,
)


@pytest.mark.parametrize("case", [*FAMILIES, "linear", "direct"])
def test_save_load_continue_is_bitwise(case, tmp_path):
    family = case if case in FAMILIES else "llama"
    encoding = "lerope" if case in FAMILIES else f"lerope,parametrization={case}"
    model = lerope.convert(make(family), encoding)
    optimizer = adam(model)
    train(model, optimizer, (1, 2))
    model.save_pretrained(tmp_path)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    train(model, optimizer, (3, 4))

    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in model.named_parameters()]
    resumed = adam(again)
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    train(again, resumed, (3, 4))
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
    for one, other in zip(rotary_of(model).encodings.values(), rotary_of(again).encodings.values(), strict=True):
        assert torch.equal(one.theta, other.theta)
        assert one.parametrization == other.parametrization == ("log" if case in FAMILIES else case)


PLAIN = """
import json, sys, torch, logging
records = []
class Keep(logging.Handler):
    def emit(self, record): records.append(record.getMessage())
import transformers
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").addHandler(Keep(logging.WARNING))
for folder in sys.argv[1:]:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    x = torch.load(folder + "/tokens.pt")
    with torch.no_grad():
        torch.save(model(x).logits, folder + "/logits.pt")
    torch.save(model.generate(x[:1, :8], max_new_tokens=12, do_sample=False), folder + "/generated.pt")
    print(json.dumps({"info": {k: sorted(map(str, v)) for k, v in info.items()}, "class": type(model).__name__}))
assert "lerope" not in sys.modules
print(json.dumps([r for r in records if "xIELU" not in r and "friendly reminder" not in r]))
"""


def test_plain_transformers_loads_the_same_function(tmp_path):
    """In a process that never imports lerope, without a warning, beyond the original length too."""
    models = {family: lerope.convert(make(family)) for family in FAMILIES}
    models["llama3"] = lerope.convert(scaled("llama3"))
    models["proportional"] = lerope.convert(scaled("proportional"))
    models["long"] = lerope.convert(make(max_position_embeddings=16))
    x = tokens()
    for name, model in models.items():
        shake(model)
        model.save_pretrained(tmp_path / name)
        torch.save(x, tmp_path / name / "tokens.pt")
    folders = [str(tmp_path / name) for name in models]
    run = subprocess.run([sys.executable, "-c", PLAIN, *folders], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *infos, records = map(json.loads, run.stdout.splitlines())
    assert records == []
    for (name, model), found in zip(models.items(), infos, strict=True):
        assert not any(found["info"].values()), (name, found)
        assert found["class"] == type(model).__name__
        expected = logits(model, x)
        loaded = torch.load(tmp_path / name / "logits.pt")
        torch.testing.assert_close(loaded, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item(), msg=name)
        fresh = logits(scaled(name) if name in SCALINGS else make(name if name in FAMILIES else "llama"), x)
        assert (fresh - expected).abs().max() > 1e-2 * expected.abs().max(), f"{name}: the frequencies do not matter"
        generated = torch.load(tmp_path / name / "generated.pt")
        assert torch.equal(generated, model.generate(x[:1, :8], max_new_tokens=12, do_sample=False)), name


def test_a_language_model_inside_another_model(tmp_path):
    text = {**SHAPE, **FAMILIES["gemma3"][1]}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14})
    model = Gemma3ForConditionalGeneration(config).eval()
    before = logits(model)
    assert torch.equal(logits(lerope.convert(model)), before)
    shake(model)
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert "lerope" in content["text_config"]
    assert "rope_parameters" not in content
    plain, info = Gemma3ForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-5)
    assert torch.equal(logits(lerope.convert(plain)), logits(model))
    part, x = model.model.language_model, tokens()
    part.save_pretrained(tmp_path / "part")
    with torch.no_grad():
        found = AutoModel.from_pretrained(tmp_path / "part")(x).last_hidden_state
        torch.testing.assert_close(found, part(x).last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_part_of_a_converted_model_saves_its_frequencies(family, tmp_path):
    model = lerope.convert(make(family))
    shake(model)
    part, x = model.model, tokens()
    with torch.no_grad():
        expected = part(x).last_hidden_state
        part.save_pretrained(tmp_path)
        plain, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values())
        torch.testing.assert_close(plain(x).last_hidden_state, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(lerope.convert(plain)(x).last_hidden_state, expected)
    assert type(lerope.unconvert(model).model) is type(plain).plain


def test_attention_factor_goes_with_the_folder(tmp_path):
    model = lerope.convert(scaled("yarn"))
    shake(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-5)
    assert torch.equal(logits(lerope.convert(loaded)), logits(model))


def test_saved_bfloat16_loses_no_digit_of_the_frequencies(tmp_path):
    with pytest.warns(UserWarning, match="a cast to torch.bfloat16 has rounded"):
        lerope.convert(make().to(torch.bfloat16))
    model = lerope.convert(make("qwen3")).to(torch.bfloat16)
    shake(model)
    model.save_pretrained(tmp_path)
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert again.dtype == torch.bfloat16
    assert torch.equal(rotary_of(again).inv_freq.alpha, rotary_of(model).inv_freq.alpha)
    assert torch.equal(logits(again), logits(model))


class Killed(BaseException):
    """What no code expects."""


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("at", range(6))
def test_a_save_over_a_good_folder_that_is_cut_short(family, at, tmp_path, monkeypatch):
    """Whatever is killed, transformers reads the old model, the new one or nothing, and never another function."""
    model = lerope.convert(make(family))
    shake(model)
    model.save_pretrained(tmp_path / "folder")
    old = logits(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    calls = []

    def counted(original):
        def call(*args, **kwargs):
            calls.append(original)
            if len(calls) == at + 1:
                raise Killed
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("transformers.modeling_utils.safe_save_file", counted(modeling_utils.safe_save_file))
        patch.setattr("lerope.interop.huggingface.longrope_config", counted(huggingface.longrope_config))
        patch.setattr("pathlib.Path.replace", counted(Path.replace))
        try:
            model.save_pretrained(tmp_path / "folder")
        except Killed:
            pass
        else:
            assert at == len(calls) == 5  # weights, config, and the places of three files
    if at in (2, 3, 4):  # between the first file and the last
        with pytest.raises(ValueError, match=r"config\.json"):
            AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
        return
    found, new = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "folder")), logits(model)
    # Frequencies come back to a rounding of float32, which these large weights amplify.
    torch.testing.assert_close(found, new if at == 5 else old, rtol=1e-4, atol=1e-4 * new.abs().max().item())
    assert (new - old).abs().max() > 1e-2 * new.abs().max()


def test_a_save_in_parts_over_a_whole_one_and_back(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    models = [lerope.convert(make(seed=seed)) for seed in (1, 2, 3)]
    for model, size in zip(models, ("1GB", "40KB", "1GB"), strict=True):
        model.save_pretrained(tmp_path, max_shard_size=size)
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).lm_head.weight, model.lm_head.weight), size
        assert ((tmp_path / "model.safetensors").is_file(), size) in ((True, "1GB"), (False, "40KB"))
    names = {"config.json", "generation_config.json", "model.safetensors", "notes.txt"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_checkpoint_of_weights_alone_carries_the_frequencies(tmp_path):
    """What trainers do to resume: convert again, then load the weights of a folder."""
    from safetensors.torch import load_file

    model = lerope.convert(make())
    shake(model)
    model.save_pretrained(tmp_path)
    again = lerope.convert(make(seed=5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = again.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert not found.unexpected_keys
    assert torch.equal(rotary_of(again).inv_freq.alpha, rotary_of(model).inv_freq.alpha)
    assert torch.equal(logits(again), logits(model))


def test_frequencies_that_no_checkpoint_key_can_carry_are_missed_aloud(tmp_path):
    from safetensors.torch import load_file

    model = lerope.convert(make("gemma3"))
    shake(model)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert not any("rotary" in name for name in weights)
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path))
    for other in (lerope.convert(make("gemma3")), again):
        with pytest.warns(UserWarning, match="hold no learned frequencies, so the model keeps those it has"):
            other.load_state_dict(weights, strict=False)
    assert torch.equal(logits(again), logits(model))


def test_copy_and_pickle_keep_the_class():
    model = lerope.convert(make())
    shake(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(other) is type(model)
        assert torch.equal(logits(other), logits(model))
        assert rotary_of(other).inv_freq.alpha is not rotary_of(model).inv_freq.alpha
    assert type(model).__name__ == "LlamaForCausalLM"
    assert isinstance(model, type(make()))
