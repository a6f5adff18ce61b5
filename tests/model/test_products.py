"""Matrix products by QuACK, and the MLP and the head that use them. Torch plays QuACK, which needs a GPU."""

import importlib
import itertools
import math
import sys
from dataclasses import dataclass
from types import MethodType, ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lerope
from lerope.model import loss as loss_module
from lerope.model import packages, products
from lerope.model.config import ModelConfig
from lerope.model.fused_mlp import fused_mlp, fused_mlp_backward, mlp
from lerope.model.init import init_weights
from lerope.model.loss import Head
from lerope.model.packages import broken
from lerope.model.products import Linear, linear, linear_backward, multiply, obstacle, settings
from lerope.model.transformer import MLP, Transformer
from lerope.rotary import kernels

CONFIG = ModelConfig(num_layers=2, num_heads=2, head_dim=8, vocab_size=48)


@dataclass(frozen=True)
class Config:
    """The part of QuACK's GemmConfig that is set."""

    tile_m: int
    tile_n: int
    pingpong: bool
    cluster_m: int
    cluster_n: int
    is_dynamic_persistent: bool

    @property
    def tile(self):
        return self.tile_m, self.tile_n


def gelu(x):
    return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))


def slope(x):
    return 0.5 * torch.special.erfc(-x / math.sqrt(2)) + x * (-x.square() / 2).exp() / math.sqrt(2 * math.pi)


class Played:
    """lerope.model.cute_products as torch computes it, and a list of what was called in which tiles."""

    def __init__(self):
        self.calls = []
        self.configs = []

    @property
    def tiles(self):
        return [config.tile for config in self.configs]

    def note(self, name, how, *factors, **shapes):
        assert how.pop("tuned") is False
        assert all(t.is_contiguous() or t.t().is_contiguous() for t in factors)
        self.calls.append(name)
        self.configs.append(how.pop("config"))
        assert not how
        for shape, want in shapes.values():
            assert tuple(shape) == tuple(want)

    def product(self, a, b, *, out, **how):
        self.note("product", how, a, b, d=(out["D"].shape, (len(a), b.shape[1])))
        out["D"].copy_(a @ b)

    def gelu_and_slope(self, a, b, *, out, **how):
        self.note("gelu_and_slope", how, a, b, d=(out["D"].shape, out["activated"].shape))
        out["D"].copy_(slope(a @ b))
        out["activated"].copy_(gelu(a @ b))

    def gelu(self, a, b, *, out, store_d, **how):
        assert store_d is False
        assert set(out) == {"activated"}
        self.note("gelu", how, a, b)
        out["activated"].copy_(gelu(a @ b))

    def scaled(self, a, b, c, *, out, **how):
        self.note("scaled", how, a, b, d=(out["D"].shape, c.shape))
        out["D"].copy_((a @ b) * c)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that is not there, and nothing remembered of another."""
    monkeypatch.setitem(sys.modules, "quack.gemm_config", SimpleNamespace(GemmConfig=Config))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    forget()
    yield
    forget()


def forget():
    broken.cache_clear()
    products._config.cache_clear()


@pytest.fixture
def kernel(hopper, monkeypatch):
    """QuACK's kernels, for whoever calls them."""
    played = Played()
    monkeypatch.setitem(sys.modules, "lerope.model.cute_products", played)
    monkeypatch.setattr(lerope.model, "cute_products", played, raising=False)
    return played


@pytest.fixture
def quack(kernel, monkeypatch):
    """QuACK that takes everything, float64 as well."""
    monkeypatch.setattr(products, "obstacle", lambda x, *weights: None)
    return kernel


@pytest.fixture
def installed(kernel, monkeypatch):
    """QuACK that takes what it says it takes, on a CPU."""
    monkeypatch.setattr(products, "_QUACK", "1.2.3")
    monkeypatch.setattr(kernels, "obstacle", lambda *tensors: None)
    return kernel


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradients(function, *leaves, seed=9):
    """The output for these leaves, and the gradient of each."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, random(*out.shape, dtype=out.dtype, seed=seed))]


def of_module(module, x):
    """The output, and the gradients of x and of all parameters."""
    leaf = x.detach().requires_grad_()
    out = module(leaf)
    weight = random(*out.shape, dtype=out.dtype, seed=9)
    return [out.detach(), *torch.autograd.grad(out, [leaf, *module.parameters()], weight)]


def num_products(function, *args):
    """How many matrix products a call computes, whoever computes them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        function(*args)
    return sum(event.count for event in found.key_averages() if event.key == "aten::mm")


def close(got, want, rtol=1e-11):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


# What keeps QuACK from running.


