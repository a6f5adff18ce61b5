"""The choice of a kernel: automatic, printable, and an error in one sentence where one asked for by name cannot run."""

import pytest
import torch
from torch import nn

import lerope
from lerope.rotary import dispatch
from lerope.rotary.dispatch import Choice, choose, triton_obstacle
from tests.rotary.reference import rotated

THETA = torch.rand(8)


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    monkeypatch.setattr(dispatch, "_INTERPRETED", True)


class Sharded:
    """What a DTensor has and a tensor has not."""

    device, dtype = torch.device("cuda"), torch.float32

    def full_tensor(self):
        return pytest.fail("a tensor was gathered to choose a kernel")


def on_cuda(dtype=torch.float32, ndim=1, requires_grad=False):
    """As much of a tensor on a GPU as a choice looks at."""

    class Remote:
        pass

    remote = Remote()
    remote.device, remote.dtype, remote.ndim = torch.device("cuda"), dtype, ndim
    remote.requires_grad = requires_grad
    return remote


def test_a_gpu_gets_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert choose("auto", on_cuda(dtype), frequencies=on_cuda()) == Choice("triton")
        assert choose("triton", on_cuda(dtype), frequencies=on_cuda()) == Choice("triton")
    assert str(Choice("triton")) == "triton"


# Tensors, frequencies, and what of them the kernel cannot take.
REASONS = {
    "a CPU": ([torch.zeros(1)], on_cuda(), "on cpu"),
    "frequencies on a CPU": ([on_cuda()], torch.zeros(1), "on cpu"),
    "float64": ([on_cuda(torch.float64)], on_cuda(), "torch.float64"),
    "float8": ([on_cuda(torch.float8_e4m3fn)], on_cuda(), "torch.float8_e4m3fn"),
    "shards": ([Sharded()], on_cuda(), "DTensor"),
    "sharded frequencies": ([on_cuda()], Sharded(), "DTensor"),
    "wide frequencies": ([on_cuda()], on_cuda(torch.float64), "torch.float64"),
    "narrow frequencies": ([on_cuda()], on_cuda(torch.bfloat16), "frequencies are torch.bfloat16"),
    "frequencies of documents that learn": ([on_cuda()], on_cuda(ndim=4, requires_grad=True), "two dimensions"),
}


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_is_printed_or_raised(name, monkeypatch):
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)
    tensors, frequencies, what = REASONS[name]
    chosen = choose("auto", *tensors, frequencies=frequencies)
    assert chosen.kernel == "reference"
    assert what in chosen.reason
    assert str(chosen) == f"reference ({chosen.reason})"
    with pytest.raises(ValueError, match=rf"^kernel 'triton' .*{chosen.reason}.*'auto'\.$"):
        choose("triton", *tensors, frequencies=frequencies)


def test_without_triton_everything_goes_to_the_reference(monkeypatch):
    monkeypatch.setattr(dispatch, "_HAS_TRITON", False)
    assert str(choose("auto", on_cuda(), frequencies=on_cuda())) == "reference (triton is not installed)"
    with pytest.raises(ValueError, match="because triton is not installed; leave it at 'auto'"):
        choose("triton", on_cuda(), frequencies=on_cuda())


def test_the_reference_can_be_asked_for():
    assert str(choose("reference", on_cuda(), frequencies=on_cuda())) == "reference (asked for)"


def test_fixed_frequencies_may_have_more_dimensions(monkeypatch):
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    assert choose("auto", on_cuda(), frequencies=on_cuda(ndim=4)).kernel == "triton"


def test_the_interpreter_runs_only_what_asks_for_it_by_name(interpreted):
    x = torch.zeros(1)
    assert choose("triton", x, frequencies=x) == Choice("triton")
    assert choose("auto", x, frequencies=x).kernel == "reference"
    assert triton_obstacle(x, interpreted=True) is None
    assert "tensors are on cpu" in triton_obstacle(x)
    with pytest.raises(ValueError, match=r"fused kernels .*torch\.float64"):
        choose("triton", x.double(), frequencies=x)


