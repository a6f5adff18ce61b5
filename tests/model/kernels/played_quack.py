"""Torch plays QuACK, which needs a GPU: its kernels, and what tests of layers that call them share."""

import math
from collections import Counter
from dataclasses import dataclass

import torch

from lerope.core.ladder import ModelConfig
from lerope.model.kernels import products
from lerope.model.kernels.layers import use_layers
from lerope.model.kernels.packages import import_obstacle
from lerope.model.transformer import MLP


@dataclass(frozen=True)
class Config:
    """The part of QuACK's GemmConfig that is set."""

    tile_m: int
    tile_n: int
    pingpong: bool
    cluster_m: int
    cluster_n: int
    is_dynamic_persistent: bool


def gelu(x):
    return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))


def slope(x):
    return 0.5 * torch.special.erfc(-x / math.sqrt(2)) + x * (-x.square() / 2).exp() / math.sqrt(2 * math.pi)


class Played:
    """lerope.model.kernels.cute_products as torch computes it, and a count of what was called."""

    def __init__(self):
        self.calls = Counter()
        self.configs = []

    def note(self, name, how, *factors, **shapes):
        assert how.pop("tuned") is False
        assert all(t.is_contiguous() or t.t().is_contiguous() for t in factors)
        self.calls[name] += 1
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


def forget():
    import_obstacle.cache_clear()
    products._config.cache_clear()


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


def saved_by(function, *args):
    """What a call saves for the backward pass, in the order in which it does."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        function(*args)
    return saved


def close(got, want, rtol=1e-11):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


def check_sum(got, rows, columns):
    """got is rows^T columns in float32, summed over tokens in 16 bits and rounded to no 16 bits itself."""
    assert got.dtype == torch.float32
    assert (rows.dtype, columns.dtype) == (torch.bfloat16, torch.bfloat16)
    exact = rows.double().t() @ columns.double()
    assert (got.double() - exact).abs().max() <= 1e-6 * exact.abs().max()
    assert not is_rounded(got)


def is_rounded(x):
    """Whether nearly all numbers fit into bfloat16."""
    return (x == x.bfloat16()).double().mean() > 0.9


def empty(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


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


# What an MLP calls as one operator, forwards and backwards; and two matrices, or one in both passes.
FUSED, BACK = Counter(gelu_and_slope=1, product=1), Counter(scaled=1, product=1)
APART = Counter(product=2)


class Stop(torch.autograd.Function):
    """Reads a tensor and has no gradient for it, as functions of one's own may."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def make(activation="gelu", dtype=torch.float64):
    torch.manual_seed(0)
    module = MLP(ModelConfig(num_layers=1, num_heads=2, head_dim=8, activation=activation)).to(dtype)
    use_layers(module, fast=True)
    return module


X = random(2, 3, 16)


def matrices(width=8, mlp_width=24):
    return random(mlp_width, width, seed=1), random(width, mlp_width, seed=2)
