"""The library on a CUDA device: the same numbers, no host synchronisation, capture in a CUDA graph."""

import pytest
import torch

import lerope
from tests.rotary import test_triton as fused
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


# Query heads, key heads, head_dim, rotary_dim, sets of frequencies.
SHAPES = {
    "head_dim 32": (8, 8, 32, 32, 1),
    "head_dim 64": (8, 8, 64, 64, 1),
    "head_dim 80": (5, 5, 80, 80, 1),
    "head_dim 128, grouped": (32, 8, 128, 128, 1),
    "head_dim 256, grouped": (16, 2, 256, 256, 1),
    "many wide heads": (40, 40, 256, 256, 1),
    "partial": (6, 3, 96, 32, 1),
    "a quarter of 80": (8, 8, 80, 20, 1),
    "odd rest": (4, 2, 27, 12, 1),
    "sets": (8, 4, 64, 64, 4),
    "sets, partial, odd": (9, 3, 80, 40, 3),
}


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_fused_kernel_equals_the_formula(name, norm, dtype, layout):
    """Random numbers that are new in every run, memory full of NaN, tokens that no tile divides, packed positions."""
    seed = torch.seed() % 2**32
    case = fused.Case(SHAPES[name], norm, dtype, (3, 211), seed=seed)
    for length in (None, fused.LENGTH):
        got, want = case.results(case.rotation(layout, length=length)), case.expected(layout)
        narrow = dtype != torch.float32
        for a, b in zip(got[:4], want[:4], strict=True):
            if narrow:
                rounding = torch.finfo(dtype).eps / 2
                torch.testing.assert_close(a.double(), b.double(), rtol=1.01 * rounding, atol=5e-5)
            else:
                assert fused.error(a, b) < 3e-6, seed
        theta, *gains = got[4:]
        assert fused.error(theta, want[4]) < (torch.finfo(dtype).eps if narrow else 3e-6), seed
        # What is turned again in the backward pass may be rounded otherwise, seldom.
        assert fused.error(theta, case.torque(got[:2], layout)) < (0.05 * torch.finfo(dtype).eps if narrow else 3e-6)
        for a, b in zip(gains, want[5:], strict=True):
            assert fused.error(a, b) < 3e-6, seed


@pytest.mark.parametrize("view", fused.VIEWS)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("shape", [(8, 4, 64, 48, 1), (5, 3, 28, 12, 1)])
def test_the_fused_kernel_reads_views_where_they_lie(view, norm, shape):
    """Also where no row begins at a multiple of 16."""
    case = fused.Case(shape, norm, torch.bfloat16, (3, 131))
    rotation = case.rotation(length=fused.LENGTH)
    views = [fused.VIEWS[view](x) for x in case.inputs]
    for got, want in zip(case.results(rotation, views), case.results(rotation), strict=True):
        assert fused.error(got, want.double()) < 1e-3  # code for other strides may round otherwise, seldom


@pytest.mark.parametrize("norm", [False, True])
def test_131072_tokens(norm):
    """As many as a step has, in rows of 2,048: against the formula for some rows, and the sums against all of them."""
    case = fused.Case((8, 8, 64, 64, 1), norm, torch.bfloat16, (64, 2048))
    got = case.results(case.rotation(length=fused.LENGTH))
    assert not any(t.isnan().any() for t in got)
    theta, gains, total = got[4], got[5:], None
    for rows in torch.arange(64, device="cuda").split(8):
        part = fused.Case((8, 8, 64, 64, 1), norm, torch.bfloat16, (1, 1))
        part.inputs = [x.detach()[rows].requires_grad_() for x in case.inputs]
        part.weights = [w[rows] for w in case.weights]
        part.positions, part.theta, part.gains = case.positions[rows], case.theta, case.gains
        want = part.expected()
        for a, b in zip(got[:4], want[:4], strict=True):
            torch.testing.assert_close(a[rows].double(), b.double(), rtol=1.01 * 2**-8, atol=5e-5)
        total = want[4:] if total is None else [a + b for a, b in zip(total, want[4:], strict=True)]
    assert fused.error(theta, total[0]) < 2**-7
    assert fused.error(theta, case.torque(got[:2])) < 0.05 * 2**-7
    for a, b in zip(gains, total[1:], strict=True):
        assert fused.error(a, b) < 1e-5


