"""The MLP as one operator, and the formula of its kernels. Torch plays QuACK, which needs a GPU."""

import importlib
import itertools
import sys
from collections import Counter
from types import MethodType, ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import lerope
from lerope.core.ladder import ModelConfig
from lerope.model.init import init_weights
from lerope.model.kernels.fused_mlp import fused_mlp, fused_mlp_backward, mlp
from lerope.model.kernels.layers import FastLinear, FastMLP, use_layers
from lerope.model.kernels.products import linear
from lerope.model.transformer import Transformer
from tests.model.kernels.played_quack import (
    APART,
    BACK,
    FUSED,
    Stop,
    X,
    check_alone,
    check_sum,
    close,
    gelu,
    gradients,
    is_rounded,
    make,
    matrices,
    of_module,
    random,
    saved_by,
    slope,
)

CONFIG = ModelConfig(num_layers=2, num_heads=2, head_dim=8, vocab_size=48)


def formula(x, up, down):
    return gelu(x @ up.t()) @ down.t()


@pytest.mark.parametrize("lead", [(5,), (2, 3), (2, 1, 3)], ids=str)
def test_the_mlp_has_the_values_and_gradients_of_its_formula(kernel, lead):
    inputs = (random(*lead, 8), *matrices())
    close(gradients(mlp, *inputs), gradients(formula, *inputs))
    assert kernel.calls == FUSED + BACK


LEARN = [learn for learn in itertools.product([True, False], repeat=3) if any(learn)]


@pytest.mark.parametrize("learn", LEARN, ids=str)
def test_what_is_frozen_in_the_mlp_takes_no_product(kernel, learn):
    """The gradient of what lies between both matrices is needed for x and for the first of them alone."""
    inputs = [random(5, 8), *matrices()]
    counts = check_alone(mlp, inputs, learn)
    between = learn[0] or learn[1]
    assert counts[1] == sum(learn) + between
    assert kernel.calls == FUSED + Counter(scaled=between, product=learn[0]) + FUSED + BACK
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


def kept(x, up, down):
    """What the backward pass reads: the input, GELU, its slopes and the weights in the dtype of x."""
    _, activated, slopes, *_ = fused_mlp(x, up, down, True)
    return x, activated, slopes, up.to(x.dtype), down.to(x.dtype)


@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=3)], ids=str)
def test_gradients_of_the_mlp_that_are_not_needed_are_empty(kernel, needs):
    arguments = (random(5, 8, seed=3), *kept(random(5, 8), *matrices()), torch.float64, torch.float64)
    got = fused_mlp_backward(*arguments, list(needs))
    want = fused_mlp_backward(*arguments, [True] * 3)
    for each, need, full in zip(got, needs, want, strict=True):
        assert torch.equal(each, full if need else random(0))
    torch.library.opcheck(torch.ops.lerope.fused_mlp_backward.default, (*arguments, list(needs)))


def test_slopes_are_kept_only_for_a_backward_pass(kernel):
    x, (up, down) = random(5, 8), matrices()
    out, activated, slopes, *copies = fused_mlp(x, up, down, True)
    close([out, activated, slopes], [formula(x, up, down), gelu(x @ up.t()), slope(x @ up.t())])
    other, same, *nothing = fused_mlp(x, up, down, False)
    assert not any(t.numel() for t in (*copies, *nothing))
    assert (len(copies), len(nothing)) == (2, 3)
    assert torch.equal(out, other)
    assert torch.equal(activated, same)
    kernel.calls.clear()
    mlp(x, up, down)
    with torch.no_grad():
        mlp(x, up.requires_grad_(), down)
    with torch.inference_mode():
        mlp(x, up, down)
    assert kernel.calls == Counter(gelu=3, product=3)
    mlp(x, up, down)
    assert kernel.calls == Counter(gelu=3, product=3) + FUSED


