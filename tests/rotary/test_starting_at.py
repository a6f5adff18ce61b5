"""A LeRoPE that starts from a model's own frequencies instead of a base's."""

import copy

import pytest
import torch

import lerope

THETA = torch.tensor([1.5, 0.3, 0.0071, 0.0])


@pytest.mark.parametrize("parametrization", ["log", "linear", "direct"])
def test_it_starts_exactly_there(parametrization):
    encoding = lerope.LeRoPE.starting_at(THETA, parametrization=parametrization)
    assert torch.equal(encoding.frequencies(), THETA)
    assert encoding.alpha.isfinite().all()
    assert (encoding.head_dim, encoding.rotary_dim, encoding.base) == (8, 8, None)
    encoding.frequencies().sum().backward()
    expected = {"log": THETA, "linear": THETA, "direct": torch.ones(4)}[parametrization]
    torch.testing.assert_close(encoding.alpha.grad, expected)


def test_it_rotates_like_frozen_frequencies():
    q, k = torch.randn(2, 1, 5, 2, 16)
    encoding = lerope.LeRoPE.starting_at(THETA, head_dim=16)
    frozen = lerope.FrozenRoPE(THETA, 16)
    for one, other in zip(encoding(q, k, 3), frozen(q, k, 3), strict=True):
        assert torch.equal(one, other)


def test_the_start_is_in_the_checkpoint():
    """Unlike a base's series nothing else could bring it back."""
    encoding = lerope.LeRoPE.starting_at(THETA)
    with torch.no_grad():
        encoding.alpha.add_(0.5)
    other = lerope.LeRoPE.starting_at(torch.ones(4))
    other.load_state_dict(encoding.state_dict())
    assert torch.equal(other.frequencies(), encoding.frequencies())
    assert set(lerope.LeRoPE(8).state_dict()) == {"alpha"}


def test_casts_copies_and_the_meta_device():
    encoding = lerope.LeRoPE.starting_at(THETA).to(torch.bfloat16)
    assert torch.equal(encoding.frequencies(), THETA)
    assert torch.equal(copy.deepcopy(encoding).frequencies(), THETA)
    with torch.device("meta"):
        encoding = lerope.LeRoPE.starting_at(THETA)
    assert torch.equal(encoding.to_empty(device="cpu").frequencies(), THETA)


def test_artifact_with_and_without_a_base(tmp_path):
    theta = torch.tensor([0.5, 0.05])
    assert lerope.LeRoPE.starting_at(theta).artifact().log_scales is None
    scales = lerope.LeRoPE.starting_at(theta, base=100.0).artifact().log_scales
    assert scales == pytest.approx([-0.6931472, -0.6931472], abs=1e-6)


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        (torch.ones(2, 4), r"frequencies must have shape \(4\) for sharing='shared'; got \(2, 4\)"),
        (torch.ones(4).half(), "float32 or float64"),
        (torch.tensor([1.0, torch.inf]), "must be finite"),
    ],
)
def test_bad_input(theta, message):
    with pytest.raises(ValueError, match=message):
        lerope.LeRoPE.starting_at(theta)
