"""The fused kernel in converted models, in Triton's interpreter, against the model's own formula in float64."""

import copy
import inspect
import sys

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import lerope
from lerope.interop import fused
from lerope.interop.huggingface import rotary_of
from lerope.rotary.optim import frequency_parameters
from tests.interop.toys import EVERY, make, make_any, scaled, shake, tokens
from tests.ranks import run_ranks

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("_rounds_as_a_gpu")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Grouped queries, QK-norm, kinds of layers, a part of each head, interleaved pairs, float32 tables.
QUICK = ("llama", "qwen3", "gemma3", "phi3", "cohere")
# Layers of these give cosines and sines to functions of their own, or turn along several axes.
EAGER = ("deepseek_v2", "deepseek_v3", "llama4_text", "qwen3_5_text")


@pytest.fixture
def turns(monkeypatch):
    """How often layers turned by the fused kernel."""
    seen = []
    original = fused.Turn.__call__

    def call(self, q, k, heads_first):
        seen.append(self.rotation.choice(*(x.transpose(1, 2) if heads_first else x for x in (q, k))).kernel)
        return original(self, q, k, heads_first)

    monkeypatch.setattr(fused.Turn, "__call__", call)
    return seen


def converted(model, kernel="triton"):
    lerope.convert(model, kernel=kernel)
    shake(model)
    return model.to(DEVICE)


def pair(build):
    """The same model by the fused kernel in float32, and by its own formula in float64."""
    model, reference = converted(build()), converted(build(), "reference").double()
    for one in (model, reference):
        one.set_experts_implementation("eager")  # others take no float64
    return model, reference


def check(model, reference, x, seen, **inputs):
    """Logits and all gradients agree to float32, with layers that turn by the kernel."""
    del seen[:]
    x = x.to(DEVICE)
    found, expected = (m(x, labels=x, **inputs) for m in (model, reference))
    assert seen
    assert set(seen) == {"triton"}
    scale = expected.logits.abs().max().item()
    torch.testing.assert_close(found.logits.double(), expected.logits, rtol=0, atol=2e-5 * scale)
    found.loss.backward()
    expected.loss.backward()
    assert frequency_parameters(model)
    largest = max(p.grad.abs().max().item() for p in reference.parameters() if p.grad is not None)
    for (name, one), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None, name
            continue
        # Gradients of frequencies are what is left of queries' and keys' turns, which nearly cancel.
        atol = (1e-3 if "rotary" in name else 1e-4) * other.grad.abs().max().item()
        torch.testing.assert_close(one.grad.double(), other.grad.double(), rtol=0, atol=atol + 1e-7 * largest, msg=name)
    for parameter in frequency_parameters(model).values():
        assert parameter.grad.norm() > 0


@pytest.mark.parametrize(
    "family", [family if family in QUICK else pytest.param(family, marks=pytest.mark.slow) for family in sorted(EVERY)]
)
def test_every_family(family, turns):
    model, reference = pair(lambda: make_any(family))
    modeling = rotary_of(model).arrangement.modeling
    assert (modeling is None) == (family in EAGER)
    if modeling is not None:
        check(model, reference, tokens(2, 24), turns)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_frequencies_alone_learn(family, turns):
    """All weights held still: in the first layer neither queries nor keys have a gradient, the frequencies still do."""
    model, reference = pair(lambda: make_any(family))
    for one in (model, reference):
        one.requires_grad_(False)
        for module in one.modules():
            if isinstance(module, lerope.LeRoPE):
                module.requires_grad_(True)
    check(model, reference, tokens(2, 24), turns)
    assert [name for name, p in model.named_parameters() if p.grad is not None] == list(frequency_parameters(model))


@pytest.mark.parametrize(
    "family", ["qwen3", "gemma3", *(pytest.param(f, marks=pytest.mark.slow) for f in ("apertus", "qwen3_next"))]
)
def test_norm_and_rotation_are_one_launch(family, turns, monkeypatch):
    launches = []
    original = lerope.Rotation.after_gains

    def counted(self, *args):
        found = original(self, *args)
        launches.append(found is not None)
        return found

    monkeypatch.setattr(lerope.Rotation, "after_gains", counted)

    def build():
        model = make_any(family)
        torch.manual_seed(3)
        for name, parameter in model.named_parameters():
            if "_norm.weight" in name:
                torch.nn.init.normal_(parameter, 0.7, 0.3)
        return model

    model, reference = pair(build)
    check(model, reference, tokens(2, 20), turns)
    assert launches == [True] * len(turns)
    del launches[:]
    with torch.no_grad():
        lerope.convert(build())(tokens())  # on the CPU the norms are as they were
    assert not launches


def test_head_dim_128_and_a_scale(turns):
    shape = {"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 1}
    model, reference = pair(lambda: scaled("yarn", **shape))
    assert rotary_of(model).scaling["shared"] != 1.0
    check(model, reference, tokens(2, 20), turns)


def test_rows_with_positions_of_their_own(turns):
    model, reference = pair(lambda: make("llama"))
    positions = torch.stack((torch.arange(24), torch.cat((torch.arange(9), torch.arange(15))))).to(DEVICE)
    check(model, reference, tokens(2, 24), turns, position_ids=positions)


def test_bfloat16_is_nearer_to_the_truth_than_the_models_own_formula(turns):
    x = tokens(2, 200).to(DEVICE)
    exact = converted(make(), "reference").bfloat16().double()
    models = {kernel: converted(make(), kernel).bfloat16() for kernel in ("triton", "reference")}
    with torch.no_grad():
        errors = {kernel: (m(x).logits - exact(x).logits).abs().mean().item() for kernel, m in models.items()}
    assert turns
    assert errors["triton"] < errors["reference"]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("left", [0, 5])
def test_generation_with_a_cache_and_padding(family, left, turns):
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    model, reference = pair(lambda: make(family))
    x = tokens(2, 12).to(DEVICE)
    mask = torch.ones_like(x)
    mask[0, :left] = 0
    found = model.generate(x, attention_mask=mask, **options)
    assert len(turns) == 2 * 4  # layers and passes
    assert torch.equal(found, reference.generate(x, attention_mask=mask, **options))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant, turns):
    model, reference = pair(lambda: make("gemma3"))
    model.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
    check(model, reference, tokens(2, 16), turns, use_cache=False)
    assert len(turns) == 4  # two layers, twice


