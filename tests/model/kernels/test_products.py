"""Matrix products by QuACK: what keeps it from running, a matrix, the head. Torch plays QuACK, which needs a GPU."""

import importlib
import itertools
import re
import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lerope.model import loss as loss_module
from lerope.model.kernels import packages, products
from lerope.model.kernels.fused_mlp import mlp
from lerope.model.kernels.layers import FastHead, FastLinear, FastMLP, use_layers
from lerope.model.kernels.packages import import_obstacle
from lerope.model.kernels.products import (
    linear,
    linear_backward,
    linear_forward,
    multiply,
    quack_obstacle,
    settings,
    weight_gradient,
)
from lerope.rotary import dispatch
from tests.model.kernels.played_quack import (
    APART,
    X,
    check_alone,
    check_sum,
    close,
    empty,
    gradients,
    is_rounded,
    make,
    matrices,
    num_products,
    of_module,
    random,
    saved_by,
)

# What keeps QuACK from running.


def test_quack_that_is_not_installed(hopper, monkeypatch):
    monkeypatch.setattr(products, "_QUACK", None)
    assert quack_obstacle(empty(2, 8), empty(8, 8)).startswith("quack-kernels ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_than_16_bits(installed, dtype):
    assert str(dtype) in quack_obstacle(empty(2, 8, dtype=dtype), empty(8, 8, dtype=dtype))
    for narrow in (torch.bfloat16, torch.float16):
        assert quack_obstacle(empty(2, 8, dtype=narrow), empty(8, 8, dtype=narrow)) is None


@pytest.mark.parametrize("shape", [(100, 64), (50_257, 64), (64, 4)], ids=str)
def test_sizes_that_are_no_multiples_of_8(installed, shape):
    """A kernel loads 16 bytes at a time. Each of several weights is looked at."""
    x, good, bad = empty(3, 64), empty(104, 64), empty(*shape)
    assert quack_obstacle(x, bad) == quack_obstacle(x, good, bad) == quack_obstacle(x, bad, good)
    assert str(shape) in quack_obstacle(x, bad)
    assert quack_obstacle(x, good, empty(64, 104)) is None


def test_weights_of_another_dtype_need_autocast(installed):
    """Where torch itself would refuse to multiply them."""
    x, weight = empty(2, 8), empty(8, 8, dtype=torch.float32)
    assert re.search(r"torch\.bfloat16 .* torch\.float32", quack_obstacle(x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert quack_obstacle(x, weight) is None
        half = quack_obstacle(x.half(), weight)
    assert re.search(r"torch\.float16 .* torch\.bfloat16", half)
    for module in (FastLinear(8, 8), make(dtype=torch.float32)):
        with pytest.raises(RuntimeError, match="same dtype"):
            module(X.bfloat16() if isinstance(module, FastMLP) else x)
    assert not installed.calls


class Own(torch.Tensor):
    """A tensor of another kind, as quantization makes them."""


class Sharded:
    """What a DTensor has and a tensor has not."""

    device, dtype, shape = torch.device("cuda"), torch.bfloat16, torch.Size([8, 8])

    def full_tensor(self):
        raise AssertionError


def test_weights_that_are_no_plain_tensors(installed):
    x, weight = empty(2, 8), empty(8, 8)
    for good in (weight, nn.Parameter(weight)):
        assert quack_obstacle(x, good) is None
    for bad in (weight.as_subclass(Own), nn.Parameter(weight.as_subclass(Own))):
        assert quack_obstacle(x, bad) == quack_obstacle(x, weight, bad)
        assert "Own" in quack_obstacle(x, bad)
    module = FastLinear(8, 8).bfloat16()
    module.weight = nn.Parameter(weight.as_subclass(Own))
    module(x)
    assert not installed.calls


def test_weights_in_shards(hopper, monkeypatch):
    monkeypatch.setattr(products, "_QUACK", "1.2.3")
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        x = torch.empty(2, 8, dtype=torch.bfloat16, device="cuda")
    assert "DTensor" in quack_obstacle(x, Sharded())


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)], ids=str)
def test_no_tokens(installed, shape):
    """An example without weights may be empty: it asks about the GPU and the package alone."""
    x = empty(*shape)
    assert "no tokens" in quack_obstacle(x, empty(24, 8))
    assert quack_obstacle(x) is None
    module = FastLinear(8, 24).bfloat16()
    out, x_grad, weight_grad = of_module(module, x)
    assert out.shape == (*shape[:-1], 24)
    assert (x_grad.shape, weight_grad.tolist()) == (shape, empty(24, 8).tolist())
    assert make(dtype=torch.bfloat16)(empty(*shape[:-1], 16)).shape == (*shape[:-1], 16)
    assert not installed.calls