def empty(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def test_quack_that_is_not_installed(hopper, monkeypatch):
    monkeypatch.setattr(products, "_QUACK", None)
    assert obstacle(empty(2, 8), empty(8, 8)) == "quack-kernels is not installed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_than_16_bits(installed, dtype):
    sentence = f"QuACK's products need 16 bits and the input is {dtype}"
    assert obstacle(empty(2, 8, dtype=dtype), empty(8, 8, dtype=dtype)) == sentence
    for narrow in (torch.bfloat16, torch.float16):
        assert obstacle(empty(2, 8, dtype=narrow), empty(8, 8, dtype=narrow)) is None


@pytest.mark.parametrize("shape", [(100, 64), (50_257, 64), (64, 4)], ids=str)
def test_sizes_that_are_no_multiples_of_8(installed, shape):
    """A kernel loads 16 bytes at a time. Each of several weights is looked at."""
    x, good, bad = empty(3, 64), empty(104, 64), empty(*shape)
    sentence = f"QuACK's products need sizes that are multiples of 8 and the weight's are {shape}"
    assert obstacle(x, bad) == obstacle(x, good, bad) == obstacle(x, bad, good) == sentence
    assert obstacle(x, good, empty(64, 104)) is None


def test_weights_of_another_dtype_need_autocast(installed):
    """Where torch itself would refuse to multiply them."""
    x, weight = empty(2, 8), empty(8, 8, dtype=torch.float32)
    assert obstacle(x, weight) == "the input is torch.bfloat16 and the product torch.float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert obstacle(x, weight) is None
        half = obstacle(x.half(), weight)
    assert half == "the input is torch.float16 and the product torch.bfloat16"
    for module in (Linear(8, 8), make(dtype=torch.float32)):
        with pytest.raises(RuntimeError, match="same dtype"):
            module(X.bfloat16() if isinstance(module, MLP) else x)
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
        assert obstacle(x, good) is None
    for bad in (weight.as_subclass(Own), nn.Parameter(weight.as_subclass(Own))):
        assert obstacle(x, bad) == obstacle(x, weight, bad) == "QuACK's products take no Own"
    module = Linear(8, 8).bfloat16()
    module.weight = nn.Parameter(weight.as_subclass(Own))
    module(x)
    assert not installed.calls


def test_weights_in_shards(hopper, monkeypatch):
    monkeypatch.setattr(products, "_QUACK", "1.2.3")
    monkeypatch.setattr(kernels, "_HAS_TRITON", True)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        x = torch.empty(2, 8, dtype=torch.bfloat16, device="cuda")
    assert obstacle(x, Sharded()) == "fused kernels take no DTensor"


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)], ids=str)
def test_no_tokens(installed, shape):
    """An example without weights may be empty: it asks about the GPU and the package alone."""
    x = empty(*shape)
    assert obstacle(x, empty(24, 8)) == "there are no tokens"
    assert obstacle(x) is None
    module = Linear(8, 24).bfloat16()
    out, x_grad, weight_grad = of_module(module, x)
    assert out.shape == (*shape[:-1], 24)
    assert (x_grad.shape, weight_grad.tolist()) == (shape, empty(24, 8).tolist())
    assert make(dtype=torch.bfloat16)(empty(*shape[:-1], 16)).shape == (*shape[:-1], 16)
    assert not installed.calls


def test_a_cpu_and_transforms(monkeypatch):
    monkeypatch.setattr(products, "_QUACK", "1.2.3")
    monkeypatch.setattr(kernels, "_HAS_TRITON", True)
    x = empty(2, 8)
    assert obstacle(x, empty(8, 8)) == "fused kernels need a CUDA device and the tensors are on cpu"
    found = []
    torch.func.vmap(lambda row: found.append(obstacle(row, empty(8, 8))) or row)(x)
    assert found == ["fused kernels know no transforms of torch.func and no forward-mode gradients"]


@pytest.mark.parametrize(("capability", "runs"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True)])
def test_gpus_before_hopper(installed, monkeypatch, capability, runs):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    age = "it needs compute capability 9.0 and this GPU has {}.{}".format(*capability)
    assert obstacle(empty(2, 8), empty(8, 8)) == obstacle(empty(0)) == (None if runs else age)


