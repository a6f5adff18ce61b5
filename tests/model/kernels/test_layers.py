"""Fast modules in the place of plain ones: who is replaced, what stays, and when they step aside."""

import copy
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lerope
from lerope.core.ladder import ModelConfig
from lerope.model.attention import DocumentMask
from lerope.model.init import init_weights
from lerope.model.kernels import layers
from lerope.model.kernels.layers import FAST
from lerope.model.kernels.packed_attention import Packed
from lerope.model.transformer import RMSNorm, Transformer
from lerope.rotary.dispatch import triton_obstacle
from tests.model.kernels.test_packed_attention import Played

CONFIG = ModelConfig(num_layers=3, num_heads=2, head_dim=16, vocab_size=50)
TOKENS = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))
IDS = torch.arange(20).ge(7).long().expand(2, -1)


def make(kernel="auto"):
    model = Transformer(CONFIG, lerope.LeRoPE(16))
    init_weights(model, 0)
    model.use_kernel(kernel)
    return model


def results(model, **how):
    total = model(TOKENS, document_ids=IDS, targets=TOKENS, **how)
    return [total.detach(), *torch.autograd.grad(total, list(model.parameters()))]


def equal(got, want):
    return all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def types(model):
    return {type(module) for module in model.modules()}


def test_a_model_is_fast_from_the_start_and_then_what_it_is_told_to_be():
    model = Transformer(CONFIG, lerope.RoPE(16))
    names, parameters = list(model.state_dict()), list(model.parameters())
    for kernel in (None, "reference", "auto", "reference", "triton"):
        if kernel is not None:
            model.use_kernel(kernel)
        assert model.encoding.kernel == (kernel or "auto")
        there, gone = (FAST, FAST.values()) if kernel == "reference" else (FAST.values(), FAST)
        assert set(there) <= types(model)
        assert not set(gone) & types(model)
        assert list(model.state_dict()) == names
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_what_an_encoding_was_told_holds_for_its_model():
    encoding = lerope.RoPE(16)
    encoding.kernel = "reference"
    model = Transformer(CONFIG, encoding)
    assert encoding.kernel == "reference"
    assert not set(FAST.values()) & types(model)


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_copies_compute_as_their_model_does(kernel):
    model = make(kernel)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert types(other) == types(model)
        assert equal(results(other), results(model))


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_without_kernels_both_are_one_bit_by_bit(autocast, recompute):
    found = []
    for kernel in ("auto", "reference"):
        model = make(kernel)
        model.recompute = recompute
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found.append(results(model))
    assert equal(*found)


def sharded(module):
    """As FSDP2 does it: another class for the module at hand."""
    module.__class__ = type(f"FSDP{type(module).__name__}", (type(module),), {"unshard": lambda self: None})


def test_a_sharded_model_keeps_its_kernel_and_says_so():
    for kernel, other in (("auto", "reference"), ("reference", "auto")):
        model = make(kernel)
        for module in (*model.blocks, model.head):
            sharded(module)
        model.use_kernel(kernel)
        with pytest.raises(ValueError, match=r"^use_kernel must come before FSDP2 .*; got a FSDP(Fast)?Block\.$"):
            model.use_kernel(other)


class Doubled(nn.Module):
    """An adapter around a norm, which takes what the norm takes."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return 2 * self.layer(x)


CHANGES = {
    "an adapter": lambda block, name: setattr(block, name, Doubled(getattr(block, name))),
    "a hook": lambda block, name: getattr(block, name).register_forward_hook(lambda module, args, out: 2 * out),
    "a hook before": lambda block, name: getattr(block, name).register_forward_pre_hook(
        lambda module, args: 2 * args[0]
    ),
    "another class": lambda block, name: setattr(block, name, RMSNorm(32, eps=0.5)),
}


@pytest.mark.parametrize("name", ["attention_norm", "mlp_norm"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_block_with_another_norm_does_what_the_plain_one_does(change, name):
    found = []
    for kernel in ("auto", "reference"):
        model = make(kernel)
        CHANGES[change](model.blocks[1], name)
        found.append(results(model))
    assert equal(*found)
    assert not equal(found[0][:1], results(make())[:1])


def test_an_adapter_around_the_last_norm():
    found = []
    for kernel in ("auto", "reference"):
        model = make(kernel)
        model.norm = Doubled(model.norm)
        found.append(results(model))
    assert equal(*found)


class Seen(TorchDispatchMode):
    """Which operators of lerope are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "lerope":
            self.names.append(str(func).split(".")[1])
        return func(*args, **kwargs or {})


@pytest.fixture
def interpreted(monkeypatch):
    """Triton's kernels wherever a module asks for them, on a CPU."""
    pytest.importorskip("triton")
    monkeypatch.setattr(layers, "triton_obstacle", lambda *tensors: triton_obstacle(*tensors, interpreted=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for Triton's interpreter")
@pytest.mark.usefixtures("_rounds_as_a_gpu")
@pytest.mark.parametrize("backend", ["sdpa", "flash4"])
def test_every_addition_is_one_kernel_with_its_norm_and_flash_attention_4_with_its_rotation(
    interpreted, monkeypatch, backend
):
    """In bf16: one operator each, and the loss is that of plain torch up to roundings."""
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", Played())
    mask = DocumentMask(IDS, "sdpa")
    if backend == "flash4":
        mask.backend, mask.packed = "flash4", Packed(IDS, 4)
    model = make("triton")
    with torch.autocast("cpu", torch.bfloat16), Seen() as seen:
        total = model(TOKENS, document_ids=mask, targets=TOKENS)
    attention = "fused_attention" if backend == "flash4" else "rotary"
    assert seen.names == [*["add_norm", attention, "add_norm", "gelu"] * 3, "add_norm"]
    with Seen() as seen:
        total.backward()
    back = ["add_norm_backward", "gelu_backward", "add_norm_backward", f"{attention}_backward"]
    assert seen.names == [*back * 3, "add_norm_backward"]
    assert float(total.detach()) == pytest.approx(float(results(make("reference"))[0]), rel=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for Triton's interpreter")
@pytest.mark.usefixtures("_rounds_as_a_gpu")
def test_blocks_with_kernels_compile_without_a_break(interpreted):
    torch._dynamo.reset()
    model = make("triton")
    want = results(model)
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    for got, each in zip(results(model), want, strict=True):
        torch.testing.assert_close(got, each, rtol=1e-5, atol=1e-5 * each.abs().max().item())
