"""Nothing that people do to modules may cost an encoding its precision or its values."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lerope
from tests.rotary.reference import angle_error, measured_phases, series

ALPHA = torch.linspace(0.3, -2.0, 32)


def learned(parametrization: str = "log") -> lerope.LeRoPE:
    encoding = lerope.LeRoPE(64, parametrization=parametrization)
    theta = lerope.RoPE(64).frequencies()
    values = {"log": ALPHA, "linear": ALPHA.exp(), "direct": ALPHA.exp() * theta}
    with torch.no_grad():
        encoding.alpha.copy_(values[parametrization])
    return encoding


LEARNED64 = ALPHA.double().exp() * series(64, 10_000.0)
ENCODINGS = {
    "rope": (lambda: lerope.RoPE(64), series(64, 10_000.0)),
    "prope": (lambda: lerope.PRoPE(64), torch.where(torch.arange(32) < 24, series(64, 10_000.0), 0.0)),
    "nope": (lambda: lerope.NoPE(64), torch.zeros(32, dtype=torch.float64)),
    "lerope": (learned, LEARNED64),
    "lerope-linear": (lambda: learned("linear"), LEARNED64),
    "lerope-direct": (lambda: learned("direct"), LEARNED64),
    "frozen": (lambda: lerope.FrozenRoPE(learned().frequencies().detach()), LEARNED64),
}


def through_meta(encoding: lerope.Encoding) -> lerope.Encoding:
    """What every large-scale trainer does: build without memory, allocate, then load."""
    state = encoding.state_dict()
    empty = copy.deepcopy(encoding).to("meta")
    assert all(t.is_meta for t in (*empty.parameters(), *empty.buffers()))
    empty.to_empty(device="cpu")
    empty.load_state_dict(state)
    return empty


def through_state_dict(encoding: lerope.Encoding) -> lerope.Encoding:
    other = copy.deepcopy(encoding)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(1)
    other.load_state_dict(encoding.state_dict())
    return other


def through_torch_save(encoding: lerope.Encoding) -> lerope.Encoding:
    buffer = io.BytesIO()
    torch.save(encoding.state_dict(), buffer)
    buffer.seek(0)
    other = copy.deepcopy(encoding).to("meta").to_empty(device="cpu")
    other.load_state_dict(torch.load(buffer, weights_only=True), assign=True)
    return other


TREATMENTS = {
    "bfloat16": lambda e: e.to(torch.bfloat16),
    "bfloat16 twice and back": lambda e: e.to(torch.bfloat16).float().to(torch.bfloat16),
    "half": lambda e: e.half(),
    "inside a model": lambda e: nn.Sequential(nn.Linear(2, 2), e).to(torch.bfloat16)[1],
    "meta and to_empty": through_meta,
    "deepcopy": copy.deepcopy,
    "pickle": lambda e: pickle.loads(pickle.dumps(e)),
    "state_dict": through_state_dict,
    "torch.save": through_torch_save,
    "to device and dtype": lambda e: e.to("cpu", torch.float16, non_blocking=True),
    "eval and share_memory": lambda e: e.eval().share_memory(),
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("treatment", TREATMENTS)
def test_phases_survive(treatment, name):
    make, frequencies = ENCODINGS[name]
    encoding = TREATMENTS[treatment](make())
    for position, limit in ((2_047, 1e-3), (131_072, 1e-2)):
        error = angle_error(measured_phases(encoding, position), position * frequencies).abs().max().item()
        assert error < limit, f"{error} rad at {position}"
    for tensor in (*encoding.parameters(), *encoding.buffers()):
        assert tensor.dtype == torch.float32


@pytest.mark.parametrize("seed", range(10))
def test_phases_keep_the_documented_bound_at_any_position(seed):
    """131,072 is a power of two, whose product with a frequency is exact; its neighbours are the hard cases."""
    encoding = lerope.LeRoPE(64).to(torch.bfloat16)
    with torch.no_grad():
        encoding.alpha.copy_(0.3 * torch.randn(32, generator=torch.Generator().manual_seed(seed)))
    scale = encoding.alpha.detach().double().exp()
    table = lerope.RoPE(64).frequencies().double()
    for position in (2_047, 130_001, 131_071, 131_072):
        phases = measured_phases(encoding, position)
        for theta, rounding in ((table, 2**-23), (series(64, 10_000.0), 2**-22)):
            error = angle_error(phases, position * scale * theta).abs()
            assert (error < position * scale * theta * rounding + 2**-21).all()


@pytest.mark.parametrize("name", ENCODINGS)
def test_phases_survive_autocast(name):
    make, frequencies = ENCODINGS[name]
    encoding = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for position, limit in ((2_047, 1e-3), (131_072, 1e-2)):
            error = angle_error(measured_phases(encoding, position), position * frequencies).abs().max().item()
            assert error < limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_input_costs_its_own_rounding_only(dtype):
    """Positions past 256, where bf16 positions would collapse: the output is the exact one, rounded once."""
    encoding = learned().to(dtype)
    x = torch.randn(2, 4096, 2, 64).to(dtype)
    out, _ = encoding(x, None, 0)
    assert out.dtype == dtype
    exact, _ = encoding(x.double(), None, 0)
    torch.testing.assert_close(out, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_meta_device_build_starts_at_the_initial_values():
    with torch.device("meta"):
        encodings = [lerope.LeRoPE(64, parametrization=p) for p in ("log", "linear", "direct")]
        encodings += [lerope.RoPE(64), lerope.FrozenRoPE(lerope.RoPE(64, 500.0)._initial_theta)]
    for encoding in encodings:
        assert encoding.theta.is_meta
        encoding.to_empty(device="cpu")
        base = 500.0 if isinstance(encoding, lerope.FrozenRoPE) else 10_000.0
        assert torch.equal(encoding.frequencies(), lerope.RoPE(64, base).frequencies())


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16, None])
def test_alpha_keeps_learning_in_small_steps(cast):
    """bf16 could not even represent these steps: at 1.6 its spacing is 0.0078."""
    encoding = lerope.LeRoPE(64)
    with torch.no_grad():
        encoding.alpha.fill_(1.6)
    if cast:
        encoding.to(cast)
    optimizer = torch.optim.SGD(encoding.parameters(), lr=1.0)
    for _ in range(100):
        encoding.alpha.grad = torch.full_like(encoding.alpha, 1e-4)
        optimizer.step()
    assert encoding.alpha.dtype == torch.float32
    torch.testing.assert_close(encoding.alpha.detach(), torch.full((32,), 1.59), rtol=0, atol=1e-5)


def test_gradients_stay_float32_in_a_bf16_model():
    encoding = lerope.LeRoPE(16).to(torch.bfloat16)
    q = torch.randn(2, 8, 2, 16, dtype=torch.bfloat16, requires_grad=True)
    out_q, out_k = encoding(q, q, 0)
    (out_q * out_k.flip(1)).sum().backward()
    assert encoding.alpha.grad.dtype == torch.float32
    assert q.grad.dtype == torch.bfloat16
    encoding.to(torch.bfloat16)
    assert encoding.alpha.grad.dtype == torch.float32


def test_a_bf16_checkpoint_is_loaded_as_float32():
    encoding = learned()
    state = {name: tensor.to(torch.bfloat16) for name, tensor in encoding.state_dict().items()}
    for assign in (False, True):
        fresh = lerope.LeRoPE(64)
        with pytest.warns(UserWarning, match="alpha comes from a checkpoint in torch.bfloat16 and has lost digits"):
            fresh.load_state_dict(state, assign=assign)
        assert fresh.alpha.dtype == torch.float32


def test_loading_into_a_meta_build_by_assignment():
    state = learned().state_dict()
    with torch.device("meta"):
        encoding = lerope.LeRoPE(64)
    encoding.load_state_dict(state, assign=True)
    assert torch.equal(encoding.frequencies(), learned().frequencies())
    encoding.to_empty(device="cpu")
    assert torch.equal(encoding.frequencies(), learned().frequencies())


class Custom(lerope.Encoding):
    """An encoding with parameters in children, a mask and a counter, as people might write it."""

    def __init__(self):
        super().__init__(16, torch.rand(8))
        self.scales = nn.ParameterList(nn.Parameter(torch.zeros(8)) for _ in range(2))
        self.register_buffer("mask", torch.arange(8) < 4)
        self.register_buffer("steps", torch.tensor(3))

    def frequencies(self, layer=None):
        return torch.where(self.mask, self.theta * self.whole(self.scales[0]).exp(), self.theta)


def test_custom_encodings_keep_their_types_and_groups():
    encoding = Custom().to(torch.bfloat16)
    assert encoding.mask.dtype == torch.bool
    assert encoding.steps.dtype == torch.int64
    encoding(torch.randn(1, 4, 2, 16), None, 0)[0].sum().backward()
    model = nn.ModuleList([encoding, nn.Linear(2, 2)])
    groups = {g["name"]: g["params"] for g in lerope.param_groups(model, 1e-3, 0.1)}
    assert len(groups["frequencies"]) == 2
    assert len(groups["decay"]) == 1


def test_a_cast_parameter_of_a_custom_encoding_is_refused():
    encoding = Custom()
    encoding.scales[0].data = encoding.scales[0].data.bfloat16()  # what a mixed-precision wrapper does
    with pytest.raises(ValueError, match=r"Custom has a parameter in torch.bfloat16.*fully_shard\(encoding\)"):
        encoding.frequencies()


@pytest.mark.parametrize("sharing", ["shared", "layer_head"])
def test_freeze_keeps_everything_but_the_learning(sharing):
    encoding = lerope.LeRoPE(32, 500.0, sharing=sharing, num_layers=2, num_heads=2, rotary_dim=16, layout="interleaved")
    with torch.no_grad():
        encoding.alpha.add_(torch.rand(encoding.alpha.shape))
    x = torch.randn(2, 5, 2, 32)
    frozen = encoding.freeze()
    assert not [*frozen.parameters()]
    assert torch.equal(frozen(x, None, 3, layer=1)[0], encoding(x, None, 3, layer=1)[0])
    longer = lerope.extend(frozen.theta, train_length=4, length=16, method="pi")
    slower = encoding.freeze(longer.frequencies)
    torch.testing.assert_close(slower.frequencies(1) * 4, encoding.frequencies(1))
    assert (slower.layout, slower.base, slower.sharing) == ("interleaved", 500.0, sharing)


def test_fixed_encodings_have_no_state_and_frozen_ones_carry_theirs():
    for encoding in (lerope.NoPE(64), lerope.RoPE(64), lerope.PRoPE(64)):
        assert encoding.state_dict() == {}
    assert [*lerope.LeRoPE(64).state_dict()] == ["alpha"]
    frozen = lerope.FrozenRoPE(torch.rand(32))
    other = lerope.FrozenRoPE(torch.rand(32))
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other.frequencies(), frozen.frequencies())
    assert not [*frozen.parameters()]


def test_frozen_frequencies_do_not_alias_what_they_came_from():
    source = torch.rand(8)
    frozen = lerope.FrozenRoPE(source)
    before = frozen.frequencies().clone()
    source.zero_()
    assert torch.equal(frozen.frequencies(), before)


def test_nothing_is_cached_while_frequencies_learn():
    encoding = lerope.LeRoPE(16)
    x = torch.randn(1, 5, 2, 16)
    before, _ = encoding(x, None, 3)
    with torch.no_grad():
        encoding.alpha.add_(0.5)
    after, _ = encoding(x, None, 3)
    assert not torch.allclose(before, after)
    for _ in range(2):  # a graph kept across steps would fail the second time
        encoding(x, None, 3)[0].sum().backward()


class Block(nn.Module):
    def __init__(self, encoding: lerope.Encoding, layer: int):
        super().__init__()
        self.encoding, self.layer = encoding, layer
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).unbind(-3)
        q, k = self.encoding(q, k, 0, layer=self.layer)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("sharing", ["shared", "layer"])
def test_activation_checkpointing(reentrant, sharing):
    torch.manual_seed(0)
    encoding = lerope.LeRoPE(16, sharing=sharing, num_layers=3)
    blocks = nn.ModuleList(Block(encoding, i) for i in range(3))
    x = torch.randn(2, 12, 32, requires_grad=True)

    def gradient(checkpointed: bool) -> torch.Tensor:
        encoding.alpha.grad = None
        h = x
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=reentrant) if checkpointed else block(h)
        h.square().mean().backward()
        return encoding.alpha.grad

    plain = gradient(False)
    assert plain.abs().max() > 0
    assert torch.equal(gradient(True), plain)


def test_one_rotation_under_checkpointing_without_reentry():
    """A rotation built once and passed to checkpointed blocks, as a model would."""
    encoding = lerope.LeRoPE(16)
    x = torch.randn(2, 12, 2, 16, requires_grad=True)

    def block(x, rotation):
        q, k = rotation(x, x)
        return x + q * k.sum(1, keepdim=True)

    def gradient(run) -> torch.Tensor:
        encoding.alpha.grad = None
        rotation = encoding.rotation(torch.arange(12))
        run(run(x, rotation), rotation).square().mean().backward()
        return encoding.alpha.grad

    plain = gradient(block)
    assert torch.equal(gradient(lambda *a: checkpoint(block, *a, use_reentrant=False)), plain)


def test_diagnostics_find_aliased_and_dead_bands():
    encoding = lerope.LeRoPE(64)
    with torch.no_grad():
        encoding.alpha[0] = 1.3
        encoding.alpha[20] = -8
    found = encoding.diagnostics(train_length=2048)
    assert found.aliased.nonzero().flatten().tolist() == [0]
    assert 20 in found.dead.nonzero().flatten().tolist()
    assert found.turns[1].item() == pytest.approx(2048 * lerope.RoPE(64).frequencies()[1].item() / (2 * math.pi))
    text = str(found)
    assert "aliased" in text
    assert "dead" in text
    assert len(text.splitlines()) == 34
    prope = lerope.PRoPE(64, p=0.5).diagnostics()
    assert prope.dead.sum() == 16
    assert prope.turns is None
    per_head = lerope.LeRoPE(16, sharing="head", num_heads=3).diagnostics(128)
    assert per_head.dead.shape == (3, 8)
    assert "set 2" in str(per_head)