def test_a_cpu_and_transforms(monkeypatch):
    monkeypatch.setattr(products, "_QUACK", "1.2.3")
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    x = empty(2, 8)
    assert "cpu" in quack_obstacle(x, empty(8, 8))
    found = []
    torch.func.vmap(lambda row: found.append(quack_obstacle(row, empty(8, 8))) or row)(x)
    assert "torch.func" in found[0]


@pytest.mark.parametrize(("capability", "runs"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True)])
def test_gpus_before_hopper(installed, monkeypatch, capability, runs):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (quack_obstacle(empty(2, 8), empty(8, 8)) is None) == runs
    assert runs or "{}.{}".format(*capability) in quack_obstacle(empty(0))


@pytest.mark.parametrize("content", ["raise OSError('no libcuda')", "from math import epilogue", "1 +"])
def test_a_package_that_cannot_be_imported_is_a_sentence(tmp_path, monkeypatch, content):
    """Of another version, without a library, or damaged; it is tried once."""
    import_obstacle.cache_clear()
    (tmp_path / "torn_to_pieces.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "version", lambda package: f"{package[0]}1.2")
    sentence = import_obstacle("quack-kernels", "torn_to_pieces")
    kind = {"r": "OSError: no libcuda", "f": "ImportError: cannot import", "1": "SyntaxError: invalid"}[content[0]]
    assert re.search(f"quack-kernels q1.2 .*{kind}", sentence)
    (tmp_path / "torn_to_pieces.py").write_text("")
    importlib.invalidate_caches()
    assert import_obstacle("quack-kernels", "torn_to_pieces") is sentence
    import_obstacle.cache_clear()
    assert import_obstacle("quack-kernels", "torn_to_pieces") is None
    import_obstacle.cache_clear()
    sys.modules.pop("torn_to_pieces")


def test_layers_do_without_a_broken_package(installed, monkeypatch):
    asked = []

    def tear(module):
        asked.append(module)
        raise RuntimeError("CUDA 11")

    monkeypatch.setattr(packages, "import_module", tear)
    monkeypatch.setattr(packages, "version", lambda package: "1.2.3")
    x = random(2, 16, dtype=torch.bfloat16)
    assert re.search(r"quack-kernels 1\.2\.3 .*RuntimeError: CUDA 11", quack_obstacle(x, empty(8, 16)))
    FastLinear(16, 8).bfloat16()(x)
    make(dtype=torch.bfloat16)(x)
    FastHead(16, 48).bfloat16()(x, torch.tensor([1, 2]))
    assert not installed.calls
    assert asked == ["lerope.model.kernels.cute_products"]


def test_versions_are_those_of_the_metadata():
    assert packages.version("torch") == importlib.metadata.version("torch")
    assert packages.version("no-such-package-of-lerope") is None
    assert packages.version("quack-kernels") == products._QUACK


# How it is to compute.


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_other_gpus_are_left_to_the_defaults(hopper, monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert settings(torch.zeros(1), (128, 192)) == {"tuned": False}


def test_a_config_is_made_once(hopper):
    """QuACK knows a config it has met by its identity: an equal one is prepared anew, which takes the host time."""
    first, again = (settings(torch.zeros(1), (128, 192))["config"] for _ in range(2))
    assert again is first
    assert settings(torch.zeros(1), (192, 128))["config"] is not first


def test_calls_of_a_product_share_a_config(kernel):
    for _ in range(2):
        multiply(random(5, 8), random(8, 24))
        gradients(mlp, random(5, 8), *matrices())
    assert len({id(config) for config in kernel.configs}) == len(set(kernel.configs))


@pytest.mark.parametrize(("m", "n"), [(8, 24), (24, 8), (16, 16)])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_product(kernel, m, n, layout):
    a, b = random(5, m), random(m, n, seed=1)
    got = multiply(a, b if layout == "rows" else b.t().contiguous().t())
    close([got], [a @ b])
    assert got.is_contiguous()
    assert kernel.calls == Counter(product=1)


# A matrix.


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8), (2, 0, 8)], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_without_quack_it_is_a_linear_layer_bit_by_bit(shape, autocast):
    ours, theirs = FastLinear(8, 12), nn.Linear(8, 12, bias=False)
    assert ours.state_dict().keys() == theirs.state_dict().keys() == {"weight"}
    theirs.load_state_dict(ours.state_dict())
    x = random(*shape, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        results = [of_module(module, x) for module in (ours, theirs)]
    assert results[0][0].dtype == (torch.bfloat16 if autocast else torch.float32)
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


def plain(module):
    """The same matrix as torch has it."""
    layer = nn.Linear(module.in_features, module.out_features, bias=False, dtype=module.weight.dtype)
    layer.load_state_dict(module.state_dict())
    return layer


@pytest.mark.parametrize("widths", [(8, 24), (24, 8)])
@pytest.mark.parametrize("lead", [(5,), (2, 3), (2, 1, 3)], ids=str)
def test_a_matrix_by_quack_has_the_values_and_gradients_of_a_linear_layer(quack, widths, lead):
    module = FastLinear(*widths).double()
    x = random(*lead, widths[0])
    close(of_module(module, x), of_module(plain(module), x))
    # The gradient of the weight is a product of another kind, which cuBLAS computes.
    assert quack.calls == APART


def test_gradients_that_are_not_contiguous(quack):
    """That of a sum is one number which stands for all, that of a transposed tensor lies in columns."""
    x, weight = random(5, 8), random(24, 8, seed=1)
    for function in (lambda out: out.sum(), lambda out: out.t() @ random(5, 5, seed=2)):
        results = []
        for product in (linear, nn.functional.linear):
            leaves = [t.detach().requires_grad_() for t in (x, weight)]
            results.append(torch.autograd.grad(function(product(*leaves)).sum(), leaves))
        close(*results)


def test_a_matrix_that_is_told_to_leaves_it_to_torch(quack):
    module = FastLinear(8, 24).double()
    use_layers(module, fast=False)
    of_module(module, random(3, 8))
    assert not quack.calls


def test_a_matrix_asks_about_its_own_weight(installed):
    x = random(3, 8, dtype=torch.bfloat16)
    FastLinear(8, 24).bfloat16()(x)
    assert installed.calls == Counter(product=1)
    FastLinear(8, 20).bfloat16()(x)
    FastLinear(8, 24)(x.float())
    assert installed.calls == Counter(product=1)


def test_a_matrix_takes_a_vector(quack):
    module = FastLinear(8, 24).double()
    x = random(8)
    close(of_module(module, x), of_module(plain(module), x))
    assert quack.calls == APART


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (8,)], ids=str)
def test_inputs_that_are_not_contiguous(quack, shape):
    """Kernels take them in one piece; a vector may be every second number of another."""
    module = FastLinear(8, 24).double()
    wide = random(*shape[:-1], 16)
    for x in (wide[..., ::2], random(*reversed(shape)).permute(*reversed(range(len(shape))))):
        close(of_module(module, x), of_module(plain(module), x))