@pytest.mark.parametrize("content", ["raise OSError('no libcuda')", "from math import epilogue", "1 +"])
def test_a_package_that_cannot_be_imported_is_a_sentence(tmp_path, monkeypatch, content):
    """Of another version, without a library, or damaged; it is tried once."""
    broken.cache_clear()
    (tmp_path / "torn_to_pieces.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "version", lambda package: f"{package[0]}1.2")
    sentence = broken("quack-kernels", "torn_to_pieces")
    kind = {"r": "OSError: no libcuda", "f": "ImportError: cannot import", "1": "SyntaxError: invalid"}[content[0]]
    assert sentence.startswith(f"quack-kernels q1.2 does not work here ({kind}")
    (tmp_path / "torn_to_pieces.py").write_text("")
    importlib.invalidate_caches()
    assert broken("quack-kernels", "torn_to_pieces") is sentence
    broken.cache_clear()
    assert broken("quack-kernels", "torn_to_pieces") is None
    broken.cache_clear()
    sys.modules.pop("torn_to_pieces")


def test_layers_do_without_a_broken_package(installed, monkeypatch):
    asked = []

    def tear(module):
        asked.append(module)
        raise RuntimeError("CUDA 11")

    monkeypatch.setattr(packages, "import_module", tear)
    monkeypatch.setattr(packages, "version", lambda package: "1.2.3")
    x = random(2, 16, dtype=torch.bfloat16)
    assert obstacle(x, empty(8, 16)) == "quack-kernels 1.2.3 does not work here (RuntimeError: CUDA 11)"
    Linear(16, 8).bfloat16()(x)
    make(dtype=torch.bfloat16)(x)
    Head(16, 48).bfloat16()(x, torch.tensor([1, 2]))
    assert not installed.calls
    assert asked == ["lerope.model.cute_products"]


def test_versions_are_those_of_the_metadata():
    assert packages.version("torch") == importlib.metadata.version("torch")
    assert packages.version("no-such-package-of-lerope") is None
    assert packages.version("quack-kernels") == products._QUACK


# How it is to compute.


@pytest.mark.parametrize(
    ("tile", "pingpong", "cluster"),
    [
        ((128, 192), True, (2, 1)),
        ((128, 256), False, (1, 2)),
        ((192, 128), True, (1, 2)),
        ((128, 128), True, (1, 2)),
    ],
)
def test_tiles_on_hopper(hopper, tile, pingpong, cluster):
    how = settings(torch.zeros(1), tile)
    assert how == {"tuned": False, "config": Config(*tile, pingpong, *cluster, False)}


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_other_gpus_are_left_to_the_defaults(hopper, monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert settings(torch.zeros(1), (128, 192)) == {"tuned": False}


def test_a_config_is_made_once(hopper):
    """QuACK knows a config it has met by its identity: an equal one is prepared anew, which takes the host time."""
    first, again = (settings(torch.zeros(1), (128, 192))["config"] for _ in range(2))
    assert again is first
    assert settings(torch.zeros(1), (128, 256))["config"] is not first


def test_calls_of_a_product_share_a_config(kernel):
    for _ in range(2):
        multiply(random(5, 8), random(8, 24))
        gradients(mlp, random(5, 8), *matrices())
    assert len({id(config) for config in kernel.configs}) == len(set(kernel.tiles))


@pytest.mark.parametrize(("m", "n", "tile"), [(8, 24, (128, 192)), (24, 8, (128, 256)), (16, 16, (128, 256))])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_product(kernel, m, n, tile, layout):
    a, b = random(5, m), random(m, n, seed=1)
    got = multiply(a, b if layout == "rows" else b.t().contiguous().t())
    close([got], [a @ b])
    assert got.is_contiguous()
    assert (kernel.calls, kernel.tiles) == (["product"], [tile])


# A matrix.


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8), (2, 0, 8)], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_without_quack_it_is_a_linear_layer_bit_by_bit(shape, autocast):
    ours, theirs = Linear(8, 12), nn.Linear(8, 12, bias=False)
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
    module = Linear(*widths).double()
    x = random(*lead, widths[0])
    close(of_module(module, x), of_module(plain(module), x))
    # The gradient of the weight is a product of another kind, which cuBLAS computes.
    assert quack.calls == ["product", "product"]


def test_gradients_that_are_not_contiguous(quack):
    """That of a sum is one number which stands for all, that of a transposed tensor lies in columns."""
    x, weight = random(5, 8), random(24, 8, seed=1)
    for function in (lambda out: out.sum(), lambda out: out.t() @ random(5, 5, seed=2)):
        results = []
        for product in (linear, nn.functional.linear):
            leaves = [t.detach().requires_grad_() for t in (x, weight)]
            results.append(torch.autograd.grad(function(product(*leaves)).sum(), leaves))
        close(*results)


