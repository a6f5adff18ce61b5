"""torch.compile: one graph, no recompilation across lengths, the same numbers as eager."""

import itertools

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import lerope

LENGTHS = (5, 16, 33, 64, 100, 128, 200, 256, 300, 512)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(function, encoding, length, positions, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length)
    q = torch.randn(2, length, 4, 64, generator=generator).to(dtype).requires_grad_()
    k = torch.randn(2, length, 2, 64, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(2, length, 4, 64, generator=generator)
    encoding.alpha.grad = None
    out_q, out_k = function(q, k, positions(length))
    ((out_q * weight).sum() + out_k.pow(3).sum()).backward()
    return [t.detach() for t in (out_q, out_k, q.grad, k.grad, encoding.alpha.grad)]


POSITIONS = {"tensor": torch.arange, "integer": lambda length: 7, "packed": lambda n: torch.arange(n).remainder(17)}


@pytest.mark.parametrize(
    ("positions", "layout"),
    [
        ("packed", "half"),
        *(
            pytest.param(positions, layout, marks=pytest.mark.slow)
            for positions, layout in itertools.product(POSITIONS, ("half", "interleaved"))
            if (positions, layout) != ("packed", "half")
        ),
    ],
)
def test_one_graph_for_ten_lengths_equals_eager(positions, layout):
    encoding = lerope.LeRoPE(64, layout=layout)
    with torch.no_grad():
        encoding.alpha.copy_(torch.linspace(0.5, -1, 32))
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(encoding.forward, fullgraph=True, dynamic=True, backend=counter)
    for length in LENGTHS:
        eager = run(encoding, encoding, length, POSITIONS[positions])
        for got, want in zip(run(compiled, encoding, length, POSITIONS[positions]), eager, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=2e-6 * want.abs().max().item())
    assert counter.frame_count == 1


class Model(nn.Module):
    """Frequencies once per forward, every block compiled on its own, as the trainer does it."""

    def __init__(self):
        super().__init__()
        self.encoding = lerope.LeRoPE(16)
        self.blocks = nn.ModuleList(nn.Linear(32, 96) for _ in range(3))

    def block(self, i: int, x: torch.Tensor, rotation: lerope.Rotation) -> torch.Tensor:
        q, k, v = self.blocks[i](x).unflatten(-1, (3, 2, 16)).unbind(-3)
        q, k = rotation(q, k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)

    def forward(self, x: torch.Tensor, block=None) -> torch.Tensor:
        rotation = self.encoding.rotation(torch.arange(x.shape[1]))
        for i in range(3):
            x = (block or self.block)(i, x, rotation)
        return x


def test_a_rotation_crosses_the_border_of_compiled_blocks():
    model = Model()
    x = torch.randn(2, 24, 32)
    block = torch.compile(model.block, fullgraph=True)

    def gradients(**kwargs):
        model.zero_grad()
        model(x, **kwargs).square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    want, got = gradients(), gradients(block=block)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "encoding",
    [
        lerope.NoPE(64),
        lerope.LeRoPE(64, sharing="layer_head", num_layers=2, num_heads=2),
        *(
            pytest.param(encoding, marks=pytest.mark.slow)
            for encoding in (
                lerope.RoPE(64),
                lerope.PRoPE(64),
                lerope.FrozenRoPE(torch.rand(32)),
                lerope.LeRoPE(64, parametrization="direct"),
                lerope.RoPE(64, rotary_dim=32),
            )
        ),
    ],
    ids=repr,
)
def test_every_encoding_compiles_into_one_graph(encoding):
    compiled = torch.compile(encoding.forward, fullgraph=True, dynamic=True)
    q, k = torch.randn(2, 20, 4, 64), torch.randn(2, 20, 2, 64)
    for got, want in zip(compiled(q, k, torch.arange(20), 1), encoding(q, k, torch.arange(20), 1), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_bf16_compiled_equals_eager():
    """Up to the rounding of bf16, which a fused graph does at other places."""
    encoding = lerope.LeRoPE(64)
    compiled = torch.compile(encoding.forward, fullgraph=True, dynamic=True)
    results = [run(f, encoding, 300, torch.arange, torch.bfloat16) for f in (encoding, compiled)]
    for want, got in zip(*results, strict=True):
        assert got.dtype == want.dtype
        assert (got - want).float().norm() < 2**-8 * want.float().norm()


def test_the_functional_form_compiles_by_its_public_name():
    compiled = torch.compile(lambda x, f: lerope.rotate(x, 3, f, "interleaved"), fullgraph=True, dynamic=True)
    x, frequencies = torch.randn(9, 2, 16), torch.rand(8)
    torch.testing.assert_close(compiled(x, frequencies), lerope.rotate(x, 3, frequencies, "interleaved"))