def test_the_mlp_keeps_its_inputs_gelu_and_slopes(kernel):
    inputs = [t.requires_grad_() for t in (random(5, 8), *matrices())]
    saved = saved_by(mlp, *inputs)
    assert [tuple(t.shape) for t in saved] == [(5, 8), (5, 24), (5, 24), (24, 8), (8, 24)]
    assert [saved[i].data_ptr() for i in (0, 3, 4)] == [t.data_ptr() for t in inputs]


def test_the_mlp_is_registered_as_torch_wants_it(kernel):
    x, up, down = (t.requires_grad_() for t in (random(5, 8), *matrices()))
    torch.library.opcheck(torch.ops.lerope.fused_mlp.default, (x, up, down, True))
    plain = [t.detach() for t in (x, up, down)]
    torch.library.opcheck(torch.ops.lerope.fused_mlp.default, (*plain, False))
    torch.library.opcheck(torch.ops.lerope.fused_mlp.default, (x, plain[1], down, True))
    torch.autograd.gradcheck(mlp, (x, up, down), check_undefined_grad=False)


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
@pytest.mark.parametrize("dtypes", [(torch.float64,) * 3, (torch.bfloat16, *[torch.float32] * 2)], ids=str)
def test_tensors_in_another_layout_lie_as_fakes_say(kernel, which, dtypes):
    """Copies of weights, and gradients."""
    inputs = [t.to(dtype) for t, dtype in zip((random(5, 8), *matrices()), dtypes, strict=True)]
    inputs[which] = inputs[which].t().contiguous().t()
    operators = torch.ops.lerope
    torch.library.opcheck(operators.fused_mlp.default, (*inputs, True), test_utils="test_faketensor")
    arguments = (random(5, 8, seed=3, dtype=dtypes[0]), *kept(*inputs), *dtypes[1:], [True] * 3)
    torch.library.opcheck(operators.fused_mlp_backward.default, arguments, test_utils="test_faketensor")


WIDE = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]


def wide_inputs(dtypes=WIDE[0]):
    """50 tokens in 16 bits, and matrices in others."""
    return random(50, 8, dtype=torch.bfloat16), *(t.to(dtype) for t, dtype in zip(matrices(), dtypes, strict=True))


def operands(x, up, down, grad):
    """What the gradients of both matrices are products of."""
    _, activated, slopes, _, down = kept(x, up, down)
    return ((grad @ down) * slopes, x), (grad, activated)


def check_gradients(grads, pairs, dtypes):
    for got, pair, dtype in zip(grads, pairs, dtypes, strict=True):
        if dtype == torch.float32:
            check_sum(got, *pair)
        else:
            assert torch.equal(got, pair[0].t() @ pair[1])