def test_weights_in_float32_have_gradients_in_float32(quack):
    module, x = Linear(8, 24), random(2, 3, 8, dtype=torch.bfloat16)
    out, x_grad, weight_grad = of_module(module, x)
    assert (out.dtype, x_grad.dtype, weight_grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert quack.calls == ["product", "product"]


def test_a_matrix_that_is_told_to_leaves_it_to_torch(quack):
    module = Linear(8, 24).double()
    module.fused = False
    of_module(module, random(3, 8))
    assert not quack.calls


def test_a_matrix_asks_about_its_own_weight(installed):
    x = random(3, 8, dtype=torch.bfloat16)
    Linear(8, 24).bfloat16()(x)
    assert installed.calls == ["product"]
    Linear(8, 20).bfloat16()(x)
    Linear(8, 24)(x.float())
    assert installed.calls == ["product"]


def test_a_matrix_takes_a_vector(quack):
    module = Linear(8, 24).double()
    x = random(8)
    close(of_module(module, x), of_module(plain(module), x))
    assert quack.calls == ["product", "product"]


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (8,)], ids=str)
def test_inputs_that_are_not_contiguous(quack, shape):
    """Kernels take them in one piece; a vector may be every second number of another."""
    module = Linear(8, 24).double()
    wide = random(*shape[:-1], 16)
    for x in (wide[..., ::2], random(*reversed(shape)).permute(*reversed(range(len(shape))))):
        close(of_module(module, x), of_module(plain(module), x))


def of_leaves(function, inputs, learn):
    """The gradients of those that learn and None of the others, the products of both passes, and the output."""
    leaves = [t.detach().requires_grad_(each) for t, each in zip(inputs, learn, strict=True)]
    results = []
    forward = num_products(lambda: results.append(function(*leaves)))
    (out,) = results
    backward = num_products(out.backward, random(*out.shape, dtype=out.dtype, seed=9))
    return [leaf.grad for leaf in leaves], (forward, backward), out.detach()


def check_alone(function, inputs, learn):
    """Against a backward pass for all: nothing is computed for what is frozen, and nothing else is changed by it."""
    got, counts, out = of_leaves(function, inputs, learn)
    want, _, same = of_leaves(function, inputs, [True] * len(inputs))
    assert torch.equal(out, same)
    for grad, full, each in zip(got, want, learn, strict=True):
        assert (grad is not None) == each
        assert grad is None or torch.equal(grad, full)
    return counts


@pytest.mark.parametrize("learn", [(True, False), (False, True), (True, True)])
def test_a_frozen_input_or_weight_takes_no_product(quack, learn):
    counts = check_alone(linear, (random(5, 8), random(24, 8, seed=1)), learn)
    assert counts == (1, sum(learn))
    assert quack.calls[: 1 + learn[0]] == ["product"] * (1 + learn[0])


def test_a_frozen_matrix(quack):
    module = Linear(8, 24).double().requires_grad_(False)
    x = random(2, 3, 8).requires_grad_()
    assert num_products(module(x).sum().backward) == 1
    assert module.weight.grad is None
    close([x.grad], [module.weight.sum(0).expand(2, 3, 8)])
    quack.calls.clear()
    assert not module(x.detach()).requires_grad
    module.requires_grad_(True)
    assert num_products(module(x.detach()).sum().backward) == 1
    close([module.weight.grad], [x.detach().sum((0, 1)).expand(24, 8)])
    assert quack.calls == ["product", "product"]


@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=2)], ids=str)
def test_gradients_of_a_matrix_that_are_not_needed_are_empty(quack, needs):
    grad, x, weight = random(5, 24, seed=2), random(5, 8), random(24, 8, seed=1)
    got = linear_backward(grad, x, weight, *needs)
    for each, need, want in zip(got, needs, (grad @ weight, grad.t() @ x), strict=True):
        close([each], [want if need else random(0)])
    arguments = (grad, x, weight, *needs)
    assert num_products(linear_backward, *arguments) == sum(needs)
    torch.library.opcheck(torch.ops.lerope.linear_backward.default, arguments)


def test_the_matrix_is_registered_as_torch_wants_it(quack):
    x, weight = random(5, 8).requires_grad_(), random(24, 8, seed=1).requires_grad_()
    torch.library.opcheck(torch.ops.lerope.linear.default, (x, weight))
    torch.library.opcheck(torch.ops.lerope.linear.default, (random(8, 5).t().requires_grad_(), weight))
    for frozen in ((x.detach(), weight), (x, weight.detach())):
        torch.library.opcheck(torch.ops.lerope.linear.default, frozen)
    torch.autograd.gradcheck(linear, (x, weight))


# The MLP.

FUSED = ["gelu_and_slope", "product"]
APART = ["product", "product"]


