"""The model on a CUDA device: attention backends and fused kernels agree with plain torch, in values and gradients."""

import pytest
import torch

import lerope
from lerope.model import attention
from lerope.model.attention import DocumentMask
from lerope.model.config import ModelConfig
from lerope.model.init import init_weights
from lerope.model.loss import Head
from lerope.model.transformer import Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CONFIG = ModelConfig(num_layers=2, num_heads=4, head_dim=64, vocab_size=500)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(500, (3, 1024), generator=generator)
    starts = torch.rand(3, 1024, generator=generator) < 0.01
    starts[:, 0] = True
    ids = starts.cumsum(1)
    index = torch.arange(1024).expand(3, -1)
    positions = index - torch.where(starts, index, 0).cummax(1).values
    return tokens.cuda(), positions.cuda(), ids.cuda()


def test_flex_equals_the_dense_mask():
    model = Transformer(CONFIG, lerope.LeRoPE(64)).cuda()
    init_weights(model, 0)
    tokens, positions, ids = batch()
    results = {}
    for backend in ("sdpa", "flex"):
        model.zero_grad()
        logits = model(tokens, positions, ids, backend=backend)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        results[backend] = [logits.detach()] + [p.grad.clone() for p in model.parameters()]
    for dense, flex in zip(results["sdpa"], results["flex"], strict=True):
        torch.testing.assert_close(flex, dense, rtol=0, atol=3e-3 * dense.abs().max().item())


def test_init_is_that_of_the_cpu():
    gpu, cpu = Transformer(CONFIG, lerope.LeRoPE(64)).cuda(), Transformer(CONFIG, lerope.LeRoPE(64))
    init_weights(gpu, 3)
    init_weights(cpu, 3)
    for a, b in zip(gpu.parameters(), cpu.parameters(), strict=True):
        assert torch.equal(a.cpu(), b)


def documents(kind: str) -> torch.Tensor:
    """(3, 1024): documents as in a corpus, tiny ones, rows of one document."""
    generator = torch.Generator().manual_seed(1)
    share = {"real": 0.01, "tiny": 0.5, "whole rows": 0.0}[kind]
    return (torch.rand(3, 1024, generator=generator) < share).cumsum(1).cuda()


@pytest.mark.parametrize("kind", ["real", "tiny", "whole rows"])
@pytest.mark.parametrize("backend", ["flex", "varlen", "cudnn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("known", [True, False])
def test_backends_equal_the_dense_mask(backend, kind, dtype, known):
    """In values and gradients, no further from float64 than twice what dense attention in 16 bits is."""
    reason = attention.obstacle(backend, torch.device("cuda"), dtype)
    if backend == "flex" and (known or dtype == torch.float16):
        reason = "flex counts no documents, and takes seconds to compile for another dtype"
    if reason is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    ids = documents(kind)
    num_documents = int((ids[:, 1:] != ids[:, :-1]).sum()) + len(ids)
    qkv = torch.randn(3, 1024, 3, 4, 64, device="cuda").to(dtype)
    weight = torch.randn(3, 1024, 4, 64, device="cuda").to(dtype)

    def results(mask, qkv, weight):
        leaf = qkv.detach().requires_grad_()
        out = mask.attend(*leaf.unbind(2))
        return [out, *torch.autograd.grad(out, leaf, weight)]

    dense = DocumentMask(ids, "sdpa")
    exact = results(dense, qkv.double(), weight.double())
    plain = results(dense, qkv, weight)
    got = results(DocumentMask(ids, backend, num_documents + 30 if known else None), qkv, weight)
    for a, b, c in zip(got, plain, exact, strict=True):
        assert not a.isnan().any()
        ours, theirs = ((t.double() - c).norm() / c.norm() for t in (a, b))
        assert ours < 2 * theirs + torch.finfo(dtype).eps / 2, (float(ours), float(theirs))


@pytest.mark.parametrize("kind", ["real", "tiny", "whole rows"])
@pytest.mark.parametrize("length", [1024, 1000, 100])
def test_the_block_mask_shows_what_create_block_mask_shows(kind, length):
    """Made without a look at pairs of tokens; every visible pair lies in one of its blocks, full blocks are full."""
    from torch.nn.attention.flex_attention import create_block_mask

    ids = documents(kind)[:, :length]
    mask = DocumentMask(ids, "flex").block
    theirs = create_block_mask(mask.mask_mod, len(ids), None, length, length, device="cuda", BLOCK_SIZE=128)
    assert torch.equal(mask.to_dense().bool(), theirs.to_dense().bool())


def model_of(kernel: str) -> Transformer:
    model = Transformer(CONFIG, lerope.LeRoPE(64)).cuda()
    init_weights(model, 0)
    model.use_kernel(kernel)
    return model


@pytest.mark.parametrize("backend", ["sdpa", "flex", "varlen", "cudnn"])
def test_a_model_with_fused_kernels_is_as_close_to_float32_as_one_without(backend):
    """Loss and gradients in bf16 against the reference in float32: errors of the same size, as roundings differ."""
    if attention.obstacle(backend, torch.device("cuda"), torch.bfloat16) is not None:
        pytest.skip("cannot run here")
    tokens, positions, ids = batch()
    centres = torch.full_like(positions, 50)

    def results(kernel, backend, autocast):
        model = model_of(kernel)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(tokens, positions, ids, tokens, centres, backend)
        (loss / tokens.numel()).backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    exact = results("reference", "sdpa", False)
    plain, fused = results("reference", "sdpa", True), results("auto", backend, True)
    for a, b, c in zip(fused, plain, exact, strict=True):
        ours, theirs = ((t.double() - c.double()).norm() / c.double().norm() for t in (a, b))
        assert ours < 2 * theirs + 3e-3, (float(ours), float(theirs))


@pytest.mark.parametrize("z_weight", [0.0, 1e-3])
@pytest.mark.parametrize("vocab_size", [500, 50_257])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_head_with_its_kernel_equals_the_head_without(vocab_size, z_weight, precision):
    torch.manual_seed(0)
    head = Head(128, vocab_size).cuda()
    x = torch.randn(2, 300, 128, device="cuda")
    targets = torch.randint(-1, vocab_size, (2, 300), device="cuda")
    results = []
    for fused in (True, False):
        head.fused, head.weight.grad = fused, None
        leaf = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == torch.bfloat16):
            total = head(leaf, targets, z_weight)
        (total / 600).backward()
        results.append((total.detach(), leaf.grad, head.weight.grad))
    limit = 3e-3 if precision == torch.bfloat16 else 2e-5
    for got, want in zip(*results, strict=True):
        assert (got - want).double().norm() < limit * want.double().norm()
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-6, atol=0)