def test_an_encoding_hands_its_kernel_on(interpreted):
    positions, x = torch.arange(5), torch.randn(5, 2, 16)
    encoding = lerope.LeRoPE(16)
    assert encoding.kernel == "auto"
    assert str(encoding.rotation(positions).choice(x)).startswith("reference (fused kernels need a CUDA device")
    encoding.kernel = "triton"
    assert str(encoding.rotation(positions).choice(x)) == "triton"
    encoding.kernel = "reference"
    assert str(encoding.rotation(positions).choice(x)) == "reference (asked for)"
    assert lerope.LeRoPE(16).kernel == "auto"
    for wrong in ("Triton", "cuda", None):
        encoding.kernel = wrong
        with pytest.raises(ValueError, match=f"kernel must be one of auto, triton, reference; got {wrong!r}"):
            encoding.rotation(positions)


def test_by_name_where_it_cannot_run(monkeypatch):
    """Every way in: the function, a rotation, an encoding."""
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    x, positions = torch.randn(5, 2, 16), torch.arange(5)
    encoding = lerope.LeRoPE(16)
    encoding.kernel = "triton"
    rotation = lerope.Rotation(positions, THETA, kernel="triton")
    norm = nn.RMSNorm(16, eps=1e-5)
    calls = (
        lambda: lerope.rotate(x, 0, THETA, kernel="triton"),
        lambda: rotation(x, x),
        lambda: rotation.turn(x),
        lambda: rotation.after_norm(x, x, norm, norm),
        lambda: encoding(x, x, 0),
        lambda: encoding(None, x, positions),
        lambda: encoding.rotation(positions, length=5),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=r"^kernel 'triton' cannot run here, because fused kernels need a CUDA device .*\.$"
        ):
            call()


@pytest.mark.parametrize("shape", [(2, 1, 5), (2, 1, 1), (3, 1)])
def test_positions_spread_over_tokens_in_between(interpreted, shape):
    """One position for a whole row, or for rows of a middle dimension: the tables then do not lie as tokens do."""
    x, positions = torch.randn(2, 3, 5, 4, 16), torch.randint(0, 9, shape)
    rotation = lerope.Rotation(positions, THETA, kernel="triton")
    with pytest.raises(ValueError, match=r"^kernel 'triton' cannot run here, because positions"):
        rotation.turn(x)
    kernels_auto = lerope.Rotation(positions, THETA)
    torch.testing.assert_close(kernels_auto.turn(x).double(), rotated(x, positions, THETA), rtol=0, atol=1e-5)


def test_positions_spread_over_tokens_in_between_say_so(monkeypatch):
    x, positions = torch.randn(2, 3, 5, 4, 16), torch.randint(0, 9, (2, 1, 5))
    rotation = lerope.Rotation(positions, THETA)
    monkeypatch.setattr("lerope.rotary.rotation.choose", lambda *args, **options: Choice("triton"))
    assert str(rotation.choice(x)).startswith("reference (positions ")
    assert rotation.choice(x[:, 0]).kernel == "reference"
    assert rotation.choice(torch.randn(2, 1, 5, 4, 16)).kernel == "triton"


NORMS = {
    "another eps": lambda: (nn.RMSNorm(16, eps=1e-5), nn.RMSNorm(16, eps=1e-6)),
    "eps left open": lambda: (nn.RMSNorm(16), nn.RMSNorm(16)),
    "no gain": lambda: (nn.RMSNorm(16, eps=1e-5, elementwise_affine=False), nn.RMSNorm(16, eps=1e-5)),
    "no gain at all": lambda: tuple(nn.RMSNorm(16, eps=1e-5, elementwise_affine=False) for _ in range(2)),
    "over heads too": lambda: (nn.RMSNorm((4, 16), eps=1e-5), nn.RMSNorm((4, 16), eps=1e-5)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_that_the_kernel_does_not_know_are_done_before_it(interpreted, monkeypatch, name):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    q, k = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 4, 16)
    rotation = lerope.Rotation(torch.arange(5), THETA, kernel="triton")
    q_norm, k_norm = NORMS[name]()
    got = rotation.after_norm(q, k, q_norm, k_norm)
    for out, x, norm in zip(got, (q, k), (q_norm, k_norm), strict=True):
        dims = tuple(range(-len(norm.normalized_shape), 0))
        eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        normed = x.double() / (x.double().square().mean(dims, keepdim=True) + eps).sqrt()
        torch.testing.assert_close(out.double(), rotated(normed, torch.arange(5), THETA), rtol=0, atol=1e-5)


def test_norms_alike_go_into_the_kernel(interpreted, monkeypatch):
    pytest.importorskip("triton")
    from lerope.rotary import operators

    seen = []
    rotary = operators.rotary
    monkeypatch.setattr(operators, "rotary", lambda *args: seen.append(args) or rotary(*args))
    q, norms = torch.randn(2, 5, 4, 16), [nn.RMSNorm(16, eps=1e-5) for _ in range(2)]
    lerope.Rotation(torch.arange(5), THETA, kernel="triton").after_norm(q, q, *norms)
    (args,) = seen
    assert args[8] is norms[0].weight
    assert args[9] is norms[1].weight
    assert args[10] == 1e-5


def test_a_rotation_of_one_s_own_keeps_its_call(interpreted):
    """After norms, a subclass is called with what the norms give, and not by-passed."""

    class Quiet(lerope.Rotation):
        def __call__(self, q, k):
            return q, k

    q, k = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 4, 16)
    norms = [nn.RMSNorm(16, eps=1e-5) for _ in range(2)]
    for kernel in ("auto", "triton", "reference"):
        got = Quiet(torch.arange(5), THETA, kernel=kernel).after_norm(q, k, *norms)
        for out, x, norm in zip(got, (q, k), norms, strict=True):
            assert torch.equal(out, norm(x))


