"""Converted models: exactly the model they were, learning by the optimizer's rule alone."""

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

import lerope
from lerope.interop.huggingface import rotary_of
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import EVERY, FAMILIES, MAIN, SCALINGS, gradients, logits, make, make_any, scaled, shake, tokens
from tests.ranks import run_ranks


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
