"""Properties that hold for any input, searched by hypothesis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lerope

settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("ci")

head_dims = st.sampled_from([2, 4, 6, 16, 64])
layouts = st.sampled_from(["half", "interleaved"])
seeds = st.integers(0, 2**31 - 1)
methods = st.sampled_from(["pi", "ntk_by_parts", "yarn", "slow_bands", "dominant_band"])


def frequencies_of(seed: int, bands: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 10 ** (torch.rand(bands, generator=generator) * 6 - 5.5)


@given(head_dims, layouts, seeds, st.integers(-1000, 100_000))
def test_norms_are_kept(head_dim, layout, seed, position):
    torch.manual_seed(seed)
    x = torch.randn(1, 3, head_dim)
    out = lerope.rotate(x, position, frequencies_of(seed, head_dim // 2), layout)
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)


@given(head_dims, layouts, seeds, st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 5000))
def test_logits_depend_on_the_distance_alone(head_dim, layout, seed, s, t, shift):
    torch.manual_seed(seed)
    q, k = torch.randn(1, 1, head_dim, dtype=torch.float64), torch.randn(1, 1, head_dim, dtype=torch.float64)
    frequencies = frequencies_of(seed, head_dim // 2).double()

    def logit(s: int, t: int) -> torch.Tensor:
        return (lerope.rotate(q, s, frequencies, layout) * lerope.rotate(k, t, frequencies, layout)).sum()

    torch.testing.assert_close(logit(s, t), logit(s + shift, t + shift), rtol=0, atol=1e-9)


@given(head_dims, layouts, seeds, st.integers(0, 500), st.integers(0, 500))
def test_rotations_add_up(head_dim, layout, seed, s, t):
    torch.manual_seed(seed)
    x = torch.randn(1, 2, head_dim, dtype=torch.float64)
    frequencies = frequencies_of(seed, head_dim // 2).double()
    twice = lerope.rotate(lerope.rotate(x, s, frequencies, layout), t, frequencies, layout)
    torch.testing.assert_close(twice, lerope.rotate(x, s + t, frequencies, layout), rtol=0, atol=1e-10)


@given(head_dims, seeds, st.integers(1, 4), st.integers(0, 3))
def test_permuter_round_trip_and_equivalence(head_dim, seed, heads, rest):
    torch.manual_seed(seed)
    full = head_dim + 2 * rest
    weight = torch.randn(heads * full, 5, dtype=torch.float64)
    interleaved = lerope.permute_layout(weight, full, "interleaved", rotary_dim=head_dim)
    assert torch.equal(lerope.permute_layout(interleaved, full, "half", rotary_dim=head_dim), weight)
    x = torch.randn(3, 5, dtype=torch.float64)
    frequencies = frequencies_of(seed, head_dim // 2).double()
    one = lerope.rotate((x @ weight.T).view(3, heads, full), 11, frequencies, "half", head_dim, heads_first=False)
    other = lerope.rotate(
        (x @ interleaved.T).view(3, heads, full), 11, frequencies, "interleaved", head_dim, heads_first=False
    )
    permuted = lerope.permute_layout(one.flatten(-2), full, "interleaved", rotary_dim=head_dim, dim=-1)
    torch.testing.assert_close(other.flatten(-2), permuted, rtol=0, atol=1e-12)


@given(head_dims, layouts, seeds, st.integers(0, 131_072))
def test_rerotate_moves_a_cache_to_new_frequencies(head_dim, layout, seed, start):
    torch.manual_seed(seed)
    k = torch.randn(4, 2, head_dim)
    old, new = frequencies_of(seed, head_dim // 2), frequencies_of(seed + 1, head_dim // 2)
    moved = lerope.rerotate(lerope.rotate(k, start, old, layout), start, old, new, layout)
    torch.testing.assert_close(moved, lerope.rotate(k, start, new, layout), rtol=0, atol=5e-6)


@given(methods, seeds, st.integers(16, 8192), st.integers(1, 100_000), st.integers(1, 100_000))
def test_extend_is_monotone_in_length(method, seed, train_length, a, b):
    frequencies = frequencies_of(seed, 32)
    short, long = (
        lerope.extend(frequencies, train_length=train_length, length=n, method=method, dominant_band=seed % 32)
        for n in sorted((a, b))
    )
    assert (long.frequencies <= short.frequencies).all()
    assert (short.frequencies <= frequencies).all()
    assert long.logit_scale >= short.logit_scale >= 1
    s = min(1.0, train_length / max(a, b))
    assert (long.frequencies.double() >= frequencies.double() * s * (1 - 1e-6)).all()


@given(methods, seeds, st.integers(16, 8192), st.integers(16, 100_000))
def test_extend_is_continuous_in_length(method, seed, train_length, length):
    """One token more changes a frequency by at most its share of the length."""
    frequencies = frequencies_of(seed, 32)
    one, next_ = (
        lerope.extend(frequencies, train_length=train_length, length=n, method=method, dominant_band=3)
        for n in (length, length + 1)
    )
    change = ((one.frequencies - next_.frequencies) / frequencies).abs().max().item()
    assert change <= 1 / length + 1e-6
    assert abs(next_.logit_scale - one.logit_scale) <= 0.5 * (1 + 0.1 * 12) / length + 1e-6


@given(methods, seeds, st.integers(1, 8192), st.data())
def test_extend_is_the_identity_within_the_train_length(method, seed, train_length, data):
    length = data.draw(st.integers(1, train_length))
    frequencies = frequencies_of(seed, 32)
    result = lerope.extend(frequencies, train_length=train_length, length=length, method=method, dominant_band=0)
    assert torch.equal(result.frequencies, frequencies)
    assert result.logit_scale == 1.0


@given(st.sampled_from(["log", "linear", "direct"]), seeds)
def test_frequencies_json_round_trip_is_bitwise(parametrization, seed):
    import tempfile
    from pathlib import Path

    torch.manual_seed(seed)
    encoding = lerope.LeRoPE(16, 10_000.0, parametrization)
    with torch.no_grad():
        encoding.alpha.mul_(1 + 0.2 * torch.rand(8)).add_(0.01 * torch.rand(8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frequencies.json"
        encoding.save(path, train_length=2048)
        assert torch.equal(lerope.FrozenRoPE.load(path).frequencies(), encoding.frequencies())
        loaded = lerope.LeRoPE.load(path)
        torch.testing.assert_close(loaded.frequencies(), encoding.frequencies(), rtol=1.3e-7, atol=0)
        assert loaded.parametrization == parametrization


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_gains_are_permuted_with_the_projections(layout):
    """A whole QK-normed head in both layouts gives the same logits."""
    torch.manual_seed(0)
    weight_q, weight_k = torch.randn(2, 32, 8, dtype=torch.float64)
    gain = torch.rand(16, dtype=torch.float64) + 0.5
    x = torch.randn(6, 8, dtype=torch.float64)
    frequencies = frequencies_of(0, 8).double()

    def logits(wq, wk, gain, layout):
        q, k = ((x @ w.T).view(6, 2, 16) for w in (wq, wk))
        q, k = (torch.nn.functional.rms_norm(t, (16,), gain) for t in (q, k))
        return torch.einsum("shd,thd->hst", *(lerope.rotate(t, 0, frequencies, layout) for t in (q, k)))

    other = "half" if layout == "interleaved" else "interleaved"
    moved = (lerope.permute_layout(t, 16, other) for t in (weight_q, weight_k, gain))
    torch.testing.assert_close(logits(*moved, other), logits(weight_q, weight_k, gain, layout), rtol=1e-10, atol=1e-10)
