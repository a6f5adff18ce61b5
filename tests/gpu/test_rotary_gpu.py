"""The library on a CUDA device: the same numbers, no host synchronisation, capture in a CUDA graph."""

import pytest
import torch

import lerope
from tests.rotary.reference import rotated

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def encoding_on_gpu() -> lerope.LeRoPE:
    encoding = lerope.LeRoPE(64)
    with torch.no_grad():
        encoding.alpha.copy_(torch.linspace(0.5, -3, 32))
    return encoding.cuda()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_match_float64(dtype):
    torch.manual_seed(0)
    encoding = encoding_on_gpu().to(dtype)
    q = torch.randn(4, 256, 8, 64, device="cuda").to(dtype).requires_grad_()
    k = torch.randn(4, 256, 2, 64, device="cuda").to(dtype).requires_grad_()
    positions = torch.arange(256, device="cuda").remainder(100)
    weights = [torch.randn_like(t) for t in (q, k)]
    out = encoding(q, k, positions)
    sum((o * w).sum() for o, w in zip(out, weights, strict=True)).backward()

    alpha = encoding.alpha.detach().double().cpu().requires_grad_()
    frequencies = alpha.exp() * lerope.RoPE(64).frequencies().double()
    want = [rotated(t.detach().cpu(), positions.cpu(), frequencies) for t in (q, k)]
    sum((o * w.double().cpu()).sum() for o, w in zip(want, weights, strict=True)).backward()
    eps = torch.finfo(dtype).eps
    for got, expected in zip(out, want, strict=True):
        torch.testing.assert_close(got.double().cpu(), expected, rtol=2 * eps, atol=max(eps, 5e-5))
    error = (encoding.alpha.grad.double().cpu() - alpha.grad).norm() / alpha.grad.norm()
    assert error < (1e-5 if dtype == torch.float32 else 5e-3)


def test_tables_are_those_of_the_cpu():
    """Frequencies are bit-identical on every device; cos and sin differ by the devices' own rounding."""
    fixed, learned = lerope.RoPE(64), encoding_on_gpu()
    assert torch.equal(fixed.cuda().frequencies().cpu(), lerope.RoPE(64).frequencies())
    assert torch.equal(learned.frequencies().cpu(), learned.cpu().frequencies())
    positions = torch.tensor([0, 1, 2047, 131_072])
    gpu, cpu = lerope.RoPE(64).cuda().rotation(positions.cuda()), lerope.RoPE(64).rotation(positions)
    torch.testing.assert_close(gpu.cos.cpu(), cpu.cos, rtol=0, atol=2e-7)
    torch.testing.assert_close(gpu.sin.cpu(), cpu.sin, rtol=0, atol=2e-7)


def test_a_step_never_waits_for_the_device():
    encoding = encoding_on_gpu()
    q = torch.randn(2, 128, 4, 64, device="cuda", requires_grad=True)
    positions = torch.arange(128, device="cuda")
    encoding(q, q, positions)[0].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoding(q, q, positions)[0].sum().backward()
        encoding(q, None, 5)[0].sum().backward()
        lerope.clip_grad_norm_(encoding, 1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_gradients_are_the_same_every_time():
    encoding = encoding_on_gpu()
    q = torch.randn(8, 2048, 8, 64, device="cuda", dtype=torch.bfloat16)
    k, weight = torch.randn_like(q), torch.randn_like(q)

    def gradient() -> torch.Tensor:
        encoding.alpha.grad = None
        out_q, out_k = encoding(q, k, 0)
        ((out_q * weight).sum() + (out_k * out_k * weight).sum()).backward()
        return encoding.alpha.grad

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(3))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_compiled_equals_eager(layout):
    encoding = lerope.LeRoPE(64, layout=layout).cuda()
    compiled = torch.compile(encoding.forward, fullgraph=True, dynamic=True)
    for length in (64, 100, 513):
        q = torch.randn(2, length, 4, 64, device="cuda", requires_grad=True)
        results = []
        for function in (encoding, compiled):
            encoding.alpha.grad = q.grad = None
            out, _ = function(q, None, torch.arange(length, device="cuda"))
            out.pow(3).sum().backward()
            results.append([t.clone() for t in (out.detach(), q.grad, encoding.alpha.grad)])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=3e-6 * want.abs().max().item())


def test_inference_can_be_captured_in_a_graph():
    encoding = encoding_on_gpu()
    q = torch.randn(2, 1, 4, 64, device="cuda")
    offset = torch.tensor(3, device="cuda")
    with torch.no_grad():
        encoding(q, None, offset)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, _ = encoding(q, None, offset)
        offset.fill_(77)
        graph.replay()
        assert torch.equal(out, encoding(q, None, 77)[0])