def formula(x, up, down):
    return gelu(x @ up.t()) @ down.t()


def matrices(width=8, mlp_width=24):
    return random(mlp_width, width, seed=1), random(width, mlp_width, seed=2)


@pytest.mark.parametrize("lead", [(5,), (2, 3), (2, 1, 3)], ids=str)
def test_the_mlp_has_the_values_and_gradients_of_its_formula(kernel, lead):
    inputs = (random(*lead, 8), *matrices())
    close(gradients(mlp, *inputs), gradients(formula, *inputs))
    assert kernel.calls == ["gelu_and_slope", "product", "scaled", "product"]


@pytest.mark.parametrize(("width", "tile"), [(1016, (128, 128)), (1024, (192, 128))])
def test_tiles_of_the_mlp(kernel, width, tile):
    """A short sum leaves little to hide the end of a tile behind."""
    gradients(mlp, random(2, width), *matrices(width, 16))
    assert kernel.tiles == [tile, (128, 192), (192, 128), (128, 192)]
    with torch.no_grad():
        mlp(random(2, width), *matrices(width, 16))
    assert kernel.tiles[4:] == [tile, (128, 192)]


LEARN = [learn for learn in itertools.product([True, False], repeat=3) if any(learn)]


@pytest.mark.parametrize("learn", LEARN, ids=str)
def test_what_is_frozen_in_the_mlp_takes_no_product(kernel, learn):
    """The gradient of what lies between both matrices is needed for x and for the first of them alone."""
    inputs = [random(5, 8), *matrices()]
    counts = check_alone(mlp, inputs, learn)
    between = learn[0] or learn[1]
    assert counts[1] == sum(learn) + between
    assert kernel.calls[:-4] == [*FUSED, *["scaled"] * between, *["product"] * learn[0]]
    leaves = [[t.detach().requires_grad_(each) for t, each in zip(inputs, learn, strict=True)] for _ in range(2)]
    for function, own in zip((mlp, formula), leaves, strict=True):
        function(*own).backward(random(5, 8, seed=9))
    close(*([t.grad for t in own if t.requires_grad] for own in leaves))


def test_the_backward_pass_of_the_mlp_fills_no_gradients_of_what_nobody_reads(kernel):
    """GELU and its slopes are outputs, too: zeros for them would be as large as they are."""
    out = mlp(*(t.requires_grad_() for t in (random(5, 8), *matrices())))
    grad = random(5, 8, seed=9)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        out.backward(grad)
    assert not {event.key for event in found.key_averages()} & {"aten::zeros", "aten::zeros_like", "aten::zero_"}


@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=3)], ids=str)
def test_gradients_of_the_mlp_that_are_not_needed_are_empty(kernel, needs):
    inputs, grad = (random(5, 8), *matrices()), random(5, 8, seed=3)
    _, *kept = fused_mlp(*inputs, True)
    got = fused_mlp_backward(grad, *inputs, *kept, list(needs))
    want = fused_mlp_backward(grad, *inputs, *kept, [True] * 3)
    for each, need, full in zip(got, needs, want, strict=True):
        assert torch.equal(each, full if need else random(0))
    torch.library.opcheck(torch.ops.lerope.fused_mlp_backward.default, (grad, *inputs, *kept, list(needs)))


def test_slopes_are_kept_only_for_a_backward_pass(kernel):
    x, (up, down) = random(5, 8), matrices()
    out, activated, slopes = fused_mlp(x, up, down, True)
    close([out, activated, slopes], [formula(x, up, down), gelu(x @ up.t()), slope(x @ up.t())])
    other, same, none = fused_mlp(x, up, down, False)
    assert none.numel() == 0
    assert torch.equal(out, other)
    assert torch.equal(activated, same)
    kernel.calls.clear()
    mlp(x, up, down)
    with torch.no_grad():
        mlp(x, up.requires_grad_(), down)
    with torch.inference_mode():
        mlp(x, up, down)
    assert kernel.calls == ["gelu", "product"] * 3
    mlp(x, up, down)
    assert kernel.calls[-2:] == ["gelu_and_slope", "product"]


def test_the_mlp_keeps_its_inputs_gelu_and_slopes(kernel):
    inputs = [t.requires_grad_() for t in (random(5, 8), *matrices())]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        mlp(*inputs)
    assert saved == [(5, 8), (24, 8), (8, 24), (5, 24), (5, 24)]