@pytest.mark.parametrize("learn", [(True, False), (False, True), (True, True)])
def test_a_frozen_input_or_weight_takes_no_product(quack, learn):
    counts = check_alone(linear, (random(5, 8), random(24, 8, seed=1)), learn)
    assert counts == (1, sum(learn))
    assert quack.calls == Counter(product=1 + learn[0]) + APART


def test_a_frozen_matrix(quack):
    module = FastLinear(8, 24).double().requires_grad_(False)
    x = random(2, 3, 8).requires_grad_()
    assert num_products(module(x).sum().backward) == 1
    assert module.weight.grad is None
    close([x.grad], [module.weight.sum(0).expand(2, 3, 8)])
    quack.calls.clear()
    assert not module(x.detach()).requires_grad
    module.requires_grad_(True)
    assert num_products(module(x.detach()).sum().backward) == 1
    close([module.weight.grad], [x.detach().sum((0, 1)).expand(24, 8)])
    assert quack.calls == APART


@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=2)], ids=str)
def test_gradients_of_a_matrix_that_are_not_needed_are_empty(quack, needs):
    grad, x, weight = random(5, 24, seed=2), random(5, 8), random(24, 8, seed=1)
    arguments = (grad, x, weight, torch.float64, list(needs))
    got = linear_backward(*arguments)
    for each, need, want in zip(got, needs, (grad @ weight, grad.t() @ x), strict=True):
        close([each], [want if need else random(0)])
    assert num_products(linear_backward, *arguments) == sum(needs)
    torch.library.opcheck(torch.ops.lerope.linear_backward.default, arguments)


