"""Converted models: exactly the model they were, learning by the optimizer's rule alone, saved and continued."""

import copy
import io
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DINOv3ViTConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPTJConfig,
    Qwen2VLForConditionalGeneration,
    modeling_utils,
)

import lerope
from lerope.interop import huggingface
from lerope.interop.huggingface import rotary_of
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import EVERY, FAMILIES, MAIN, SCALINGS, SHAPE, gpt2, make, make_any, scaled, shake, tokens
from tests.made_presets import save_preset
from tests.ranks import run_ranks

OTHERS = sorted(set(FAMILIES) - set(MAIN))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def logits(model, x=None):
    with torch.no_grad():
        return model(tokens() if x is None else x).logits


def gradients(model, **kwargs):
    """The gradients of the frequencies after a loss on fixed tokens."""
    model.zero_grad()
    x = tokens()
    model(x, labels=x, **kwargs).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in frequency_parameters(model).items()}


def plain_rotary(model, alphas):
    """Turns a plain model by theta * exp(alpha) with the gradient that autograd gives, written here once more."""
    module = model.model.rotary_emb

    def forward(x, position_ids, layer_type=None):
        prefix = "" if layer_type is None else f"{layer_type}_"
        theta = getattr(module, f"{prefix}inv_freq") * alphas[layer_type or "shared"].exp()
        phases = position_ids[..., None].float() * theta
        phases = torch.cat((phases, phases), dim=-1)
        scale = getattr(module, f"{prefix}attention_scaling")
        return (phases.cos() * scale).to(x.dtype), (phases.sin() * scale).to(x.dtype)

    module.forward = forward


# 1. The function stays what it was.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:a cast to torch.bfloat16")
def test_logits_are_bit_identical(family, dtype):
    model = make(family).to(dtype)
    before = logits(model)
    assert lerope.convert(model) is model
    assert torch.equal(logits(model), before)
    shake(model)
    assert not torch.equal(logits(model), before)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(EVERY - FAMILIES.keys()))
def test_every_family_converts_learns_and_comes_back(family, tmp_path):
    model = make_any(family)
    before = logits(model)
    assert torch.equal(logits(lerope.convert(model)), before)
    shake(model)
    assert not torch.equal(logits(model), before)
    assert all(gradient.norm() > 0 for gradient in gradients(model).values())
    model.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-5)
    assert torch.equal(logits(lerope.convert(plain)), logits(model))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.filterwarnings("ignore:the model switches to long_factor")
def test_rope_scaling_is_where_it_starts(scaling):
    model = scaled(scaling)
    before = logits(model)
    lerope.convert(model)
    assert torch.equal(logits(model), before)
    if scaling in ("yarn", "longrope"):
        assert rotary_of(model).scaling["shared"] != 1.0
    shake(model)
    assert not torch.equal(logits(model), before)


def test_long_factors_are_said_to_be_left_behind():
    model = scaled("longrope")
    logits(model, tokens(1, 100))  # leaves the long frequencies in the module
    with pytest.warns(UserWarning, match="switches to long_factor beyond 64 positions"):
        lerope.convert(model)
    expected = 1 / (torch.tensor(SCALINGS["longrope"]["short_factor"]) * 10000.0 ** (torch.arange(0, 16, 2) / 16))
    torch.testing.assert_close(rotary_of(model).inv_freq.frequencies(), expected, rtol=2e-7, atol=0)


def test_one_set_per_kind_of_layer_and_one_for_all_otherwise():
    encodings = rotary_of(lerope.convert(make("gemma3"))).encodings
    assert set(encodings) == {"full_attention", "sliding_attention"}
    assert encodings["full_attention"].base == 1_000_000.0
    assert encodings["sliding_attention"].base == 10_000.0
    phi = rotary_of(lerope.convert(make("phi3"))).encodings["shared"]
    assert (phi.head_dim, phi.rotary_dim) == (16, 8)


def test_layers_of_a_kind_use_their_own_set():
    model = lerope.convert(make("gemma3"))
    before = logits(model)
    with torch.no_grad():
        rotary_of(model).encodings["full_attention"].alpha += 0.5
    moved = logits(model)
    with torch.no_grad():
        rotary_of(model).encodings["full_attention"].alpha -= 0.5
        rotary_of(model).encodings["sliding_attention"].alpha += 0.5
    assert not torch.equal(before, moved)
    assert not torch.equal(moved, logits(model))


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.bfloat16().float()])
def test_frequencies_stay_float32(cast):
    model = lerope.convert(make())
    shake(model)
    encoding = rotary_of(model).inv_freq
    before = encoding.alpha.detach().clone()
    model = cast(model)
    assert encoding.alpha.dtype == encoding.theta.dtype == encoding.frequencies().dtype == torch.float32
    assert torch.equal(encoding.alpha, before)
    cos, sin = rotary_of(model)(torch.zeros(1, 1, 1, dtype=model.dtype), torch.arange(9)[None])
    assert cos.dtype == sin.dtype == model.dtype


# 2. Learning.


@pytest.mark.parametrize("family", MAIN)
def test_gradients_are_those_of_autograd(family):
    model, plain = lerope.convert(make(family)), make(family)
    shake(model)
    encodings = rotary_of(model).encodings
    alphas = {kind: e.alpha.detach().clone().requires_grad_() for kind, e in encodings.items()}
    plain_rotary(plain, alphas)
    x = tokens()
    plain(x, labels=x).loss.backward()
    gradients(model)
    for kind, encoding in encodings.items():
        expected = alphas[kind].grad
        scale = expected.abs().max().item()
        torch.testing.assert_close(encoding.alpha.grad, expected, rtol=1e-3, atol=1e-5 * scale)
    for one, other in zip(model.parameters(), plain.parameters(), strict=False):
        assert one.shape == other.shape or one.ndim == 1
    assert lerope.check_gradients(model, x).keys() == frequency_parameters(model).keys()