def test_the_mlp_is_registered_as_torch_wants_it(kernel):
    x, up, down = (t.requires_grad_() for t in (random(5, 8), *matrices()))
    torch.library.opcheck(torch.ops.lerope.fused_mlp.default, (x, up, down, True))
    plain = [t.detach() for t in (x, up, down)]
    torch.library.opcheck(torch.ops.lerope.fused_mlp.default, (*plain, False))
    torch.library.opcheck(torch.ops.lerope.fused_mlp.default, (x, plain[1], down, True))
    torch.autograd.gradcheck(mlp, (x, up, down), check_undefined_grad=False)


class Stop(torch.autograd.Function):
    """Reads a tensor and has no gradient for it, as functions of one's own may."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize(
    "function",
    [
        mlp,
        lambda x, up, down: linear(x, up),
    ],
    ids=["mlp", "linear"],
)
def test_a_gradient_that_nobody_has(kernel, function):
    inputs = [t.requires_grad_() for t in (random(5, 8), *matrices())]
    Stop.apply(function(*inputs)).sum().backward()
    assert all(t.grad is None or not t.grad.any() for t in inputs)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradients_of_tensors_in_another_layout_lie_as_fakes_say(kernel, which):
    x, up, down = random(5, 8), *matrices()
    _, *kept = fused_mlp(x, up, down, True)
    inputs = [x, up, down]
    inputs[which] = inputs[which].t().contiguous().t()
    operator = torch.ops.lerope.fused_mlp_backward.default
    torch.library.opcheck(operator, (random(5, 8, seed=3), *inputs, *kept, [True] * 3), test_utils="test_faketensor")


def make(activation="gelu", dtype=torch.float64):
    torch.manual_seed(0)
    return MLP(ModelConfig(num_layers=1, num_heads=2, head_dim=8, activation=activation)).to(dtype)


X = random(2, 3, 16)


def want(module, x=X):
    """By the formula, in float64."""
    inner = module.up.weight.double(), module.down.weight.double()
    return formula(x.double(), *inner)


def test_an_mlp_of_nothing_but_matrices_is_one_operator(quack):
    module = make()
    close([module(X)], [want(module)])
    assert quack.calls == FUSED


def test_an_mlp_with_weights_in_float32(installed):
    """As under autocast: the input is in 16 bits, gradients of the weights are float32."""
    module, x = make(dtype=torch.float32), X.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out, *grads = of_module(module, x)
    assert installed.calls == [*FUSED, "scaled", "product"]
    assert [t.dtype for t in (out, *grads)] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert (out.double() - want(module, x)).norm() < 0.01 * out.double().norm()


def test_an_mlp_asks_what_quack_can_take(installed):
    make(dtype=torch.float32)(X.float())
    assert not installed.calls
    config = ModelConfig(num_layers=1, num_heads=1, head_dim=10)
    assert MLP(config).bfloat16()(random(2, 10, dtype=torch.bfloat16)).shape == (2, 10)
    assert not installed.calls


def test_another_activation_is_another_operator(quack):
    module = make("relu2")
    close([module(X)], [(X @ module.up.weight.t()).clamp(min=0).square() @ module.down.weight.t()])
    assert quack.calls == APART


def test_kernels_that_are_not_wanted(quack):
    module = make()
    module.fused = False
    close([module(X)], [want(module)])
    assert quack.calls == APART
    model = Transformer(CONFIG, lerope.RoPE(8))
    model.use_kernel("reference")
    assert not any(m.fused for m in model.modules() if isinstance(m, Linear | MLP | Head))
    model.use_kernel("auto")
    assert all(m.fused for m in model.modules() if isinstance(m, Linear | MLP | Head))


@pytest.mark.parametrize("name", ["up", "down"])
def test_a_forward_hook_sees_and_changes_what_its_layer_gives(quack, name):
    module = make()
    handle = getattr(module, name).register_forward_hook(lambda layer, args, out: 2 * out)
    inner = (2 if name == "up" else 1) * (X @ module.up.weight.t())
    close([module(X)], [(2 if name == "down" else 1) * gelu(inner) @ module.down.weight.t()])
    assert quack.calls == APART
    handle.remove()
    close([module(X)], [want(module)])
    assert quack.calls[2:] == FUSED


@pytest.mark.parametrize("name", ["up", "down"])
def test_a_forward_pre_hook_sees_and_changes_what_its_layer_takes(quack, name):
    module = make()
    getattr(module, name).register_forward_pre_hook(lambda layer, args: 2 * args[0])
    close([module(X)], [want(module, 2 * X) if name == "up" else 2 * want(module)])
    assert quack.calls == APART


@pytest.mark.parametrize("name", ["up", "down"])
@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_is_called(quack, name, kind):
    module, calls = make(), []
    getattr(getattr(module, name), kind)(lambda *args: calls.append(name))
    of_module(module, X)
    assert calls == [name]


class Adapted(Linear):
    """A matrix with something added to it, as adapters do it."""

    def forward(self, x):
        return super().forward(x) + 1.0


class Around(nn.Module):
    """Another layer around a matrix, which has no weight of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x) + 1.0


