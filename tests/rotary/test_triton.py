"""The fused kernels against float64: all layouts, all gradients. Without a GPU they run in Triton's interpreter."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

import lerope
from tests.rotary.reference import rotated

pytest.importorskip("triton")

from lerope.rotary import operators, triton_launch

pytestmark = pytest.mark.usefixtures("_rounds_as_a_gpu")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-5
LENGTH = 20
"""Positions lie below this. A phase of 20 rad is rounded by 20 * 2^-24 = 1.2e-6, a bound for errors in float32."""

# Query heads, key heads (None: no keys), head_dim, rotary_dim, sets of frequencies.
SHAPES = {
    "plain": (4, 4, 32, 32, 1),
    "grouped queries": (4, 2, 32, 32, 1),
    "odd heads, partial": (3, 3, 64, 48, 1),
    "odd bands": (5, 1, 24, 20, 1),
    "odd rest": (4, 2, 27, 12, 1),
    "blocks of four heads": (12, 2, 16, 16, 1),
    "a quarter": (2, 2, 80, 20, 1),
    "sets, odd bands": (4, 2, 40, 40, 2),
    "sets, partial": (6, 2, 32, 16, 2),
    "sets, one for each head": (3, 3, 16, 16, 3),
    "sets, blocks of query heads": (20, 5, 8, 8, 5),
    "queries alone": (2, None, 64, 64, 1),
    "one head of one band": (1, 1, 2, 2, 1),
}


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN, so that an element that nobody writes is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(9, device=DEVICE).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Case:
    """Inputs of one call, each a leaf, and what to multiply the outputs with for a loss."""

    def __init__(self, shape, norm=False, dtype=torch.float32, lead=(2, 9), learns=True, seed=0):
        torch.manual_seed(seed)
        q_heads, k_heads, self.head_dim, rotary_dim, sets = shape
        heads = [q_heads] if k_heads is None else [q_heads, k_heads]
        self.inputs = [torch.randn(*lead, count, self.head_dim).to(DEVICE, dtype).requires_grad_() for count in heads]
        bands = rotary_dim // 2
        self.theta = torch.rand((bands,) if sets == 1 else (sets, bands)).to(DEVICE).requires_grad_(learns)
        self.positions = torch.randint(0, LENGTH, lead).to(DEVICE)
        self.gains = [torch.rand(self.head_dim).add(0.5).to(DEVICE).requires_grad_() for _ in heads] if norm else []
        self.weights = [torch.randn(x.shape).to(DEVICE, dtype) for x in self.inputs]

    @property
    def leaves(self) -> list[Tensor]:
        return [t for t in (*self.inputs, self.theta, *self.gains) if t.requires_grad]

    def rotation(self, layout="half", **options) -> lerope.Rotation:
        options = {"kernel": "triton", **options}
        return lerope.Rotation(self.positions, self.theta, layout, self.head_dim, **options)

    def results(self, rotation: lerope.Rotation, inputs: list[Tensor] | None = None) -> list[Tensor]:
        """Outputs, and the gradients of all leaves."""
        with poisoned():
            outs = turned(rotation, self.inputs if inputs is None else inputs, self.gains)
            return [*outs, *torch.autograd.grad(outs, self.leaves, self.weights)]

    def expected(self, layout="half") -> list[Tensor]:
        """The same in float64, by the formula."""
        inputs, (theta,), gains = (self._wide(ts) for ts in (self.inputs, [self.theta], self.gains))
        outs = []
        for x, gain in zip(inputs, gains or [None, None], strict=False):
            scale = 1.0 if gain is None else gain / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
            outs.append(formula(x * scale, self.positions, per_head(theta, x.shape[-2]), layout))
        leaves = [t for t in (*inputs, theta, *gains) if t.requires_grad]
        return [*outs, *torch.autograd.grad(outs, leaves, [w.double() for w in self.weights])]

    def torque(self, outs: list[Tensor], layout="half") -> Tensor:
        """The gradient of the frequencies in float64, if the outputs were exactly these."""
        theta = self.theta.detach().double()
        bands, total = theta.shape[-1], torch.zeros_like(theta)
        first, second = bands_of(layout, bands)
        for out, weight in zip(outs, self.weights, strict=True):
            (a, b), (grad_a, grad_b) = ((t.double()[..., first], t.double()[..., second]) for t in (out, weight))
            turns = (grad_b * a - grad_a * b) * self.positions[..., None, None]
            sets = turns.flatten(0, -3).sum(0).unflatten(0, (theta.numel() // bands, -1)).sum(1)
            total += sets.view(theta.shape)
        return total

    @staticmethod
    def _wide(tensors: list[Tensor]) -> list[Tensor]:
        return [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def formula(x: Tensor, positions: Tensor, theta: Tensor, layout: str) -> Tensor:
    """Band m of every head turned by position * theta[m], element by element, which a GPU has room for."""
    bands = theta.shape[-1]
    phases = positions.double()[..., None, None] * theta
    first, second = bands_of(layout, bands)
    a, b = x[..., first], x[..., second]
    out = x.clone()
    out[..., first] = a * phases.cos() - b * phases.sin()
    out[..., second] = a * phases.sin() + b * phases.cos()
    return out


def bands_of(layout: str, bands: int) -> tuple[slice, slice]:
    """Where the first and the second coordinates of all bands lie in a head."""
    if layout == "interleaved":
        return slice(0, 2 * bands, 2), slice(1, 2 * bands, 2)
    return slice(bands), slice(bands, 2 * bands)


def turned(rotation: lerope.Rotation, inputs: list[Tensor], gains: list[Tensor]) -> list[Tensor]:
    if gains:
        return [*rotation.after_norm(*inputs, *(norm_with(gain) for gain in gains))]
    return [rotation.turn(inputs[0])] if len(inputs) == 1 else [*rotation(*inputs)]


def norm_with(gain: Tensor) -> nn.RMSNorm:
    norm = nn.RMSNorm(len(gain), eps=EPS)
    del norm.weight
    norm.weight = gain  # a leaf of the test, not a parameter
    return norm


def per_head(theta: Tensor, heads: int) -> Tensor:
    """Grouped queries turn like the key head they read."""
    return theta if theta.ndim == 1 else theta.repeat_interleave(heads // len(theta), 0)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm())


def with_norms(names) -> list[tuple[str, bool]]:
    """A norm is always of queries and keys."""
    return [(name, norm) for name in names for norm in (False, True) if not (norm and SHAPES[name][1] is None)]


# Where layouts differ is how a pair is read and written: the interleaved one is quickly tried on the oddest heads.
ODDEST = ("odd rest", "sets, odd bands", "one head of one band")


@pytest.mark.parametrize(
    ("name", "norm", "layout"),
    [
        pytest.param(name, norm, layout, marks=[pytest.mark.slow] * (layout == "interleaved" and name not in ODDEST))
        for name, norm in with_norms(SHAPES)
        for layout in ("half", "interleaved")
    ],
)
def test_float32_values_and_all_gradients_equal_the_formula(name, norm, layout):
    """Each program of the backward pass takes several blocks of tokens, and there are more sums than one tile takes."""
    case = Case(SHAPES[name], norm)
    for got, want in zip(case.results(case.rotation(layout)), case.expected(layout), strict=True):
        assert got.shape == want.shape
        assert error(got, want) < 2e-6


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "norm"), with_norms(["grouped queries", "sets, partial", "odd rest", "a quarter", "queries alone"])
)
def test_16_bits_cost_one_rounding_of_what_is_16_bits(name, norm, dtype, layout):
    """The gradient of the frequencies is that of the rounded outputs, which are what attention sees."""
    case = Case(SHAPES[name], norm, dtype)
    rounding = torch.finfo(dtype).eps / 2
    got, want = case.results(case.rotation(layout, length=LENGTH)), case.expected(layout)
    number = len(case.inputs)
    for a, b in zip(got[: 2 * number], want[: 2 * number], strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1.01 * rounding, atol=2e-5)
    theta, *gains = got[2 * number :]
    assert error(theta, case.torque(got[:number], layout)) < 3e-6
    assert error(theta, want[2 * number]) < 2 * rounding
    for a, b in zip(gains, want[2 * number + 1 :], strict=True):
        assert error(a, b) < 3e-6  # computed from inputs, which are exact


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("name", ["odd heads, partial", "odd rest", "a quarter", "sets, partial"])
def test_what_does_not_turn_stays_as_it_is(name, layout):
    case = Case(SHAPES[name], dtype=torch.bfloat16)
    rotary_dim = SHAPES[name][3]
    with poisoned():
        outs = turned(case.rotation(layout), case.inputs, case.gains)
        grads = torch.autograd.grad(outs, case.inputs, case.weights)
    for got, want in zip((*outs, *grads), (*case.inputs, *case.weights), strict=True):
        assert torch.equal(got[..., rotary_dim:], want[..., rotary_dim:])


@pytest.mark.parametrize(("name", "norm"), with_norms(["grouped queries", "sets, partial"]))
@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_of_frequencies_in_bf16_is_no_worse_than_the_reference_s(name, norm, seed):
    """Within 5 %, because both start from rounded outputs; without a norm from the same."""
    case = Case(SHAPES[name], norm, torch.bfloat16, (2, 40), seed=seed)
    want = case.expected()[2 * len(case.inputs)]  # after outputs and the gradients of inputs
    errors = {}
    for kernel in ("triton", "reference"):
        outs = turned(case.rotation(kernel=kernel), case.inputs, case.gains)
        (got,) = torch.autograd.grad(outs, case.theta, [w.to(o.dtype) for w, o in zip(case.weights, outs, strict=True)])
        errors[kernel] = error(got, want)
    assert errors["triton"] <= 1.05 * errors["reference"], errors


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    bands=st.integers(1, 9),
    rest=st.integers(0, 5),
    own=st.booleans(),
    norm=st.booleans(),
    learns=st.booleans(),
    lead=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    layout=st.sampled_from(["half", "interleaved"]),
    table=st.booleans(),
    most=st.sampled_from([8, 2048]),
    programs=st.sampled_from([1, 2, 4096]),
)
def test_any_shape(heads, group, bands, rest, own, norm, learns, lead, layout, table, most, programs):
    """Also where heads need several programs, and where programs take several blocks of tokens."""
    case = Case(
        (heads * group, heads, 2 * bands + rest, 2 * bands, heads if own else 1), norm, lead=lead, learns=learns
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_launch, "_MAX_PAIRS", most)
        patch.setattr(triton_launch, "num_programs", lambda size: programs)
        patch.setattr(triton_launch, "_SUM_ROWS", 2)
        got = case.results(case.rotation(layout, length=LENGTH if table else None))
    for a, b in zip(got, case.expected(layout), strict=True):
        assert a.shape == b.shape
        # Few numbers, which may nearly cancel: rounding is that of the terms, which for frequencies have positions.
        terms = LENGTH * math.sqrt(math.prod(lead)) if a.shape == case.theta.shape else 1.0
        assert (a - b).abs().max() < 2e-6 * (b.abs().max() + terms)


# Query heads, key heads, head_dim; heads of a program each; per cent of the heads in them that do not exist.
DEALT = {
    "plain": ((8, 8, 64), (8, 8), 0),
    "Llama 3.2 1B": ((32, 8, 64), (32, 8), 0),
    "Llama 3.2 3B": ((24, 8, 128), (8, 8), 0),
    "Llama 3 70B": ((64, 8, 128), (32, 8), 0),
    "Qwen3 0.6B": ((16, 8, 128), (16, 8), 0),
    "Qwen3 14B": ((40, 8, 128), (8, 8), 0),
    "Qwen2.5 1.5B": ((12, 2, 128), (4, 2), 0),
    "Qwen2.5 7B": ((28, 4, 128), (32, 4), 12.5),
    "SmolLM2 135M": ((9, 3, 64), (4, 4), 33.4),
    "Gemma 3 1B": ((4, 1, 256), (4, 1), 0),
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", DEALT)
def test_queries_and_keys_get_programs_by_their_numbers_of_heads(name, norm):
    """Each program has a tile of the same size, and all end after about as many."""
    (q_heads, k_heads, dim), dealt, most = DEALT[name]
    q, k = (torch.empty(131_072, heads, dim, device="meta") for heads in (q_heads, k_heads))
    cos = torch.empty(2048, 1, dim // 2, device="meta")
    size = triton_launch.Size(q, k, cos, None, True, torch.empty(dim) if norm else None)
    assert tuple(part.padded_heads for part in size.parts) == dealt
    there = sum(part.padded_heads * part.blocks for part in size.parts)
    assert there <= (1 + most / 100) * (q_heads + k_heads)
    tile = triton_launch.backward_tile(size)
    assert len({tile.tokens(part) * part.padded_heads for part in size.parts}) == 1
    programs = triton_launch.shares(size, tile)
    assert 0.98 * triton_launch.num_programs(size) <= sum(programs) <= triton_launch.num_programs(size)
    tiles = [131_072 / tile.tokens(part) * part.blocks for part in size.parts]
    ends = [each / share for each, share in zip(tiles, programs, strict=True)]
    assert max(ends) < 1.06 * min(ends)


def test_a_triton_without_cuda_does_without_an_early_start():
    """As on GPUs of another maker."""
    program = """if True:
        import sys, torch, triton, lerope
        sys.modules["triton.language.extra.cuda"] = None
        encoding = lerope.LeRoPE(8)
        encoding.kernel = "triton"
        q = torch.randn(1, 4, 2, 8)
        (encoding(q, q, 0)[0] * q.roll(1, -1)).sum().backward()
        print(encoding.alpha.grad.abs().sum().item() > 0)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_the_sums_themselves(norm):
    """Unless heads have frequencies of their own nothing is left to add up after the second kernel."""
    q, k = torch.randn(2, 5, 4, 8, device=DEVICE), torch.randn(2, 5, 4, 8, device=DEVICE)
    phases = torch.rand(5, 1, 4, device=DEVICE)
    gains = [torch.rand(8, device=DEVICE) if norm else None for _ in range(2)]
    tables = (phases.cos(), phases.sin(), None, torch.arange(5.0, device=DEVICE), True, *gains, 1e-5, True)
    for second in (k, None):
        size = triton_launch.Size(q, second, phases, None, True, gains[0])
        sums = triton_launch.turn_back(q, second, q, second, torch.empty_like(q), torch.empty_like(k), *tables)
        found = [grad for grad in triton_launch.gradients(sums, size, True) if grad is not None]
        assert len(found) == 1 + norm * (1 if second is None else 2)
        assert all(grad.untyped_storage().data_ptr() == sums.untyped_storage().data_ptr() for grad in found)


