"""The kernel of residual addition and RMS norm against float64, in Triton's interpreter where there is no GPU."""

import pytest
import torch

pytest.importorskip("triton")

from lerope.model.kernels import triton_norm
from lerope.model.kernels.triton_norm import add_norm

pytestmark = pytest.mark.usefixtures("_rounds_as_a_gpu")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-5


def example(shape, stream=torch.float32, branch=torch.float32):
    torch.manual_seed(0)
    x, add = (torch.randn(shape).to(DEVICE, dtype).requires_grad_() for dtype in (stream, branch))
    gain = torch.rand(shape[-1]).add(0.5).to(DEVICE).requires_grad_()
    weights = [torch.randn(shape).to(DEVICE, dtype) for dtype in (stream, branch)]
    return (x, add, gain), weights


def results(leaves, weights):
    """Sum, norm, and the gradients of all; memory is full of NaN beforehand."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        outs = add_norm(*leaves, EPS)[:2]
        return [*outs, *torch.autograd.grad(outs, leaves, weights)]
    finally:
        torch.use_deterministic_algorithms(False)


def expected(leaves, weights, stored):
    """In float64; the norm reads the sum as it was stored."""
    gain = leaves[2].detach().double().requires_grad_()
    total = stored.detach().double().requires_grad_()
    normed = total / (total.square().mean(-1, keepdim=True) + EPS).sqrt() * gain
    grad, of_gain = torch.autograd.grad([total * 1, normed], (total, gain), [w.double() for w in weights])
    return [leaves[0].detach().double() + leaves[1].detach().double(), normed, grad, grad, of_gain]


@pytest.mark.parametrize("programs", [1, 2, 528])
@pytest.mark.parametrize("shape", [(2, 5, 64), (7, 100), (3, 1), (1, 1200), (40, 12)], ids=str)
def test_float32_values_and_all_gradients_equal_the_formula(shape, programs, monkeypatch):
    """Widths that are no power of two, rows that no tile divides, programs that take several tiles."""
    monkeypatch.setattr(triton_norm, "_BACKWARD_PROGRAMS", programs)
    leaves, weights = example(shape)
    got = results(leaves, weights)
    for a, b in zip(got, expected(leaves, weights, got[0]), strict=True):
        assert a.shape == b.shape
        assert (a - b).norm() < 2e-6 * b.norm() + 1e-5 * (shape[-1] == 1)


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("branch", [torch.float32, torch.bfloat16, torch.float16])
def test_each_result_is_rounded_once_to_its_own_dtype(stream, branch):
    leaves, weights = example((9, 48), stream, branch)
    got = results(leaves, weights)
    assert [t.dtype for t in got] == [stream, branch, stream, branch, torch.float32]
    for a, b in zip(got, expected(leaves, weights, got[0]), strict=True):
        rounding = torch.finfo(a.dtype).eps / 2
        torch.testing.assert_close(a.double(), b, rtol=1.01 * rounding + 2e-6, atol=1e-5)


def test_only_the_sum_is_kept():
    leaves, _ = example((64, 256), torch.bfloat16, torch.bfloat16)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        total, *_ = add_norm(*leaves, EPS)
    large = {t.untyped_storage().data_ptr() for t in saved if t.numel() >= total.numel()}
    assert large == {total.untyped_storage().data_ptr()}


def test_one_result_alone():
    """The last norm's sum goes nowhere."""
    leaves, weights = example((5, 24))
    grads = torch.autograd.grad(add_norm(*leaves, EPS)[1], leaves, weights[1])
    want = results(leaves, [torch.zeros_like(weights[0]), weights[1]])[2:]
    assert all(torch.equal(a, b) for a, b in zip(grads, want, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_to_add_is_zeros_to_add(dtype):
    (x, zeros, gain), weights = example((5, 24), dtype, dtype)
    zeros = torch.zeros_like(zeros).requires_grad_()
    with_zeros = results((x, zeros, gain), weights)
    outs = add_norm(x, None, gain, EPS)[:2]
    without = [*outs, *torch.autograd.grad(outs, (x, gain), weights)]
    assert [t.dtype for t in without] == [dtype] * 3 + [torch.float32]
    assert all(torch.equal(a, b) for a, b in zip(without, [*with_zeros[:3], with_zeros[4]], strict=True))


def test_a_sum_that_goes_nowhere_has_no_gradient_full_of_zeros():
    leaves, weights = example((5, 24))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        torch.autograd.grad(add_norm(*leaves, EPS)[1], leaves, weights[1])
    assert not {event.key for event in found.key_averages()} & {"aten::zeros", "aten::zeros_like", "aten::zero_"}
    for a in torch.autograd.grad(add_norm(*leaves, EPS)[0], leaves[:2], weights[0]):
        assert torch.equal(a, weights[0])


def test_it_is_registered_as_torch_wants_it():
    (x, branch, gain), (stream, grad) = example((4, 6, 16), torch.float32, torch.bfloat16)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(torch.ops.lerope.add_norm.default, (x, branch, gain, EPS), test_utils=checks)
    torch.library.opcheck(torch.ops.lerope.add_norm.default, (x, None, gain, EPS), test_utils=checks)
    total, _, scales = add_norm(x.detach(), branch.detach(), gain.detach(), EPS)
    for each in (stream, None):
        args = (grad, each, total, gain.detach(), scales)
        torch.library.opcheck(torch.ops.lerope.add_norm_backward.default, args, test_utils=checks)