@pytest.mark.parametrize("family", ["qwen3", pytest.param("llama", marks=pytest.mark.slow)])
def test_compiles_without_a_graph_break(family):
    model, reference = pair(lambda: make(family, num_hidden_layers=1))  # nothing has run before
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = tokens(2, 16).to(DEVICE)
    compiled(x, labels=x, use_cache=False).loss.backward()
    reference(x, labels=x).loss.backward()
    expected = rotary_of(reference).inv_freq.alpha.grad
    torch.testing.assert_close(
        rotary_of(model).inv_freq.alpha.grad, expected.float(), rtol=0, atol=1e-3 * expected.abs().max().item()
    )


def test_only_where_it_can_run_and_only_if_wanted(turns):
    for kernel in ("auto", "reference"):
        model = lerope.convert(make(), kernel=kernel)  # on the CPU
        model(tokens())
        assert not turns
        assert isinstance(rotary_of(model)(torch.zeros(1, 1, 1), torch.arange(3)[None])[0], torch.Tensor)
    with pytest.raises(ValueError, match="kernel must be one of auto, triton, reference; got 'fast'"):
        lerope.convert(make(), kernel="fast")


def test_models_beside_it_stay_as_they_are(turns):
    plain, x = make().to(DEVICE), tokens().to(DEVICE)
    with torch.no_grad():
        before = plain(x).logits
        converted(make())(x)
        del turns[:]
        assert torch.equal(plain(x).logits, before)
    assert not turns


def test_patches_of_others_do_not_matter(turns, monkeypatch):
    """Liger's rotation gives no gradient to frequencies; it may come before the conversion or after it."""
    module = sys.modules[type(make()).__module__]

    def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
        raise AssertionError

    liger_rotary_pos_emb.__module__ = "liger_kernel.transformers.rope"
    reference = converted(make(), "reference").double()
    original = module.apply_rotary_pos_emb
    for before in (True, False):
        monkeypatch.setattr(module, "apply_rotary_pos_emb", liger_rotary_pos_emb if before else original)
        model = converted(make())
        monkeypatch.setattr(module, "apply_rotary_pos_emb", original if before else liger_rotary_pos_emb)
        x = tokens(2, 16).to(DEVICE)
        model(x, labels=x).loss.backward()
        assert set(turns) == {"triton"}
        monkeypatch.setattr(module, "apply_rotary_pos_emb", original)
        reference.zero_grad()
        reference(x, labels=x).loss.backward()
        expected = rotary_of(reference).inv_freq.alpha.grad.float()
        found = rotary_of(model).inv_freq.alpha.grad
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * expected.abs().max().item())


def test_a_function_that_the_package_kernels_made_a_module(turns, monkeypatch):
    """Where `kernels` is installed transformers' function is an nn.Module with the function as its forward."""
    module = sys.modules[type(make()).__module__]
    original = inspect.unwrap(module.apply_rotary_pos_emb)

    class Func(torch.nn.Module):
        def forward(self, *args, **kwargs):
            return original(*args, **kwargs)

    Func.forward.__signature__ = inspect.signature(lambda self, q, k, cos, sin, unsqueeze_dim=1: None)
    monkeypatch.setattr(module, "apply_rotary_pos_emb", Func())
    for _ in range(2):  # the second time it is wrapped already
        model, reference = pair(lambda: make("llama"))
        check(model, reference, tokens(2, 16), turns)


def test_copies_and_other_devices(turns):
    model = converted(make("qwen3"))
    x = tokens(1, 8).to(DEVICE)
    other = copy.deepcopy(model)
    assert torch.equal(other(x).logits, model(x).logits)
    torch.nn.init.zeros_(other.model.layers[0].self_attn.q_norm.weight)
    assert not torch.equal(other(x).logits, model(x).logits)
    turn, _ = rotary_of(model)(torch.zeros(1, 1, 1, device=DEVICE), torch.arange(3, device=DEVICE)[None])
    assert turn.to(torch.bfloat16) is turn
    moved = turn.to(torch.device("meta"), non_blocking=True).rotation
    assert moved.cos.is_meta
    assert moved.frequencies.requires_grad
    assert not turn.rotation.cos.is_meta


def check_ranks(rank):
    batch = tokens(4, 12)
    part = batch[2 * rank : 2 * rank + 2]
    reference = converted(make(), "reference").cpu()
    reference(batch, labels=batch).loss.backward()
    expected = rotary_of(reference).inv_freq.alpha.grad
    model = converted(make()).cpu()
    wrapped = DistributedDataParallel(model)
    wrapped(part, labels=part).loss.backward()
    alpha = rotary_of(wrapped).inv_freq.alpha
    torch.testing.assert_close(alpha.grad, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    model.zero_grad()
    fully_shard(rotary_of(model))
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    model(part, labels=part).loss.backward()
    found = rotary_of(model).inv_freq.alpha.grad.full_tensor()
    assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > 0.99  # the model is in bfloat16


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cpu", reason="the ranks are processes on the CPU")
def test_two_ranks(tmp_path):
    """DDP and FSDP2 give the gradient that one process gives for the whole batch."""
    run_ranks(check_ranks, tmp_path)