VIEWS = {
    "of a fused projection": lambda x: torch.stack((x, x, x), 2).unbind(2)[1],
    "of heads side by side": lambda x: torch.cat((x, x), 2)[:, :, x.shape[2] :],
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "length first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every other row": lambda x: torch.stack((x, x), 1).flatten(0, 1)[::2],
    "every other dimension": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
    "heads before tokens, dimensions first": lambda x: x.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0),
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read_where_they_lie(view, norm):
    case = Case(SHAPES["odd heads, partial"], norm)
    rotation = case.rotation(length=LENGTH)
    views = [VIEWS[view](x) for x in case.inputs]
    assert view == "length first" or not any(x.is_contiguous() for x in views)
    assert all(torch.equal(x, y) for x, y in zip(views, case.inputs, strict=True))
    for got, want in zip(case.results(rotation, views), case.results(rotation), strict=True):
        assert error(got, want.double()) < 1e-6  # a GPU's code for other strides may round otherwise


def test_views_are_not_copied():
    """What the layouts are for: the kernel reads the projection itself."""
    qkv = torch.randn(2, 8, 3, 4, 16, device=DEVICE)
    for x in (*qkv.unbind(2), qkv[:, :, 0].transpose(1, 2).contiguous().transpose(1, 2)):
        assert triton_launch._strided(x)[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("gradient", ["transposed", "expanded"])
def test_gradients_that_lie_otherwise(gradient):
    """Attention gives gradients as it likes."""
    case = Case(SHAPES["plain"])
    if gradient == "transposed":
        case.weights = [w.transpose(1, 2).contiguous().transpose(1, 2) for w in case.weights]
    else:
        case.weights = [w[:1, :1, :1, :1].expand_as(w) for w in case.weights]
    for got, want in zip(case.results(case.rotation()), case.expected(), strict=True):
        assert error(got, want) < 2e-6


def test_rows_that_share_memory():
    """A row that stands for several, as expand makes it."""
    case = Case(SHAPES["plain"], lead=(3, 5))
    case.inputs = [x.detach()[:1].requires_grad_() for x in case.inputs]
    views = [x.expand(3, -1, -1, -1) for x in case.inputs]
    got = turned(case.rotation(), views, [])
    for out, x in zip(got, views, strict=True):
        assert error(out, rotated(x, case.positions, case.theta)) < 2e-6


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU would really take the memory")
@pytest.mark.parametrize("norm", [False, True])
def test_strides_past_32_bits(norm):
    """(rows, heads, length, head_dim) with long rows: the last head starts more than 2^31 elements after the first.

    The tensor lies in the middle of 8 GiB of which only these pages are touched, so that a wrong place is no crash.
    """
    case = Case((3, 3, 8, 8, 1), norm, torch.bfloat16, lead=(2,))
    views = []
    for x in case.inputs:
        far = torch.empty((1 << 32) + 4096, dtype=x.dtype).as_strided(x.shape, (8, (1 << 30) + 8, 1), (1 << 31) + 64)
        views.append(far.copy_(x.detach()))
    want = turned(case.rotation(), case.inputs, case.gains)
    for got, expected in zip(turned(case.rotation(), views, case.gains), want, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("lead", [(7,), (1, 7), (3, 7), (2, 3, 7), (2, 1, 3, 7)], ids=str)
@pytest.mark.parametrize("length", [None, LENGTH])
def test_leading_dimensions_and_shared_positions(lead, length):
    """Positions for every token, and positions that rows share; the tables are then read over and over."""
    for shared in (lead, (1,) * (len(lead) - 1) + lead[-1:], lead[-1:], lead[1:] or lead):
        case = Case(SHAPES["grouped queries"], lead=lead)
        case.positions = torch.randint(0, LENGTH, shared, device=DEVICE)
        for got, want in zip(case.results(case.rotation(length=length)), case.expected(), strict=True):
            assert error(got, want) < 2e-6


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("lead", [(0, 7), (3, 0), (0,)], ids=str)
def test_nothing_to_turn(lead, norm):
    case = Case(SHAPES["grouped queries"], norm, lead=lead)
    *outs, q, k, theta = case.results(case.rotation(length=LENGTH if len(lead) > 1 else None))[:5]
    assert [t.shape for t in outs] == [t.shape for t in (q, k)] == [t.shape for t in case.inputs]
    assert not theta.any()


def test_queries_and_keys_of_different_lengths():
    """Each in a launch of its own, by the positions they share."""
    theta = torch.rand(8, device=DEVICE)
    q, k = torch.randn(2, 5, 4, 16, device=DEVICE), torch.randn(5, 2, 16, device=DEVICE)
    positions = torch.arange(5, device=DEVICE)
    got = lerope.Rotation(positions, theta, kernel="triton")(q, k)
    for out, x in zip(got, (q, k), strict=True):
        assert error(out, rotated(x, positions, theta)) < 2e-6


def test_one_set_of_fixed_frequencies_for_each_document():
    """More dimensions than two, as for rows of different lengths; fixed ones only."""
    x, theta = torch.randn(2, 5, 3, 16, device=DEVICE), torch.rand(2, 1, 1, 8, device=DEVICE)
    positions = torch.arange(5, device=DEVICE)
    assert error(lerope.rotate(x, positions, theta, kernel="triton"), rotated(x, positions, theta)) < 2e-6


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("origin", ["number", "each token's", "rows share positions"])
@pytest.mark.parametrize("length", [None, LENGTH])
def test_the_origin_moves_the_gradient_of_frequencies_by_what_the_formula_says(origin, length, norm):
    """dL/dtheta = sum over tokens of (position - origin) dL/dphase; values and other gradients stay."""
    case = Case(SHAPES["grouped queries"], norm)
    if origin == "rows share positions":
        case.positions = case.positions[0]
    start = 7 if origin == "number" else torch.randint(0, LENGTH, (2, 9), device=DEVICE)
    got = case.results(case.rotation(length=length, origin=start))
    for a, b in zip(got, case.results(case.rotation(length=length)), strict=True):
        assert torch.equal(a, b) or a.shape == case.theta.shape

    phases = (case.positions.double()[..., None, None] * case.theta.detach().double()).expand(2, 9, 1, -1)
    phases = phases.clone().requires_grad_()
    case.theta, case.positions, stay = phases, torch.ones(9, device=DEVICE), case.positions
    outs = []
    for x, gain in zip(case.inputs, case.gains or [None, None], strict=True):
        x = x.detach().double()
        scale = 1.0 if gain is None else gain.detach() / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
        outs.append(rotated(x * scale, case.positions, phases))
    (torque,) = torch.autograd.grad(outs, phases, [w.double() for w in case.weights])
    assert error(got[4], ((stay - start)[..., None, None] * torque).sum((0, 1, 2))) < 2e-6


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_of_some_inputs_alone(norm):
    """Of frequencies alone, of one output alone, of fixed frequencies' inputs alone."""
    case = Case(SHAPES["grouped queries"], norm)
    whole = case.results(case.rotation())
    rotation = case.rotation()
    outs = turned(rotation, [x.detach() for x in case.inputs], [g.detach() for g in case.gains])
    assert torch.equal(torch.autograd.grad(outs, case.theta, case.weights)[0], whole[4])
    q, _ = turned(rotation, case.inputs, case.gains)
    grad_q, grad_k = torch.autograd.grad(q, case.inputs, case.weights[0], allow_unused=True)
    assert torch.equal(grad_q, whole[2])
    assert grad_k is None or not grad_k.any()
    fixed = Case(SHAPES["grouped queries"], norm, learns=False)
    outs = turned(fixed.rotation(), fixed.inputs, fixed.gains)
    for got, want in zip(torch.autograd.grad(outs, fixed.inputs, fixed.weights), whole[2:4], strict=True):
        assert torch.equal(got, want)
    with torch.no_grad():
        for got, want in zip(turned(case.rotation(), case.inputs, case.gains), whole[:2], strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize(("norm", "learns"), [(False, False), (False, True), (True, False), (True, True)])
def test_what_is_kept_for_the_backward_pass(norm, learns):
    """Nothing large for fixed frequencies; outputs, which attention keeps, for learned ones; inputs with a norm."""
    case = Case((4, 4, 32, 32, 1), norm, lead=(4, 16), learns=learns)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        outs = turned(case.rotation(length=LENGTH), case.inputs, case.gains)
    large = {t.untyped_storage().data_ptr() for t in saved if t.numel() >= case.inputs[0].numel()}
    kept = case.inputs if norm else outs if learns else []
    assert large == {t.untyped_storage().data_ptr() for t in kept}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_positions_that_break_the_promise_give_nan_there_and_nowhere_else(norm, layout):
    case = Case(SHAPES["odd heads, partial"], norm)
    good = case.results(case.rotation(layout, length=LENGTH))
    case.positions[0, 2], case.positions[1, 5], case.positions[1, 8] = LENGTH, -1, 1 << 40
    broken = torch.zeros(2, 9, dtype=torch.bool, device=DEVICE)
    broken[0, 2] = broken[1, 5] = broken[1, 8] = True
    bad = case.results(case.rotation(layout, length=LENGTH))
    for got, want in zip(bad[:4], good[:4], strict=True):
        assert got[broken][..., :48].isnan().all()
        assert torch.equal(got[~broken], want[~broken])
    assert bad[4].isnan().all()


def test_the_same_bits_every_time():
    case = Case(SHAPES["sets, partial"], norm=True, dtype=torch.bfloat16, lead=(2, 10))
    first, second = (case.results(case.rotation(length=LENGTH)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_rows_are_turned_alike_wherever_they_lie():
    """A row alone and the same row in a batch: the same bits."""
    case = Case(SHAPES["grouped queries"], norm=True, lead=(3, 9))
    whole = turned(case.rotation(), case.inputs, case.gains)
    case.positions = case.positions[1:2]
    alone = turned(case.rotation(), [x[1:2] for x in case.inputs], case.gains)
    for one, all_rows in zip(alone, whole, strict=True):
        assert torch.equal(one, all_rows[1:2])


def test_inputs_are_never_written():
    case = Case(SHAPES["grouped queries"], norm=True)
    copies = [t.detach().clone() for t in (*case.inputs, case.theta, *case.gains, *case.weights)]
    case.results(case.rotation())
    for tensor, copy in zip((*case.inputs, case.theta, *case.gains, *case.weights), copies, strict=True):
        assert torch.equal(tensor.detach(), copy)


def test_tables_of_the_kernel_serve_the_reference_too():
    """Tensors that the kernel cannot take meet a rotation that was built for it."""
    case = Case(SHAPES["grouped queries"])
    rotation = case.rotation(length=LENGTH)
    assert rotation.index is not None
    fused = rotation(*case.inputs)
    rotation.kernel = "reference"
    for got, want in zip(rotation(*case.inputs), fused, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-6)


def test_a_second_derivative_is_refused():
    """The kernels have none; zero would be wrong without a word."""
    case = Case(SHAPES["plain"])
    outs = case.rotation()(*case.inputs)
    (grad,) = torch.autograd.grad(outs, case.inputs[:1], case.weights, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.square().sum().backward()


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "norm"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("index", [True, False])
def test_operators_are_registered_as_torch_wants_them(keys, norm, index):
    """Schema, fake tensors, autograd, and what torch.compile makes of them.

    With fixed sizes: letting every size vary takes torch minutes. Below, an encoding compiles for any length.
    """
    case = Case(SHAPES["sets, partial"], norm)
    phases = torch.arange(LENGTH, device=DEVICE)[:, None, None] * case.theta.detach()
    table = (phases.cos(), phases.sin())
    if not index:
        table = tuple(t[case.positions.flatten()] for t in table)
    entries = case.positions.int() if index else None
    offsets = case.positions.float().flatten()
    q, k = case.inputs
    gains = case.gains or (None, None)
    forward = (q, k if keys else None, case.theta, *table, entries, offsets, True, *gains, EPS)
    opcheck(operators.rotary, forward, test_utils=CHECKS)
    q, k, *gains = (None if t is None else t.detach() for t in (q, k, *gains))
    backward = (q, k if keys else None, q, k if keys else None, *table, entries, offsets, True, *gains, EPS, True)
    opcheck(operators.rotary_backward, backward, test_utils=CHECKS)


@pytest.mark.parametrize("layout", ["half", pytest.param("interleaved", marks=pytest.mark.slow)])
def test_an_encoding_compiles_to_one_graph_for_all_lengths(layout):
    torch._dynamo.reset()
    encoding = lerope.LeRoPE(16, layout=layout).to(DEVICE)
    encoding.kernel = "triton"
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(encoding.forward, fullgraph=True, dynamic=True, backend=counter)
    for length in (5, 8, 13):
        q, k = (torch.randn(2, length, n, 16, device=DEVICE, requires_grad=True) for n in (4, 2))
        results = []
        for function in (encoding, compiled):
            encoding.alpha.grad = q.grad = k.grad = None
            out_q, out_k = function(q, k, torch.arange(length, device=DEVICE))
            (out_q.pow(3).sum() + out_k.pow(3).sum()).backward()
            results.append([t.clone() for t in (out_q.detach(), out_k.detach(), q.grad, k.grad, encoding.alpha.grad)])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=2e-6 * want.abs().max().item())
    assert counter.frame_count == 1


def test_norm_and_rotation_compile_within_a_block():
    """A rotation built outside, packed positions, and the norms' parameters, as the trainer's blocks have them."""
    torch._dynamo.reset()
    encoding = lerope.LeRoPE(16).to(DEVICE)
    encoding.kernel = "triton"
    norms = [nn.RMSNorm(16, eps=EPS).to(DEVICE) for _ in range(2)]
    positions = torch.arange(9, device=DEVICE).remainder(5).expand(2, -1)
    qkv = torch.randn(2, 9, 3, 4, 16, device=DEVICE, requires_grad=True)
    leaves = [qkv, encoding.alpha, *(norm.weight for norm in norms)]

    def block(qkv, rotation):
        q, k, v = qkv.unbind(2)
        q, k = rotation.after_norm(q, k, *norms)
        return q * k * v

    results = []
    for function in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        out = function(qkv, encoding.rotation(positions, origin=2, length=9))
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6 * want.abs().max().item())


def test_a_whole_model_learns_the_same():
    """Loss and gradients of a small transformer, rotated by the kernel and by the reference."""
    from lerope.core.ladder import ModelConfig
    from lerope.model.init import init_weights
    from lerope.model.transformer import Transformer

    config = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)
    model = Transformer(config, lerope.LeRoPE(16)).to(DEVICE)
    init_weights(model, 0)
    tokens = torch.randint(50, (2, 12), device=DEVICE)
    ids = torch.arange(12, device=DEVICE).ge(5).long().expand(2, -1)
    positions = torch.arange(12, device=DEVICE).sub(5 * ids)
    results = []
    for kernel in ("reference", "triton"):
        model.encoding.kernel = kernel
        model.zero_grad()
        loss = model(tokens, positions, ids, tokens, centres=torch.full_like(positions, 3), backend="sdpa")
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * want.abs().max().item())
    assert math.isfinite(results[1][0])
