"""Heads before the length, and positions with several axes."""

import warnings

import pytest
import torch

import lerope
from tests.rotary.reference import rotated, series

GRID = torch.cartesian_prod(torch.arange(3), torch.arange(4))
"""(12, 2): rows and columns of patches."""


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("positions", [7, torch.arange(3, 9), torch.arange(12).view(2, 6)])
def test_heads_first_is_the_same_turned_around(positions):
    encoding = lerope.LeRoPE(16)
    q, k = random(2, 6, 4, 16), random(2, 6, 2, 16)
    expected = encoding(q, k, positions)
    found = encoding(q.transpose(1, 2), k.transpose(1, 2), positions, heads_first=True)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.transpose(1, 2), other)
    alone, none = encoding(q.transpose(1, 2), None, positions, heads_first=True)
    assert none is None
    assert torch.equal(alone, found[0])
    x = lerope.rotate(q.transpose(1, 2), positions, encoding.frequencies(), heads_first=True)
    assert torch.equal(x, found[0])
    assert torch.equal(lerope.NoPE(16)(q.transpose(1, 2), None, positions, heads_first=True)[0], q.transpose(1, 2))


@pytest.mark.parametrize("call", [lerope.LeRoPE(64), lerope.NoPE(64)])
def test_one_token_of_several_heads_or_several_of_one(call):
    """What a decoder passes: it was taken for four tokens without a word."""
    x = random(2, 4, 1, 64)
    with pytest.raises(ValueError, match=r"\(2, 4, 1, 64\) may be 4 tokens of one head, or one token of 4 heads"):
        call(x, None, 5)
    with pytest.raises(ValueError, match="pass heads_first=False or heads_first=True"):
        call(x, x, torch.tensor(5))
    tokens, heads = (call(x, None, 5, heads_first=first)[0] for first in (False, True))
    assert torch.equal(tokens, call(x, None, torch.arange(5, 9))[0])
    assert torch.equal(heads, call(x, None, torch.tensor([[5], [5]]), heads_first=True)[0])
    call(random(2, 4, 3, 64), x, 5)  # one key head beside several of queries
    call(random(2, 1, 1, 64), None, 5)


@pytest.mark.parametrize("call", [lerope.LeRoPE(16), lerope.NoPE(16)])
def test_as_many_tokens_as_heads_warn_unless_the_order_is_said(call):
    """A prompt may have that many tokens, so it is no error; compiled code, which has seen other lengths, is silent."""
    square, positions = random(2, 4, 4, 16), torch.arange(4)
    with pytest.warns(UserWarning, match=r"\(2, 4, 4, 16\) has as many heads as tokens.*pass heads_first=True"):
        turned, _ = call(square, square, positions)
    for first in (0, torch.tensor(5)):
        with pytest.warns(UserWarning, match="as many heads as tokens"):
            call(square, square, first)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert torch.equal(call(square, None, positions, heads_first=False)[0], turned)
        heads = call(square, None, positions, heads_first=True)[0]
        assert torch.equal(heads.transpose(1, 2), call(square.transpose(1, 2), None, positions, heads_first=False)[0])
        call(square, random(2, 4, 2, 16), positions)  # heads are grouped: they can only come last
        call(square, square, torch.tensor([[5], [5]]))  # one position for all
        call(random(2, 1, 1, 16), None, torch.tensor([5]))
        torch.compile(call.forward, fullgraph=True, backend="eager")(square, square, positions)


def test_rotate_warns_too():
    with pytest.warns(UserWarning, match="as many heads as tokens"):
        lerope.rotate(random(2, 4, 4, 16), torch.arange(4), torch.rand(8))


def test_heads_first_without_saying_so_is_an_error_that_says_how():
    encoding = lerope.RoPE(16)
    q = random(2, 4, 9, 16)
    with pytest.raises(ValueError, match=r"positions must broadcast.*pass heads_first=True"):
        encoding(q, q, torch.arange(9))
    with pytest.raises(ValueError, match=r"same length.*got 4 and 2.*pass heads_first=True"):
        encoding(q, random(2, 2, 9, 16), 0)
    with pytest.raises(ValueError, match="heads_first must be True or False; got 'yes'"):
        encoding(q, q, 0, heads_first="yes")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("heads_first", [False, True])