def test_the_matrix_is_registered_as_torch_wants_it(quack):
    x, weight = random(5, 8).requires_grad_(), random(24, 8, seed=1).requires_grad_()
    torch.library.opcheck(torch.ops.lerope.linear.default, (x, weight))
    torch.library.opcheck(torch.ops.lerope.linear.default, (random(8, 5).t().requires_grad_(), weight))
    for frozen in ((x.detach(), weight), (x, weight.detach())):
        torch.library.opcheck(torch.ops.lerope.linear.default, frozen)
    torch.autograd.gradcheck(linear, (x, weight))


def test_a_compiled_matrix_has_no_break_and_the_same_gradients(quack):
    torch._dynamo.reset()
    module = FastLinear(16, 24).double()
    plain = of_module(module, X)
    quack.calls.clear()
    close(of_module(torch.compile(module, fullgraph=True, backend="aot_eager"), X), plain, rtol=1e-14)
    assert quack.calls == APART


# A matrix with weights in another dtype than its input.


def wide_inputs(num_tokens=50):
    """(tokens, 8) in 16 bits, a matrix (24, 8) in 32, and a gradient (tokens, 24)."""
    x, grad = (random(num_tokens, width, dtype=torch.bfloat16, seed=seed) for width, seed in ((8, 0), (24, 9)))
    return x, random(24, 8, dtype=torch.float32, seed=1), grad


def test_gradients_of_weights_in_float32_are_sums_in_float32(kernel):
    """The rest is what it is for the weight in 16 bits, bit by bit."""
    x, weight, grad = wide_inputs()
    out, x_grad, weight_grad = gradients(linear, x, weight)
    narrow = gradients(linear, x, weight.bfloat16())
    assert torch.equal(out, narrow[0])
    assert torch.equal(x_grad, narrow[1])
    check_sum(weight_grad, grad, x)
    assert is_rounded(narrow[2])
    assert torch.equal(weight_grad.bfloat16(), narrow[2])
    assert kernel.calls == APART + APART


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_matrix_in_autocast_has_gradients_in_float32(installed, compiled, within):
    """Also if the backward pass is in autocast as well, where torch would compute in 16 bits again."""
    torch._dynamo.reset()
    x, weight, grad = wide_inputs()
    module = FastLinear(8, 24)
    module.weight.data = weight
    function = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    leaf = x.view(5, 10, 8).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = function(leaf)
    with torch.autocast("cpu", torch.bfloat16, enabled=within):
        out.backward(grad.view(5, 10, 24))
    assert (out.dtype, leaf.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    check_sum(module.weight.grad, grad, x)
    assert torch.equal(leaf.grad.flatten(0, 1), grad @ weight.bfloat16())
    assert installed.calls == APART


def test_a_matrix_in_16_bits_needs_no_autocast(installed):
    module, x = FastLinear(8, 24).bfloat16(), wide_inputs()[0]
    assert {t.dtype for t in of_module(module, x)} == {torch.bfloat16}
    assert installed.calls == APART


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_weights_in_yet_another_dtype(installed, dtype):
    """A sum in float32 that is rounded once."""
    x, weight, grad = wide_inputs()
    module = FastLinear(8, 24).to(dtype)
    module.weight.data = weight.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        _, _, weight_grad = of_module(module, x)
    assert torch.equal(weight_grad, (grad.float().t() @ x.float()).to(dtype))
    assert installed.calls == APART


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_cuda_has_sums_in_every_dtype(dtype):
    """As far as fakes know: its products of 16 bits are 16 of the same kind, or 32."""
    with torch._subclasses.fake_tensor.FakeTensorMode():
        grad, x = (torch.empty(5, width, dtype=torch.bfloat16, device="cuda") for width in (24, 8))
        got = weight_gradient(grad, x, dtype)
    assert (got.dtype, tuple(got.shape), got.device.type) == (dtype, (24, 8), "cuda")


def test_a_matrix_keeps_the_copy_that_it_multiplied_with(kernel):
    """And not what it is a copy of; a weight in 16 bits is kept itself."""
    x, weight, _ = wide_inputs()
    saved = saved_by(linear, x, weight.requires_grad_())
    assert [t.dtype for t in saved] == [torch.bfloat16] * 2
    assert saved[0].data_ptr() == x.data_ptr()
    assert torch.equal(saved[1], weight.bfloat16())
    narrow = weight.detach().bfloat16().requires_grad_()
    assert [t.data_ptr() for t in saved_by(linear, x, narrow)] == [x.data_ptr(), narrow.data_ptr()]
    for each, size in ((weight, weight.numel()), (narrow, 0)):
        assert linear_forward(x, each)[1].numel() == size


def test_a_compiled_matrix_keeps_the_copy_that_it_multiplied_with(quack):
    torch._dynamo.reset()
    module, x = FastLinear(8, 24), wide_inputs()[0]
    saved = saved_by(torch.compile(module, fullgraph=True, backend="aot_eager"), x)
    assert sorted((tuple(t.shape), t.dtype) for t in saved) == [((24, 8), torch.bfloat16), ((50, 8), torch.bfloat16)]


def test_a_weight_that_changes_between_both_passes(kernel):
    """Gradients are those of the copy."""
    x, weight, grad = wide_inputs()
    want = grad @ weight.bfloat16()
    leaf = x.requires_grad_()
    out = linear(leaf, weight)
    weight.zero_()
    assert torch.equal(torch.autograd.grad(out, leaf, grad)[0], want)


@pytest.mark.parametrize("learn", [(True, False), (False, True), (True, True)])
def test_a_frozen_input_or_a_frozen_weight_in_float32_takes_no_product(kernel, learn):
    assert check_alone(linear, wide_inputs()[:2], learn) == (1, sum(learn))
    assert kernel.calls == Counter(product=1 + learn[0]) + APART


@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=2)], ids=str)
def test_gradients_of_a_matrix_in_float32_that_are_not_needed_are_empty(kernel, needs):
    x, weight, grad = wide_inputs()
    arguments = (grad, x, weight.bfloat16(), torch.float32, list(needs))
    got = linear_backward(*arguments)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32]
    assert [tuple(t.shape) for t in got] == [(50, 8) if needs[0] else (0,), (24, 8) if needs[1] else (0,)]
    assert num_products(linear_backward, *arguments) == sum(needs)
    torch.library.opcheck(torch.ops.lerope.linear_backward.default, arguments)