@pytest.mark.parametrize("dtypes", WIDE, ids=str)
def test_gradients_of_weights_in_float32_are_sums_in_float32(kernel, dtypes):
    """The rest is what it is for weights in 16 bits, bit by bit."""
    inputs = wide_inputs(dtypes)
    out, x_grad, *grads = gradients(mlp, *inputs)
    assert kernel.calls == FUSED + BACK
    narrow = gradients(mlp, *(t.bfloat16() for t in inputs))
    assert torch.equal(out, narrow[0])
    assert torch.equal(x_grad, narrow[1])
    check_gradients(grads, operands(*inputs, random(50, 8, dtype=torch.bfloat16, seed=9)), dtypes)
    for got, other in zip(grads, narrow[2:], strict=True):
        assert is_rounded(other)
        assert torch.equal(got.bfloat16(), other)


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtypes", WIDE, ids=str)
def test_an_mlp_in_autocast_has_gradients_in_float32(installed, dtypes, compiled, within):
    """Also if the backward pass is in autocast as well, where torch would compute in 16 bits again."""
    torch._dynamo.reset()
    module = make(dtype=torch.float32)
    module.up.to(dtypes[0])
    module.down.to(dtypes[1])
    x, grad = (random(5, 10, 16, dtype=torch.bfloat16, seed=seed) for seed in (0, 9))
    function = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    leaf = x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = function(leaf)
    with torch.autocast("cpu", torch.bfloat16, enabled=within):
        out.backward(grad)
    assert installed.calls == FUSED + BACK
    assert (out.dtype, leaf.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    weights = [p.detach() for p in module.parameters()]
    pairs = operands(x.detach().flatten(0, 1), *weights, grad.flatten(0, 1))
    check_gradients([p.grad for p in module.parameters()], pairs, dtypes)


@pytest.mark.parametrize("dtypes", WIDE, ids=str)
def test_the_mlp_keeps_the_copies_that_it_multiplied_with(kernel, dtypes):
    """And not what they are copies of; a weight in 16 bits is kept itself."""
    x, *weights = wide_inputs(dtypes)
    saved = saved_by(mlp, x, *(t.requires_grad_() for t in weights))
    assert {t.dtype for t in saved} == {torch.bfloat16}
    assert [tuple(t.shape) for t in saved] == [(50, 8), (50, 24), (50, 24), (24, 8), (8, 24)]
    copies = fused_mlp(x, *weights, True)[3:]
    for got, weight, copy in zip(saved[3:], weights, copies, strict=True):
        narrow = weight.dtype == torch.bfloat16
        assert torch.equal(got, weight.bfloat16())
        assert (got.data_ptr() == weight.data_ptr()) == narrow
        assert copy.numel() == (0 if narrow else weight.numel())


def test_a_compiled_mlp_keeps_the_copies_that_it_multiplied_with(quack):
    torch._dynamo.reset()
    compiled = torch.compile(make(dtype=torch.float32), fullgraph=True, backend="aot_eager")
    saved = saved_by(compiled, random(50, 16, dtype=torch.bfloat16))
    assert {t.dtype for t in saved} == {torch.bfloat16}
    assert sorted(tuple(t.shape) for t in saved) == [(16, 64), (50, 16), (50, 64), (50, 64), (64, 16)]


@pytest.mark.parametrize("learn", LEARN, ids=str)
def test_what_is_frozen_in_an_mlp_in_float32_takes_no_product(kernel, learn):
    counts = check_alone(mlp, wide_inputs(), learn)
    between = learn[0] or learn[1]
    assert counts[1] == sum(learn) + between
    assert kernel.calls == FUSED + Counter(scaled=between, product=learn[0]) + FUSED + BACK


@pytest.mark.parametrize("needs", [*itertools.product([True, False], repeat=3)], ids=str)
@pytest.mark.parametrize("dtypes", WIDE, ids=str)
def test_gradients_in_float32_that_are_not_needed_are_empty(kernel, dtypes, needs):
    inputs, grad = wide_inputs(dtypes), random(50, 8, dtype=torch.bfloat16, seed=3)
    arguments = (grad, *kept(*inputs), *dtypes, list(needs))
    for got, each, need in zip(fused_mlp_backward(*arguments), inputs, needs, strict=True):
        assert (got.dtype, got.shape) == (each.dtype, each.shape if need else (0,))
    torch.library.opcheck(torch.ops.lerope.fused_mlp_backward.default, arguments)


@pytest.mark.parametrize("dtypes", WIDE, ids=str)
def test_an_mlp_in_float32_is_registered_as_torch_wants_it(kernel, dtypes):
    x, up, down = (t.requires_grad_() for t in wide_inputs(dtypes))
    plain = [t.detach() for t in (x, up, down)]
    for arguments in ((x, up, down, True), (*plain, False), (x, plain[1], down, True), (plain[0], up, plain[2], True)):
        torch.library.opcheck(torch.ops.lerope.fused_mlp.default, arguments)


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
    assert installed.calls == FUSED + BACK
    assert [t.dtype for t in (out, *grads)] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert (out.double() - want(module, x)).norm() < 0.01 * out.double().norm()


def test_an_mlp_asks_what_quack_can_take(installed):
    make(dtype=torch.float32)(X.float())
    assert not installed.calls
    config = ModelConfig(num_layers=1, num_heads=1, head_dim=10)
    assert FastMLP(config).bfloat16()(random(2, 10, dtype=torch.bfloat16)).shape == (2, 10)
    assert not installed.calls


def test_another_activation_is_another_operator(quack):
    module = make("relu2")
    close([module(X)], [(X @ module.up.weight.t()).clamp(min=0).square() @ module.down.weight.t()])
    assert quack.calls == APART


def test_kernels_that_are_not_wanted(quack):
    module = make()
    use_layers(module, fast=False)
    close([module(X)], [want(module)])
    assert not quack.calls


@pytest.mark.parametrize("name", ["up", "down"])
def test_a_forward_hook_sees_and_changes_what_its_layer_gives(quack, name):
    module = make()
    handle = getattr(module, name).register_forward_hook(lambda layer, args, out: 2 * out)
    inner = (2 if name == "up" else 1) * (X @ module.up.weight.t())
    close([module(X)], [(2 if name == "down" else 1) * gelu(inner) @ module.down.weight.t()])
    assert quack.calls == APART
    handle.remove()
    close([module(X)], [want(module)])
    assert quack.calls == APART + FUSED


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


class Adapted(FastLinear):
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
    layer.forward = MethodType(lambda self, x: FastLinear.forward(self, x) + 1.0, layer)
    close([module(X)], [expected])
    assert quack.calls == APART
    del layer.forward
    close([module(X)], [want(module)])
    assert quack.calls == APART + FUSED


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
    assert quack.calls == FUSED + BACK
    quack.calls.clear()
    got = of_module(torch.compile(module, fullgraph=True, backend=backend), X)
    assert quack.calls == FUSED + BACK
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
    assert installed.calls == (FUSED if learns else Counter(gelu=1, product=1))
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
    assert quack.calls == FUSED + BACK + FUSED + BACK


def of_passes(recompute):
    """What both passes of a model call: two layers of qkv, out and an MLP, and the head's logits."""
    forward, backward = (APART + part + APART + part for part in (FUSED, BACK))
    return forward + Counter(product=1) + backward + (forward if recompute else Counter())


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_by_quack_equals_one_without(quack, recompute):
    """Loss and all gradients."""
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
    assert quack.calls == of_passes(recompute)
    close(*results, rtol=1e-6)  # tables of the rotation are float32


def of_model(model, tokens, name, autocast):
    """The loss, and gradients of all parameters."""
    model.use_kernel(name)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total = model(tokens, targets=tokens)
    return [total.detach(), *torch.autograd.grad(total, list(model.parameters()))]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_in_16_bits_by_quack_is_near_one_without(installed, dtype, recompute):
    """In autocast with weights in float32, whose gradients are not rounded; or with all of it in bfloat16."""
    tokens = torch.randint(48, (4, 32), generator=torch.Generator().manual_seed(0))
    model = Transformer(CONFIG, lerope.LeRoPE(8))
    init_weights(model, 0)
    exact = of_model(model, tokens, "reference", False)
    assert not installed.calls
    model.to(dtype).recompute = recompute
    names = ["loss", *(name for name, _ in model.named_parameters())]
    with_quack, without = (of_model(model, tokens, name, dtype == torch.float32) for name in ("auto", "reference"))
    assert installed.calls == of_passes(recompute)
    for name, got, other, full in zip(names, with_quack, without, exact, strict=True):
        assert got.dtype == other.dtype
        ours, torchs = ((t.double() - full.double()).norm() / full.double().norm() for t in (got, other))
        # Gradients of frequencies are small differences of large sums.
        assert ours <= 1.5 * torchs + (0.05 if name == "encoding.alpha" else 2**-8), (name, float(ours), float(torchs))
        if "blocks" in name and got.ndim == 2:
            assert got.dtype == dtype
            assert is_rounded(got) == (dtype == torch.bfloat16), name


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
    monkeypatch.delitem(sys.modules, "lerope.model.kernels.cute_products", raising=False)
    monkeypatch.setattr(lerope.model.kernels, "cute_products", None, raising=False)
    yield importlib.import_module("lerope.model.kernels.cute_products")
    sys.modules.pop("lerope.model.kernels.cute_products", None)


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
