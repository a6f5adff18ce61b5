"""The GELU kernel against float64, in Triton's interpreter where there is no GPU."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from lerope.model.kernels import triton_gelu
from lerope.model.kernels.triton_gelu import gelu

pytestmark = pytest.mark.usefixtures("_rounds_as_a_gpu")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Abramowitz and Stegun's bound for the error of erf, 1.5e-7, and float32 roundings.
ERROR = 3e-7


def exact(x):
    """Value and slope in float64; the tail by erfc, which does not cancel."""
    x = x.double()
    phi = 0.5 * torch.special.erfc(-x / math.sqrt(2))
    return x * phi, phi + x * (-x.square() / 2).exp() / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_value_and_gradient_over_the_whole_range(dtype):
    x = torch.linspace(-12, 12, 5001, device=DEVICE).to(dtype).requires_grad_()
    weight = torch.linspace(0.5, 2, 5001, device=DEVICE).to(dtype)
    out = gelu(x)
    (grad,) = torch.autograd.grad(out, x, weight)
    value, slope = exact(x.detach())
    rounding = torch.finfo(dtype).eps / 2 + 1e-6
    assert out.dtype == grad.dtype == dtype
    size = x.detach().double().abs() + 1
    assert ((out.double() - value).abs() <= rounding * value.abs() + ERROR * size).all()
    slope = slope * weight.double()
    assert ((grad.double() - slope).abs() <= rounding * slope.abs() + 2 * ERROR * size).all()


def test_bf16_is_as_close_as_torch():
    """The error of the whole tensor, which is that of rounding."""
    x = torch.randn(3000, device=DEVICE).mul(2).bfloat16()
    value, _ = exact(x)
    ours, torchs = ((f(x).double() - value).norm() for f in (gelu, nn.functional.gelu))
    assert ours <= 1.02 * torchs


def test_far_out():
    """Zero on the left, the number itself on the right, nothing that is no number."""
    x = torch.tensor([-300.0, -40.0, -0.0, 0.0, 40.0, 300.0], device=DEVICE).bfloat16().requires_grad_()
    out = gelu(x)
    assert out.tolist() == [0.0, 0.0, 0.0, 0.0, 40.0, 300.0]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    "shape", [(3,), (2, 3, 5), (triton_gelu._BLOCK,), (2 * triton_gelu._BLOCK + 1,), (0, 4), ()], ids=str
)
def test_any_shape_and_strides(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE).bfloat16()
    for view in (x, x.movedim(0, -1) if x.ndim else x, torch.stack((x, x), -1)[..., 0]):
        leaf = view.detach().requires_grad_()
        out = gelu(leaf)
        assert out.shape == view.shape
        (grad,) = torch.autograd.grad(
            out, leaf, torch.ones_like(out).transpose(0, -1) if x.ndim == 1 else torch.ones_like(out)
        )
        value, slope = exact(view)
        torch.testing.assert_close(out.double(), value, rtol=2**-8, atol=2e-6)
        torch.testing.assert_close(grad.double(), slope, rtol=2**-8, atol=2e-6)


def test_every_element_is_written_and_the_input_is_not():
    x = torch.randn(5000, device=DEVICE).bfloat16().requires_grad_()
    copy = x.detach().clone()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        out = gelu(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not out.isnan().any()
    assert not grad.isnan().any()
    assert torch.equal(x.detach(), copy)


def test_it_is_registered_as_torch_wants_it():
    x = torch.randn(4, 6, device=DEVICE).bfloat16().requires_grad_()
    torch.library.opcheck(torch.ops.lerope.gelu.default, (x,))
    torch.library.opcheck(torch.ops.lerope.gelu_backward.default, (x.detach(), x.detach()))


def test_it_compiles():
    torch._dynamo.reset()
    down = nn.Linear(8, 3, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(5, 8, device=DEVICE).bfloat16().requires_grad_()

    def forward(x):
        return down(gelu(x * 2))

    results = []
    for function in (forward, torch.compile(forward, fullgraph=True, backend="aot_eager")):
        out = function(x)
        results.append([out, *torch.autograd.grad(out.sum(), (x, down.weight))])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=2**-7, atol=1e-3)


def test_nothing_but_the_input_is_kept():
    x = torch.randn(64, 64, device=DEVICE).bfloat16().requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        gelu(x)
    assert [t.untyped_storage().data_ptr() for t in saved] == [x.untyped_storage().data_ptr()]
