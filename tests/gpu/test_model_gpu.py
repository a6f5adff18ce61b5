"""The model on a CUDA device: both attention backends agree, in values and gradients."""

import pytest
import torch

import lerope
from lerope.model.config import ModelConfig
from lerope.model.init import init_weights
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