def test_mixed_dtypes_and_lengths_go_through_one_by_one(interpreted):
    pytest.importorskip("triton")
    q, k = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16).bfloat16()
    norms = [nn.RMSNorm(16, eps=1e-5), nn.RMSNorm(16, eps=1e-5).bfloat16()]
    rotation = lerope.Rotation(torch.arange(5), THETA, kernel="triton")
    for out, x in zip(rotation(q, k), (q, k), strict=True):
        assert out.dtype == x.dtype
        assert torch.equal(out, rotation.turn(x))
    for out, x, norm in zip(rotation.after_norm(q, k, *norms), (q, k), norms, strict=True):
        assert torch.equal(out, rotation.turn(norm(x)))


@pytest.mark.parametrize("length", [0, -3, 2.5, True])
def test_a_length_must_be_a_count(length):
    with pytest.raises(ValueError, match="length must be a positive whole number"):
        lerope.Rotation(torch.arange(5), THETA, length=length)


def test_bad_input_reaches_the_kernel_as_a_sentence(interpreted):
    rotation = lerope.Rotation(torch.arange(5), torch.rand(2, 8), kernel="triton")
    x = torch.randn(2, 5, 4, 16)
    cases = [
        (lambda: rotation(x, x[..., :3, :]), "k must have a multiple of 2 heads"),
        (lambda: rotation(x[..., :8], x), "q must have head_dim 16; got 8"),
        (
            lambda: rotation.after_norm(x, x[..., :3, :], nn.RMSNorm(16, 1e-5), nn.RMSNorm(16, 1e-5)),
            "k must have a mul",
        ),
        (lambda: rotation.turn(x[:, :4]), "positions must broadcast to"),
    ]
    for call, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_transforms_and_forward_mode_take_the_reference(interpreted):
    """The fused operator would give a tangent of zero without a word."""
    x, positions = torch.randn(1, 3, 2, 16), torch.arange(3)

    def turn(x):
        return lerope.rotate(x, positions, THETA).pow(2).sum()

    with torch.autograd.forward_ad.dual_level():
        assert "forward-mode" in str(lerope.Rotation(positions, THETA).choice(x))
        with pytest.raises(ValueError, match=r"kernel 'triton' cannot run here, because fused kernels .*torch\.func"):
            lerope.Rotation(positions, THETA, kernel="triton").choice(x)
    gradient = torch.func.grad(turn)(x)
    torch.testing.assert_close(gradient, 2 * x, rtol=1e-5, atol=1e-5)


def test_frequencies_of_heads_may_lie_in_any_order(interpreted):
    x, positions, theta = torch.randn(1, 5, 3, 16), torch.arange(5), torch.rand(8, 3).t()
    got = lerope.rotate(x, positions, theta, kernel="triton")
    torch.testing.assert_close(got, lerope.rotate(x, positions, theta, kernel="reference"), rtol=0, atol=1e-6)


def test_norms_without_eps_are_left_to_torch(interpreted):
    """Padding of a block would be divided by zero."""
    rotation = lerope.Rotation(torch.arange(4), THETA, kernel="triton")
    q, k = torch.randn(1, 4, 3, 16), torch.randn(1, 4, 3, 16)
    assert rotation.fused(q, k, nn.RMSNorm(16, eps=1e-5), nn.RMSNorm(16, eps=1e-5)) is not None
    assert rotation.fused(q, k, nn.RMSNorm(16, eps=0.0), nn.RMSNorm(16, eps=0.0)) is None