@pytest.mark.parametrize("norm", [False, True])
def test_the_second_kernel_waits_for_the_first(norm):
    """It is launched early. Sums that it reads too soon would be NaN, or those of other gradients."""
    case = fused.Case((8, 8, 64, 64, 1), norm, torch.bfloat16, (16, 2048))
    others = [torch.randn_like(weight) for weight in case.weights]

    def sums(weights):
        return torch.autograd.grad(outs, case.leaves, weights, retain_graph=True)[2:]

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Here, as gradients run in the stream of what they are of.
        outs = fused.turned(case.rotation(length=fused.LENGTH), case.inputs, case.gains)
        first = sums(case.weights)
        with torch.cuda.graph(graph, stream=stream):
            captured = sums(case.weights)
        for _ in range(100):
            sums(others)
            for got, want in zip(sums(case.weights), first, strict=True):
                assert torch.equal(got, want)
            for tensor in captured:
                tensor.fill_(torch.nan)
            graph.replay()
            for got, want in zip(captured, first, strict=True):
                assert torch.equal(got, want)


def test_a_fused_step_never_waits_for_the_device_and_can_be_captured():
    case = fused.Case((8, 4, 64, 64, 1), True, torch.bfloat16, (4, 96))

    def step():
        outs = fused.turned(case.rotation(length=fused.LENGTH), case.inputs, case.gains)
        return [*outs, *torch.autograd.grad(outs, case.leaves, case.weights)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in (*case.inputs, *case.weights):
            tensor.copy_(torch.randn_like(tensor))
        case.theta.mul_(0.7)
        case.positions.copy_(torch.randint_like(case.positions, fused.LENGTH))
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, step(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("norm", [False, True])
def test_fused_kernels_compile_without_a_break(norm):
    torch._dynamo.reset()
    encoding = encoding_on_gpu()
    norms = [torch.nn.RMSNorm(64, eps=1e-5).cuda() for _ in range(2)]
    qkv = torch.randn(2, 100, 3, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    positions = torch.arange(100, device="cuda").remainder(37).expand(2, -1)

    def block(qkv, rotation):
        q, k, v = qkv.unbind(2)
        q, k = rotation.after_norm(q, k, *norms) if norm else rotation(q, k)
        return q * k + v

    results = []
    for function in (block, torch.compile(block, fullgraph=True)):
        rotation = encoding.rotation(positions, origin=18, length=100)
        assert str(rotation.choice(qkv[:, :, 0])) == "triton"
        out = function(qkv, rotation)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), (qkv, encoding.alpha))])
    for got, want in zip(*results, strict=True):
        assert (got - want).float().norm() < 0.03 * want.float().norm()  # eager rounds q k to bf16, compiled not


def test_what_the_kernel_cannot_take_goes_to_the_reference():
    """float64 meets a rotation whose tables were built for the kernel."""
    encoding = encoding_on_gpu()
    x, positions = torch.randn(2, 50, 4, 64, device="cuda"), torch.arange(50, device="cuda").expand(2, -1)
    rotation = encoding.rotation(positions, length=50)
    assert rotation.index is not None
    assert "torch.float64" in str(rotation.choice(x.double()))
    torch.testing.assert_close(rotation.turn(x.double()).float(), rotation.turn(x), rtol=0, atol=2e-5)


def test_strides_past_32_bits():
    """Heads before tokens in long rows: the last head starts more than 2^31 elements after the first.

    The tensor lies in the middle of 8 GiB, so that a wrong place is a wrong number and no crash.
    """
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB")
    memory = torch.zeros((1 << 32) + 4096, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(2, 3, 64, device="cuda", dtype=torch.bfloat16)
    far = memory.as_strided(x.shape, (64, (1 << 30) + 64, 1), (1 << 31) + 64).copy_(x)
    theta = torch.rand(32, device="cuda")
    assert torch.equal(lerope.rotate(far, 3, theta), lerope.rotate(x, 3, theta))
