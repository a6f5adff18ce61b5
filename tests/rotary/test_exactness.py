"""Every encoding against float64: values, all gradients, and bitwise agreement with what people run today."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import lerope
from tests.rotary.reference import attention_loss, rotated, series

SHARINGS = ["shared", "layer", "head", "layer_head"]
PARAMETRIZATIONS = ["log", "linear", "direct"]
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [17, 3, 3, 0, 1, 63, 5, 40, 2]])


def make_lerope(parametrization: str, sharing: str, **kwargs) -> lerope.LeRoPE:
    encoding = lerope.LeRoPE(16, 10_000.0, parametrization, sharing, num_layers=3, num_heads=2, **kwargs)
    with torch.no_grad():
        noise = torch.randn(encoding.alpha.shape, generator=torch.Generator().manual_seed(7))
        encoding.alpha.mul_(1 + 0.1 * noise) if parametrization != "log" else encoding.alpha.copy_(0.3 * noise)
    return encoding


def reference_frequencies(alpha: torch.Tensor, parametrization: str) -> torch.Tensor:
    theta = series(16, 10_000.0)
    return {"log": lambda: alpha.exp() * theta, "linear": lambda: alpha * theta, "direct": lambda: alpha}[
        parametrization
    ]()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_forward_and_all_gradients_match_float64(parametrization, sharing, layout):
    torch.manual_seed(0)
    encoding = make_lerope(parametrization, sharing, layout=layout)
    q = torch.randn(2, 9, 6, 16, requires_grad=True)
    k = torch.randn(2, 9, 2, 16, requires_grad=True)
    weight_q, weight_k = torch.randn_like(q), torch.randn_like(k)
    out_q, out_k = encoding(q, k, PACKED, layer=1)
    ((out_q * weight_q).sum() + (out_k * weight_k).sum()).backward()

    q64, k64 = (t.detach().double().requires_grad_() for t in (q, k))
    alpha64 = encoding.alpha.detach().double().requires_grad_()
    frequencies = reference_frequencies(alpha64, parametrization)
    frequencies = frequencies[1] if sharing in ("layer", "layer_head") else frequencies
    per_query_head = frequencies.repeat_interleave(3, 0) if "head" in sharing else frequencies
    want_q, want_k = rotated(q64, PACKED, per_query_head, layout), rotated(k64, PACKED, frequencies, layout)
    ((want_q * weight_q).sum() + (want_k * weight_k).sum()).backward()

    # Phases reach 63 rad, so one float32 rounding of a phase moves a unit vector by 63 * 2^-24 = 4e-6.
    for got, want in ((out_q, want_q), (out_k, want_k), (q.grad, q64.grad), (k.grad, k64.grad)):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=4e-5)
    assert alpha64.grad.abs().max() > 0.1
    torch.testing.assert_close(
        encoding.alpha.grad.double(), alpha64.grad, rtol=2e-5, atol=2e-5 * alpha64.grad.abs().max().item()
    )


@pytest.mark.parametrize("shape", [(2, 3000, 6, 16), (3, 2100, 2, 64)])
def test_long_rows_go_through_tiles_and_still_match(shape):
    """Rows larger than the CPU's tile, a length that tiles do not divide, a sharing that groups heads."""
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    frequencies = (torch.rand(2, shape[-1] // 2) / 100).requires_grad_()
    positions = torch.arange(shape[1]).flip(0)
    weight = torch.randn(shape)
    out = lerope.rotate(x, positions, frequencies)
    (out * weight).sum().backward()
    x64, f64 = x.detach().double().requires_grad_(), frequencies.detach().double().requires_grad_()
    want = rotated(x64, positions, f64.repeat_interleave(shape[2] // 2, 0))
    (want * weight).sum().backward()
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-5)
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=0, atol=2e-5)
    torch.testing.assert_close(frequencies.grad.double(), f64.grad, rtol=1e-5, atol=1e-5 * f64.grad.abs().max().item())


def test_float32_error_at_long_positions_is_rounding_of_the_phase():
    """The bound that the documentation states: two roundings, one of the frequency and one of the product."""
    encoding = lerope.LeRoPE(64)
    with torch.no_grad():
        encoding.alpha.copy_(torch.linspace(0.6, -4, 32))
    positions = torch.tensor([1, 2_047, 32_767, 131_072])
    x = torch.randn(4, 1, 64)
    out, _ = encoding(x, None, positions)
    frequencies = encoding.alpha.detach().double().exp() * series(64, 10_000.0)
    phases = positions[:, None] * frequencies
    bound = (phases.abs() * 2**-23 + 2**-21).repeat(1, 2) * 6
    error = (out.double() - rotated(x, positions, frequencies)).abs()[:, 0]
    assert (error < bound).all()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    "shape", [(4,), (2, 4), (4, 4), (2, 1, 1, 4), (2, 3, 1, 4), (2, 3, 4, 4), (2, 1, 2, 4)], ids=str
)
def test_gradcheck_and_second_derivatives(shape, layout):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 10, dtype=torch.float64, requires_grad=True)
    frequencies = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([[0, 1, 0], [7, 10, 3]])

    def function(x, frequencies):
        return lerope.rotate(x, positions, frequencies, layout, rotary_dim=8)

    assert torch.autograd.gradcheck(function, (x, frequencies))
    assert torch.autograd.gradgradcheck(function, (x, frequencies))


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_gradcheck_of_alpha_through_the_module(parametrization, sharing):
    encoding = make_lerope(parametrization, sharing).double()
    q = torch.randn(1, 4, 4, 16, dtype=torch.float64)
    k = torch.randn(1, 4, 2, 16, dtype=torch.float64)

    def function(alpha):
        return torch.func.functional_call(encoding, {"alpha": alpha}, (q, k, torch.tensor([0, 1, 5, 2]), 2))

    assert torch.autograd.gradcheck(function, (encoding.alpha,))


