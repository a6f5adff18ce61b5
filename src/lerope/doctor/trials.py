"""Small trials of everything that computes in training: values and gradients against formulas in float64.

An error is the norm of a difference over the norm of the right result, the largest over outputs and gradients. Rounding
to bfloat16 moves a number by at most 2^-8 of itself, and a tensor by about 0.0017 of its norm. An error of 1 % is not
rounding.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lerope.core.ladder import ModelConfig
from lerope.core.recipe import Kernel
from lerope.model.attention import Backend, DocumentMask
from lerope.model.kernels.layers import FastHead, FastLinear, FastMLP, FastNorm
from lerope.rotary.rotation import Rotation

Function = Callable[..., Sequence[Tensor]]

_CONFIG = ModelConfig(num_layers=1, num_heads=4, head_dim=64, vocab_size=512)
_ROWS, _LENGTH = 2, 128
_BOTH = (torch.float32, torch.bfloat16)
# How far one rounding moves a number at most. In float32, sums and phases of a hundred radians cost six more bits.
_ROUNDING = {torch.float32: 64 * 2.0**-24, torch.bfloat16: 2.0**-8}


class Outcome(NamedTuple):
    """How far off a trial was, and what rounding explains."""

    dtype: str
    error: float
    tolerance: float

    @property
    def is_right(self) -> bool:
        """Whether rounding explains the error; nothing explains NaN."""
        return self.error <= self.tolerance


def rotary(kernel: Kernel, device: torch.device) -> list[Outcome]:
    """Queries and keys rotated by learned frequencies, as is and after their norms."""
    config, draw = _CONFIG, _Draw(device)
    positions = torch.arange(_LENGTH, device=device).expand(_ROWS, -1)
    bands = torch.arange(config.head_dim // 2, device=device)
    theta = 10_000.0 ** (-2 * bands / config.head_dim) * (0.5 - 3.5 * bands / len(bands)).exp()

    def turned(q: Tensor, k: Tensor, theta: Tensor) -> Sequence[Tensor]:
        return Rotation(positions, theta, length=_LENGTH, kernel=kernel)(q, k)

    def turned_formula(q: Tensor, k: Tensor, theta: Tensor) -> Sequence[Tensor]:
        phases = positions[..., None, None] * theta
        cos, sin = phases.cos(), phases.sin()
        halves = (x.chunk(2, -1) for x in (q, k))
        return [torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in halves]

    def normed(q: Tensor, k: Tensor, theta: Tensor, *gains: nn.Parameter) -> Sequence[Tensor]:
        norms = [nn.RMSNorm(config.head_dim, eps=config.norm_eps) for _ in gains]
        for norm, gain in zip(norms, gains, strict=True):
            norm.weight = gain
        return Rotation(positions, theta, length=_LENGTH, kernel=kernel).after_norm(q, k, *norms)

    def normed_formula(q: Tensor, k: Tensor, theta: Tensor, q_gain: Tensor, k_gain: Tensor) -> Sequence[Tensor]:
        return turned_formula(_normed(q, q_gain), _normed(k, k_gain), theta)

    q, k = draw(_ROWS, _LENGTH, config.num_heads, config.head_dim), draw(_ROWS, _LENGTH, 2, config.head_dim)
    gains = [1 + 0.1 * draw(config.head_dim) for _ in range(2)]

    def error(dtype: torch.dtype) -> float:
        plain = _error(turned, turned_formula, q.to(dtype), k.to(dtype), theta)
        after = _error(normed, normed_formula, q.to(dtype), k.to(dtype), theta, *gains)
        return float(torch.tensor([plain, after]).max())  # max keeps a NaN

    return _outcomes(error, _BOTH, num_roundings=1)


def product(device: torch.device) -> list[Outcome]:
    """A matrix product of tokens and a weight, and its gradients."""
    config, draw = _CONFIG, _Draw(device)
    module = FastLinear(config.width, config.mlp_width)

    def run(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
        return (functional_call(module, {"weight": weight}, (x,)),)

    def formula(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
        return (x @ weight.t(),)

    x, weight = draw(_ROWS, _LENGTH, config.width), draw(config.mlp_width, config.width)
    return _outcomes(lambda dtype: _error(run, formula, x.to(dtype), weight.to(dtype)), _dtypes(device), 1)


def mlp(device: torch.device) -> list[Outcome]:
    """Two matrices with GELU between them."""
    config, draw = _CONFIG, _Draw(device)
    module = FastMLP(config)

    def run(x: Tensor, up: Tensor, down: Tensor) -> Sequence[Tensor]:
        return (functional_call(module, {"up.weight": up, "down.weight": down}, (x,)),)

    def formula(x: Tensor, up: Tensor, down: Tensor) -> Sequence[Tensor]:
        hidden = x @ up.t()
        return ((0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))) @ down.t(),)

    x = draw(_ROWS, _LENGTH, config.width)
    up, down = draw(config.mlp_width, config.width) / 16, draw(config.width, config.mlp_width) / 32
    return _outcomes(lambda dtype: _error(run, formula, *(t.to(dtype) for t in (x, up, down))), _dtypes(device), 2)


def norm(device: torch.device) -> list[Outcome]:
    """A branch added to the residual stream, and the RMS norm of the sum."""
    config, draw = _CONFIG, _Draw(device)
    module = FastNorm(config.width, eps=config.norm_eps)

    def run(x: Tensor, branch: Tensor, gain: nn.Parameter) -> Sequence[Tensor]:
        module.weight = gain
        return module.of_sum(x, branch)

    def formula(x: Tensor, branch: Tensor, gain: Tensor) -> Sequence[Tensor]:
        return x + branch, _normed(x + branch, gain)

    x, branch = (draw(_ROWS, _LENGTH, config.width) for _ in range(2))
    gain = 1 + 0.1 * draw(config.width)
    return _outcomes(lambda dtype: _error(run, formula, x.to(dtype), branch.to(dtype), gain), _BOTH, 2)


def attention(backend: Backend, device: torch.device) -> list[Outcome]:
    """Causal attention over rows of several documents."""
    config, draw = _CONFIG, _Draw(device)
    length = 2 * _LENGTH
    starts = torch.zeros(_ROWS, length, dtype=torch.int64)
    starts[0, [1, 40, 47, 130]] = 1  # one document fills the other row
    documents = starts.cumsum(1).to(device)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Sequence[Tensor]:
        return (DocumentMask(documents, backend).attend(q, k, v),)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Sequence[Tensor]:
        logits = torch.einsum("rshd,rthd->rhst", q, k) / config.head_dim**0.5
        visible = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
        return (torch.einsum("rhst,rthd->rshd", logits.masked_fill(~visible, -torch.inf).softmax(-1), v),)

    qkv = [draw(_ROWS, length, config.num_heads, config.head_dim) for _ in range(3)]
    return _outcomes(lambda dtype: _error(run, formula, *(t.to(dtype) for t in qkv)), _dtypes(device), 2)


def head(device: torch.device) -> list[Outcome]:
    """Logits and the sum of their cross-entropy."""
    config, draw = _CONFIG, _Draw(device)
    module = FastHead(config.width, config.vocab_size)
    targets = torch.arange(-8, _ROWS * _LENGTH - 8, device=device).clamp(min=-1)

    def run(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
        return (functional_call(module, {"weight": weight}, (x, targets)),)

    def formula(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
        logits = x @ weight.t()
        losses = logits.logsumexp(-1) - logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        return (losses[targets >= 0].sum(),)

    x, weight = draw(_ROWS * _LENGTH, config.width), draw(config.vocab_size, config.width) / 16
    return _outcomes(lambda dtype: _error(run, formula, x.to(dtype), weight.to(dtype)), _dtypes(device), 2)


def compile_here() -> None:
    """In a separate process, on the device given as its first argument: prints how far off a compiled function is.

    Errors are printed too, on one or more lines, with exit code 1.
    """
    from torch._inductor import list_options

    def function(x: Tensor) -> Tensor:
        return x.sin() * 2 + 1

    # One plain kernel shows that the compiler works. Probing its vector instructions would take torch ten more seconds.
    plain = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
    options: dict[str, Any] = {name: value for name, value in plain.items() if name in list_options()}
    x = torch.linspace(-3, 3, 64, device=sys.argv[1])
    try:
        print((torch.compile(function, options=options)(x) - function(x)).abs().max().item())
    except Exception as problem:
        cause = getattr(problem, "inner_exception", problem)  # torch.compile wraps what went wrong
        print(f"{type(cause).__name__}: {str(cause).strip()}")
        sys.exit(1)


class _Draw:
    """Normal random numbers, float32, the same on every device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.generator = device, torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device)