def test_axial_turns_each_block_of_bands_along_its_axis(layout, heads_first):
    frequencies = torch.rand(8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    x = random(2, 12, 3, 16).requires_grad_()
    given = x.transpose(1, 2) if heads_first else x
    found = lerope.rotate(given, GRID, frequencies, layout, axes=2, heads_first=heads_first)
    found = found.transpose(1, 2) if heads_first else found
    exact, theta = x.detach().double().requires_grad_(), frequencies.detach().double().requires_grad_()
    # Bands along rows and bands along columns, one after the other: the others stand still meanwhile.
    still = torch.zeros(4, dtype=torch.float64)
    expected = rotated(exact, GRID[:, 0], torch.cat((theta[:4], still)), layout)
    expected = rotated(expected, GRID[:, 1], torch.cat((still, theta[4:])), layout)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)
    weights = random(2, 12, 3, 16)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=0, atol=2e-6)
    torch.testing.assert_close(frequencies.grad.double(), theta.grad, rtol=1e-4, atol=1e-4)


def test_axial_encodings(tmp_path):
    encoding = lerope.LeRoPE(32, base=100.0, axes=2)
    expected = series(16, 100.0).float().repeat(2)
    torch.testing.assert_close(encoding.frequencies(), expected)
    q = random(2, 12, 3, 32)
    fixed = lerope.RoPE(32, base=100.0, axes=2)
    turned, _ = encoding(q, None, GRID)
    torch.testing.assert_close(fixed(q, None, GRID)[0], turned)
    turned.square().sum().backward()
    assert encoding.alpha.grad is not None
    with torch.no_grad():
        encoding.alpha += 0.1
    frozen = encoding.freeze()
    assert (frozen.axes, frozen.learnable().axes) == (2, 2)
    assert torch.equal(frozen(q, None, GRID)[0], encoding(q, None, GRID)[0])
    # What attention sees depends on differences along each axis alone.
    k = random(2, 12, 3, 32)
    moved = GRID + torch.tensor([5, 9])
    logits = [torch.einsum("bshd,bthd->bhst", *encoding(q, k, positions)) for positions in (GRID, moved)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4)
    assert "axes=2" in repr(encoding)
    again = lerope.LeRoPE(32, base=100.0, axes=2)
    again.load_state_dict(encoding.state_dict())
    assert torch.equal(again(q, None, GRID)[0], encoding(q, None, GRID)[0])


def test_bad_axes():
    q = random(2, 12, 3, 32)
    cases = [
        (lambda: lerope.RoPE(32, axes=3), "32 dimensions.*axes=3"),
        (lambda: lerope.RoPE(32, axes=0), "axes must be.*got 0"),
        (lambda: lerope.RoPE(32, axes=2)(q, None, torch.arange(12)), r"\(..., length, 2\).*got positions.*\(12,\)"),
        (lambda: lerope.RoPE(32, axes=2)(q, None, 3), r"shape \(..., length, 2\)"),
        (lambda: lerope.rotate(q, GRID, torch.rand(16), axes=3), r"shape \(..., length, 3\)"),
        (lambda: lerope.LeRoPE(32, axes=2).artifact(), "one axis; got axes=2"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_the_fused_kernel_takes_fixed_axes_only():
    pytest.importorskip("triton")
    q = random(2, 12, 3, 32)
    fixed = lerope.RoPE(32, axes=2)
    expected = fixed(q, None, GRID)[0]
    fixed.kernel = "triton"
    torch.testing.assert_close(fixed(q, None, GRID)[0], expected, rtol=0, atol=1e-6)
    learned = lerope.LeRoPE(32, axes=2)
    learned.kernel = "triton"
    with pytest.raises(ValueError, match="several axes and frequencies are learned"):
        learned(q, None, GRID)