def with_adapter(name, kind):
    """An MLP of which one layer gives 1 more, and what it should give."""
    module = make()
    up, down = module.up.weight.detach(), module.down.weight.detach()
    layer = getattr(module, name)
    if kind == "subclass":
        adapted = Adapted(layer.in_features, layer.out_features).double()
        adapted.weight = layer.weight
    else:
        adapted = Around(layer)
    setattr(module, name, adapted)
    return module, gelu(X @ up.t() + (name == "up")) @ down.t() + (name == "down")


@pytest.mark.parametrize("name", ["up", "down"])
def test_a_layer_of_another_type_does_its_own(quack, name):
    module, expected = with_adapter(name, "subclass")
    close([module(X)], [expected])
    assert quack.calls == APART


@pytest.mark.parametrize("name", ["up", "down"])
@pytest.mark.parametrize("where", ["with QuACK", "without"])
def test_a_layer_in_a_wrapper_does_its_own(request, name, where):
    """Also where nothing is fused: an MLP on a CPU must not ask a layer for more than to be called."""
    if where == "with QuACK":
        request.getfixturevalue("quack")
    module, expected = with_adapter(name, "wrapper")
    close([module(X)], [expected])


@pytest.mark.parametrize("name", ["up", "down"])
def test_a_layer_with_a_forward_of_its_own_does_its_own(quack, name):
    """As libraries put it on an object whose class they leave alone."""
    module, expected = make(), with_adapter(name, "wrapper")[1]
    layer = getattr(module, name)
    layer.forward = MethodType(lambda self, x: Linear.forward(self, x) + 1.0, layer)
    close([module(X)], [expected])
    assert quack.calls == APART
    del layer.forward
    close([module(X)], [want(module)])
    assert quack.calls[2:] == FUSED


def test_a_layer_with_a_parametrized_weight_does_its_own(quack):
    class Twice(nn.Module):
        def forward(self, weight):
            return 2 * weight

    module = make()
    expected = gelu(2 * X @ module.up.weight.detach().t()) @ module.down.weight.detach().t()
    nn.utils.parametrize.register_parametrization(module.up, "weight", Twice())
    close([module(X)], [expected])
    assert "gelu_and_slope" not in quack.calls


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_mlp_has_no_break_and_the_same_gradients(quack, backend):
    torch._dynamo.reset()
    module = make()
    plain = of_module(module, X)
    assert quack.calls == [*FUSED, "scaled", "product"]
    quack.calls.clear()
    got = of_module(torch.compile(module, fullgraph=True, backend=backend), X)
    assert quack.calls == [*FUSED, "scaled", "product"]
    close(got, plain, rtol=1e-14)


@pytest.mark.parametrize("learns", [True, False])
def test_a_compiled_mlp_asks_what_quack_can_take_without_a_break(installed, learns):
    torch._dynamo.reset()
    module, x = make(dtype=torch.float32), X.bfloat16()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(learns), torch.autocast("cpu", torch.bfloat16):
        want = module(x)
        installed.calls.clear()
        assert torch.equal(compiled(x), want)
    assert installed.calls == (FUSED if learns else ["gelu", "product"])
    installed.calls.clear()
    compiled(x.float())
    assert not installed.calls


@pytest.mark.parametrize("frozen", ["up", "down"])
def test_a_compiled_mlp_with_a_frozen_matrix(quack, frozen):
    torch._dynamo.reset()
    module = make()
    getattr(module, frozen).requires_grad_(False)
    results = []
    for function in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        module.zero_grad()
        leaf = X.detach().requires_grad_()
        out = function(leaf)
        out.backward(random(*X.shape, seed=9))
        assert getattr(module, frozen).weight.grad is None
        results.append([out.detach(), leaf.grad, *(p.grad.clone() for p in module.parameters() if p.requires_grad)])
    close(*results, rtol=1e-14)
    assert quack.calls == [*FUSED, "scaled", "product"] * 2


def test_a_compiled_matrix_has_no_break_and_the_same_gradients(quack):
    torch._dynamo.reset()
    module = Linear(16, 24).double()
    plain = of_module(module, X)
    quack.calls.clear()
    close(of_module(torch.compile(module, fullgraph=True, backend="aot_eager"), X), plain, rtol=1e-14)
    assert quack.calls == APART


# The head, and all of it.