def _dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """The dtypes to try matrix products in: on a GPU, whose float32 may be TF32 by choice, training's."""
    return _BOTH if device.type == "cpu" else (torch.bfloat16,)


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + _CONFIG.norm_eps).rsqrt() * gain


def _outcomes(
    error: Callable[[torch.dtype], float], dtypes: Sequence[torch.dtype], num_roundings: int
) -> list[Outcome]:
    """Errors in each dtype, for results rounded `num_roundings` times in sequence."""
    names = {torch.float32: "float32", torch.bfloat16: "bf16"}
    return [Outcome(names[dtype], error(dtype), num_roundings * _ROUNDING[dtype]) for dtype in dtypes]


def _error(run: Function, formula: Function, *inputs: Tensor) -> float:
    """The error of outputs and all inputs' gradients; the formula gets the inputs in float64."""
    leaves = [nn.Parameter(x.detach().clone()) for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    got, want = run(*leaves), formula(*exact)
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(out.shape, generator=generator).to(out) for out in got]
    got = [*got, *torch.autograd.grad(got, leaves, upstream)]
    want = [*want, *torch.autograd.grad(want, exact, [each.double() for each in upstream])]
    errors = [(a.detach().double() - b.detach()).norm() / b.detach().norm() for a, b in zip(got, want, strict=True)]
    return float(torch.stack(errors).max())