def test_a_matrix_in_float32_is_registered_as_torch_wants_it(kernel):
    x, weight, _ = wide_inputs()
    sliced = random(24, 16, dtype=torch.float32)[:, ::2]
    for each in (weight, weight.t().contiguous().t(), sliced, weight.half()):
        torch.library.opcheck(torch.ops.lerope.linear.default, (x, each.requires_grad_()))
        torch.library.opcheck(torch.ops.lerope.linear.default, (x.detach().requires_grad_(), each.detach()))


# The head.


def test_the_head_multiplies_by_quack(quack, monkeypatch):
    """Eight tokens, three at a time, for a loss with gradients and for losses of tokens without."""
    monkeypatch.setitem(loss_module._CHUNK_LOGITS, "cpu", 3 * 48)
    head = FastHead(16, 48).double()
    x, targets = random(2, 4, 16), torch.randint(-1, 48, (2, 4), generator=torch.Generator().manual_seed(0))
    results = []
    for fast in (True, False):
        use_layers(head, fast)
        leaf = x.detach().requires_grad_()
        total = head(leaf, targets)
        grads = torch.autograd.grad(total, (leaf, head.weight))
        results.append([total.detach(), grads[0], grads[1].double(), head.token_losses(x, targets)])
        assert quack.calls == Counter(product=6)
    close(*results, rtol=1e-6)  # losses of tokens are float32


class Seen(TorchDispatchMode):
    """Which operators of lerope are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "lerope":
            self.names.append(str(func))
        return func(*args, **kwargs or {})


def test_the_head_multiplies_by_the_operator(quack):
    """Which has a fake of its own: whoever traces a head, or asks for shapes alone, needs no QuACK."""
    head, targets = FastHead(16, 48).double(), torch.tensor([1, -1, 3])
    for call in (lambda: head(random(3, 16), targets), lambda: head.token_losses(random(3, 16), targets)):
        with Seen() as seen:
            call()
        assert seen.names == ["lerope.linear.default"]
    quack.calls.clear()
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        assert head(torch.empty(3, 16, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)).shape == ()
    assert not quack.calls


def test_a_vocabulary_that_quack_cannot_take(installed):
    x, targets = random(3, 16, dtype=torch.bfloat16), torch.tensor([1, 2, 3])
    FastHead(16, 48).bfloat16()(x, targets)
    assert installed.calls == Counter(product=1)
    FastHead(16, 50).bfloat16()(x, targets)
    assert installed.calls == Counter(product=1)