def test_the_head_multiplies_by_quack(quack, monkeypatch):
    """Eight tokens, three at a time, for a loss with gradients and for losses of tokens without."""
    monkeypatch.setitem(loss_module._CHUNK_LOGITS, "cpu", 3 * 48)
    head = Head(16, 48).double()
    x, targets = random(2, 4, 16), torch.randint(-1, 48, (2, 4), generator=torch.Generator().manual_seed(0))
    results = []
    for fused in (True, False):
        head.fused = fused
        leaf = x.detach().requires_grad_()
        total = head(leaf, targets)
        grads = torch.autograd.grad(total, (leaf, head.weight))
        results.append([total.detach(), grads[0], grads[1].double(), head.token_losses(x, targets)])
        assert quack.calls == ["product"] * 6
    close(*results, rtol=1e-6)  # the weight's gradient is summed in float32
    assert set(quack.tiles) == {(128, 192)}


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
    head, targets = Head(16, 48).double(), torch.tensor([1, -1, 3])
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
    Head(16, 48).bfloat16()(x, targets)
    assert installed.calls == ["product"]
    Head(16, 50).bfloat16()(x, targets)
    assert installed.calls == ["product"]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_by_quack_equals_one_without(quack, recompute):
    """Loss and all gradients; two layers of qkv, out and an MLP, and the head."""
    tokens = torch.randint(48, (2, 6), generator=torch.Generator().manual_seed(0))
    results = []
    for name in ("reference", "auto"):
        model = Transformer(CONFIG, lerope.LeRoPE(8)).double()
        init_weights(model, 0)
        model.use_kernel(name)
        model.recompute = recompute
        assert not quack.calls
        total = model(tokens, targets=tokens)
        results.append([total.detach(), *torch.autograd.grad(total, list(model.parameters()))])
    forward, backward = [*APART, *FUSED] * 2, ["scaled", "product", *APART] * 2
    assert quack.calls[:9] == [*forward, "product"]
    assert sorted(quack.calls[9:]) == sorted([*backward, *(forward if recompute else [])])
    close(*results, rtol=1e-6)  # tables of the rotation are float32


# The formula of the kernels, with numbers of torch in the place of registers.


@pytest.fixture
def cute_products(monkeypatch):
    """The module itself, on stubs of the libraries that it is written in."""

    class Pair(tuple):
        def __new__(cls, *values):
            return super().__new__(cls, values)

    def epilogue(outputs=()):
        return lambda function: setattr(function, "outputs", outputs) or function

    def stub(name, **content):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    arch = SimpleNamespace(rcp_approx=lambda x: 1.0 / x, fmax=torch.maximum)
    fast = SimpleNamespace(exp2=lambda x, fastmath: torch.exp2(x))
    stub("cutlass", cute=stub("cutlass.cute", arch=arch, math=fast), select_=torch.where)
    stub("quack")
    stub("quack.epilogue", gemm_epilogue=epilogue)
    stub("quack.epilogue.math", F2=Pair)
    monkeypatch.delitem(sys.modules, "lerope.model.cute_products", raising=False)
    monkeypatch.setattr(lerope.model, "cute_products", None, raising=False)
    yield importlib.import_module("lerope.model.cute_products")
    sys.modules.pop("lerope.model.cute_products", None)


def test_epilogues_compute_gelu_and_its_slope(cute_products):
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    both, alone = cute_products.gelu_and_slope(x), cute_products.gelu(x)
    assert (both.keys(), alone.keys()) == ({"D", "activated"}, {"activated"})
    assert torch.equal(both["activated"], alone["activated"])
    # The tail of the normal distribution is off by at most 7.5e-8.
    assert ((both["activated"] - gelu(x)).abs() <= 7.6e-8 * x.abs()).all()
    assert ((both["D"] - slope(x)).abs() <= 7.6e-8).all()
    assert cute_products.gelu(torch.zeros(1))["activated"] == 0.0


def test_epilogues_take_pairs(cute_products):
    a, b = torch.tensor([-1.5, 0.3]), torch.tensor([2.5, -7.0])
    for function in (cute_products.gelu_and_slope, cute_products.gelu):
        pair, single = function((a, b)), [function(each) for each in (a, b)]
        for name, values in pair.items():
            assert all(torch.equal(value, each[name]) for value, each in zip(values, single, strict=True))


def test_epilogues_say_what_they_give(cute_products):
    c = cute_products
    assert [f.outputs for f in (c.product, c.gelu_and_slope, c.gelu, c.scaled)] == [(), *[("activated",)] * 2, ()]
    assert c.product(3.0) == {"D": 3.0}
    assert c.scaled(3.0, 2.0) == {"D": 6.0}