@pytest.mark.parametrize("family", MAIN)
def test_a_step_is_adam_by_hand(family):
    model = lerope.convert(make(family))
    shake(model)
    lr, (b1, b2), eps = 1e-2, (0.9, 0.95), 1e-8
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=lr, weight_decay=0.1), betas=(b1, b2), eps=eps)
    frequencies = frequency_parameters(model)
    assert len(frequencies) == (2 if family == "gemma3" else 1)
    expected = {name: p.detach().double() for name, p in frequencies.items()}
    first = dict.fromkeys(frequencies, 0.0)
    second = dict.fromkeys(frequencies, 0.0)
    for step in (1, 2, 3):
        for name, gradient in gradients(model).items():
            g = gradient.double()
            assert g.norm() > 0
            first[name] = b1 * first[name] + (1 - b1) * g
            second[name] = b2 * second[name] + (1 - b2) * g * g
            change = (first[name] / (1 - b1**step)) / ((second[name] / (1 - b2**step)).sqrt() + eps)
            expected[name] = expected[name] - lr * change
        optimizer.step()
        for name, parameter in frequencies.items():
            torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=0, atol=1e-6)
            assert (parameter.detach().double() - expected[name] + lr).abs().min() > lr / 2  # it can fail


def test_a_forward_pass_alone_changes_nothing():
    model = lerope.convert(make())
    shake(model)
    before = rotary_of(model).inv_freq.alpha.detach().clone()
    gradients(model)
    logits(model)
    assert torch.equal(rotary_of(model).inv_freq.alpha, before)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(family, reentrant):
    model = lerope.convert(make(family)).train()
    shake(model)
    expected = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for name, gradient in gradients(model, use_cache=False).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
        assert gradient.norm() > 0


def test_compiles_without_a_graph_break():
    model = lerope.convert(make(num_hidden_layers=1))
    shake(model)
    expected, reference = gradients(model), logits(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = tokens()
    model.zero_grad()
    compiled(x, labels=x, use_cache=False).loss.backward()
    for name, parameter in frequency_parameters(model).items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logits(compiled), reference)


def test_kinds_of_layers_compile_too():
    rotary = rotary_of(lerope.convert(make("gemma3")))
    torch.compiler.reset()
    compiled = torch.compile(rotary, backend="aot_eager", fullgraph=True)
    for kind, encoding in rotary.encodings.items():
        inputs = torch.zeros(1, 1, 1), torch.arange(9)[None], kind
        sum(table.sum() for table in compiled(*inputs)).backward()
        expected, encoding.alpha.grad = encoding.alpha.grad, None
        sum(table.sum() for table in rotary(*inputs)).backward()
        torch.testing.assert_close(encoding.alpha.grad, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_generation_with_a_cache(family):
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    plain, x = make(family), tokens(2, 12)
    expected = plain.generate(x, **options)
    model = lerope.convert(plain)
    assert torch.equal(model.generate(x, **options), expected)
    shake(model, 1.0)
    with_cache = model.generate(x, **options)
    assert torch.equal(with_cache, model.generate(x, use_cache=False, **options))
    assert not torch.equal(with_cache, expected)
    for length in range(12, 24, 3):  # and by hand
        assert torch.equal(logits(model, with_cache[:, :length])[:, -1].argmax(-1), with_cache[:, length])


def check_ranks(rank):
    model = lerope.convert(make())
    shake(model)
    batch = tokens(4)
    expected = None
    if rank == 0:
        model(batch, labels=batch).loss.backward()
        expected = rotary_of(model).inv_freq.alpha.grad.clone()
        model.zero_grad()
    part = batch[2 * rank : 2 * rank + 2]
    wrapped = DistributedDataParallel(model)
    wrapped(part, labels=part).loss.backward()
    if expected is not None:
        torch.testing.assert_close(rotary_of(wrapped).inv_freq.alpha.grad, expected, rtol=1e-4, atol=1e-6)

    model.zero_grad()
    fully_shard(rotary_of(model))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    alpha = rotary_of(model).inv_freq.alpha
    assert alpha.dtype == torch.float32
    model(part, labels=part).loss.backward()
    gradient = alpha.grad.full_tensor()
    if expected is not None:
        assert torch.nn.functional.cosine_similarity(gradient, expected, dim=0) > 0.99  # the model is in bfloat16


@pytest.mark.slow
def test_two_ranks(tmp_path):
    """DDP and FSDP2 give the gradient that one process gives for the whole batch."""
    run_ranks(check_ranks, tmp_path)


# 3. Saving.


def train(model, optimizer, steps):
    for step in steps:
        x = tokens(seed=step)
        optimizer.zero_grad()
        model(x, labels=x).loss.backward()
        lerope.clip_grad_norm_(model, 1.0)
        optimizer.step()


def adam(model):
    return torch.optim.AdamW(lerope.param_groups(model, lr=1e-2, weight_decay=0.1))


@pytest.mark.parametrize("case", [*MAIN, *OTHERS, "linear", "direct"])
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


# 4. The other encodings.


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


# 5. What people put around models.


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


# 6. Bad input.


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