@pytest.mark.parametrize(
    ("head_dim", "base"), [(64, 10_000.0), (128, 1e6), (96, 500_000.0), (256, 10_000.0), (80, 1e7)]
)
def test_tables_are_bit_identical_to_hugging_face(head_dim, base):
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    positions = torch.tensor([*range(4096), 32_768, 131_072, 1_000_003])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    for encoding in (
        lerope.RoPE(head_dim, base),
        lerope.LeRoPE(head_dim, base),
        lerope.LeRoPE(head_dim, base, "direct"),
    ):
        rotation = encoding.rotation(positions)
        assert torch.equal(rotation.cos[:, 0], cos[0, :, : head_dim // 2])
        assert torch.equal(rotation.sin[:, 0], sin[0, :, : head_dim // 2])


def test_rotation_agrees_with_hugging_face():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=512, num_attention_heads=8, head_dim=64)
    q, k = torch.randn(2, 300, 8, 64), torch.randn(2, 300, 2, 64)
    positions = torch.arange(300).expand(2, -1)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    want = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    got = lerope.LeRoPE(64)(q, k, positions)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.transpose(1, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_p_one_is_rope_and_p_zero_is_nope_bitwise(dtype):
    q, k = torch.randn(2, 50, 4, 64).to(dtype), torch.randn(2, 50, 2, 64).to(dtype)
    pairs = [(lerope.PRoPE(64, p=1.0), lerope.RoPE(64)), (lerope.PRoPE(64, p=0.0), lerope.NoPE(64))]
    for one, other in pairs:
        assert torch.equal(one.frequencies(), other.frequencies())
        for a, b in zip(one(q, k, torch.arange(50)), other(q, k, torch.arange(50)), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(("p", "kept"), [(0.75, 24), (0.5, 16), (0.25, 8), (1.0, 32), (0.0, 0), (0.3, 10)])
def test_p_rope_keeps_the_bands_of_the_paper(p, kept):
    frequencies = lerope.PRoPE(64, p=p).frequencies()
    assert torch.equal(frequencies[:kept], lerope.RoPE(64).frequencies()[:kept])
    assert torch.count_nonzero(frequencies[kept:]) == 0


def test_p_rope_wavelengths_are_those_of_the_reproduction():
    wavelengths = lerope.RoPE(64).wavelengths()
    for band, tokens in ((7, 47.1), (15, 471.0), (23, 4712.0)):
        assert wavelengths[band].item() == pytest.approx(tokens, rel=1e-3)
    assert torch.isinf(lerope.NoPE(64).wavelengths()).all()


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_lerope_starts_exactly_as_rope(parametrization, sharing):
    encoding = lerope.LeRoPE(64, 500_000.0, parametrization, sharing, num_layers=2, num_heads=4)
    frequencies = encoding.frequencies(layer=1)
    assert torch.equal(frequencies, lerope.RoPE(64, 500_000.0).frequencies().expand_as(frequencies))


def test_positions_in_all_their_forms_agree():
    encoding = lerope.LeRoPE(16)
    q, k = torch.randn(3, 5, 4, 16), torch.randn(3, 5, 2, 16)
    want = encoding(q, k, torch.arange(7, 12))
    forms = [
        7,
        torch.tensor(7),
        torch.arange(7, 12, dtype=torch.int32),
        torch.arange(7, 12)[None],
        torch.arange(7, 12).expand(3, -1),
        torch.arange(7, 12, dtype=torch.uint8),
    ]
    for positions in forms:
        for got, expected in zip(encoding(q, k, positions), want, strict=True):
            assert torch.equal(got, expected)
    assert torch.equal(encoding(q, None, 7)[0], want[0])
    assert encoding(q, None, 7)[1] is None
    assert torch.equal(encoding(None, k, 7)[1], want[1])


def test_decoding_token_by_token_equals_the_whole_row():
    encoding = lerope.LeRoPE(16)
    q, k = torch.randn(2, 6, 4, 16), torch.randn(2, 6, 4, 16)
    whole = encoding(q, k, 0)
    for t in range(6):
        step = encoding(q[:, t : t + 1], k[:, t : t + 1], torch.tensor(t))
        assert torch.equal(step[0], whole[0][:, t : t + 1])
        assert torch.equal(step[1], whole[1][:, t : t + 1])


def test_one_rotation_serves_all_layers_and_gives_the_same_gradient():
    encoding = lerope.LeRoPE(16)
    q, k = torch.randn(2, 6, 4, 16), torch.randn(2, 6, 4, 16)
    shared = encoding.rotation(torch.arange(6))
    for rotate in (lambda: shared(q, k), lambda: encoding(q, k, torch.arange(6))):
        (rotate()[0].pow(3).sum() + rotate()[1].pow(3).sum()).backward()
    gradient = encoding.alpha.grad.clone()
    encoding.alpha.grad = None
    (encoding(q, k, 0)[0].pow(3).sum() + encoding(q, k, 0)[1].pow(3).sum()).backward()
    torch.testing.assert_close(gradient, 2 * encoding.alpha.grad)


def test_strided_views_of_a_fused_projection():
    qkv = torch.randn(2, 40, 3, 4, 16, requires_grad=True)
    q, k, _ = qkv.unbind(2)
    encoding = lerope.LeRoPE(16)
    got = encoding(q, k, 0)
    want = encoding(q.contiguous(), k.contiguous(), 0)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    transposed = torch.randn(2, 4, 40, 16).transpose(1, 2)
    assert torch.equal(encoding(transposed, None, 0)[0], encoding(transposed.contiguous(), None, 0)[0])


def test_small_integer_types_do_not_wrap_around():
    frequencies = torch.rand(8)
    for dtype in (torch.uint8, torch.int8, torch.int16):
        rotation = lerope.Rotation(torch.arange(4, dtype=dtype), frequencies, origin=2)
        assert rotation.offsets.flatten().tolist() == [-2, -1, 0, 1]


def test_inputs_are_never_written():
    q = torch.randn(2, 5, 4, 16)
    copy = q.clone()
    lerope.LeRoPE(16)(q, None, 3)
    assert torch.equal(q, copy)


def test_no_activation_is_kept_beyond_the_rotated_output():
    """What backward needs is the output, which attention keeps anyway, and tables that all layers share."""
    encoding = lerope.LeRoPE(64)
    q = torch.randn(2, 512, 8, 64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        rotation = encoding.rotation(torch.arange(512))
        out = rotation.turn(q)
    large = {t.untyped_storage().data_ptr() for t in saved if t.numel() >= q.numel()}
    assert large == {out.untyped_storage().data_ptr()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_origin_keeps_the_gradient_and_removes_its_noise(dtype):
    """Attention sees differences of positions alone, so the frequency gradient must not depend on where a row starts.

    At position 1,000,000 the plain sum over absolute positions drowns in rounding; over centred ones it does not.
    """
    torch.manual_seed(0)
    frequencies = lerope.RoPE(16).frequencies()[3:].requires_grad_()
    q, k = torch.randn(32, 2, 10, dtype=dtype), torch.randn(32, 2, 10, dtype=dtype)
    target = torch.randn(2, 32, 4)

    def gradient(start: int, origin: int) -> torch.Tensor:
        rotation = lerope.Rotation(torch.arange(start, start + 32), frequencies, origin=origin)
        loss = attention_loss(*rotation(q, k), target)
        return torch.autograd.grad(loss, frequencies)[0]

    f64 = frequencies.detach().double().requires_grad_()
    positions = torch.arange(32)
    loss = attention_loss(rotated(q, positions, f64), rotated(k, positions, f64), target.double())
    want = torch.autograd.grad(loss, f64)[0]
    scale = want.abs().max()

    def error(start: int, origin: int) -> float:
        return float((gradient(start, origin).double() - want).abs().max() / scale)

    limit = 1e-4 if dtype == torch.float32 else 0.05
    assert error(0, 0) < limit
    assert error(0, 16) < limit
    assert error(10**6, 10**6 + 16) < 2 * limit + 0.02  # phases themselves are rounded to 0.004 rad here
    if dtype == torch.bfloat16:
        assert error(10**6, 0) > 10 * error(10**6, 10**6 + 16)
