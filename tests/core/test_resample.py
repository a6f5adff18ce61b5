"""Frequencies for another head size and train length: against a float64 reference, and what must hold for all."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerope.core.resample import Curve, Learned, moved, other_bands, resample, rope, with_dominant
from tests.made_presets import made_log_scales

# Two dozen float64 operations on numbers up to about 20.
TIGHT = {"rtol": 0, "atol": 1e-12}


def reference_moved(x, source, target):
    """Three straight lines through the two points that bound what is stretched, by numpy's interpolation."""
    fast = np.log(64 * np.pi / np.minimum(source, target))
    ends = [np.log(2 * np.pi / source) - 100, np.log(2 * np.pi / source), fast, fast + 100]
    goals = [np.log(2 * np.pi / target) - 100, np.log(2 * np.pi / target), fast, fast + 100]
    return np.interp(x, ends, goals)


def reference(profiles, base, num_bands, length):
    """profiles: train length to log-scales. Interpolates ln frequency over u, not log-scales."""
    x = -np.log(base) * np.arange(num_bands) / num_bands

    def one(source):
        scales = np.asarray(profiles[source])
        u = np.arange(len(scales)) / len(scales)
        # A knot at either end, far away, where the log-scale is that of the last band.
        u, scales = np.array([-9.0, *u, 9.0]), np.array([scales[0], *scales, scales[-1]])
        y = scales - u * np.log(base)
        found = np.interp(-reference_moved(x, length, source) / np.log(base), u, y)
        return reference_moved(found, source, length)

    known = sorted(profiles)
    lower, upper = (
        max([k for k in known if k <= length], default=known[0]),
        min([k for k in known if k >= length], default=known[-1]),
    )
    if length <= known[0] or length >= known[-1] or lower == upper:
        return one(upper if length <= known[0] else lower)
    share = np.log(length / lower) / np.log(upper / lower)
    return (1 - share) * one(lower) + share * one(upper)


lengths = st.integers(64, 1 << 20)
bands = st.integers(1, 128)
bases = st.floats(10.0, 1e8)


@st.composite
def curves(draw):
    """Any profile whose frequencies fall from band to band."""
    base, steps = draw(bases), draw(st.lists(st.floats(0, 2), min_size=1, max_size=64))
    logs = draw(st.floats(-1, 1)) - np.cumsum(steps)
    return Curve((logs - rope(len(steps), base)).tolist(), base)


@settings(deadline=None)
@given(curves(), lengths, lengths, lengths, bands)
def test_it_is_the_reference(curve, one, other, length, num_bands):
    other_scales = [0.5 * scale for scale in curve.log_scales]
    profiles = {one: list(curve.log_scales), other: other_scales} if one != other else {one: other_scales}
    learned = [Learned(Curve(profiles[each], curve.base), each, None) for each in sorted(profiles)]
    got = resample(learned, num_bands, length)
    np.testing.assert_allclose(got, reference(profiles, curve.base, num_bands, length), rtol=0, atol=1e-10)


@settings(deadline=None)
@given(curves(), lengths)
def test_what_was_measured_comes_back(curve, length):
    got = resample([Learned(curve, length, None)], len(curve.log_scales), length)
    want = np.add(curve.log_scales, rope(len(got), curve.base))
    np.testing.assert_allclose(got, want, **TIGHT)
    np.testing.assert_allclose(other_bands(curve.log_scales, curve.base, len(got)), curve.log_scales, **TIGHT)


@settings(deadline=None)
@given(curves(), lengths, lengths, lengths, bands, st.floats(-20, 1))
def test_what_falls_goes_on_falling(curve, one, other, length, num_bands, dominant):
    measured = sorted({one, other})
    learned = [Learned(curve, each, dominant) for each in measured]
    assert (np.diff(resample(learned, num_bands, length)) <= 1e-12).all()


@settings(deadline=None)
@given(bases, lengths, lengths, bands, bands)
def test_rope_stays_rope(base, source, target, before, after):
    got = resample([Learned(Curve([0.0] * before, base), source, None)], after, target)
    np.testing.assert_allclose(got, rope(after, base), **TIGHT)


@given(st.floats(-25, 3), st.floats(-25, 3), lengths, lengths)
def test_a_move_keeps_order_and_is_undone_by_the_way_back(x, y, source, target):
    assert moved(moved(x, source, target), target, source) == pytest.approx(x, abs=1e-12)
    if x < y:
        assert moved(x, source, target) < moved(y, source, target) + 1e-12
    assert moved(x, source, source) == x


@settings(deadline=None)
@given(st.sampled_from([2048, 4096, 8192]), st.sampled_from([16, 32, 64]), st.sampled_from([1e4, 5e5]), bands)
def test_twice_the_length_is_twice_the_dominant_wavelength_and_leaves_fast_bands(length, before, base, after):
    dominant = math.log(2 * math.pi / (2.2 * length))
    learned = Learned(Curve(made_log_scales(before, length, base), base), length, dominant)
    one, two = (np.exp(resample([learned], after, scale * length)) for scale in (1, 2))
    for found, wavelength in ((one, 2.2 * length), (two, 4.4 * length)):
        assert min(abs(2 * np.pi / found / wavelength - 1)) < 1e-12
    # RoPE's own frequency and the learned one above 32 turns: nothing moves there.
    limit = 64 * np.pi / length
    fast = (np.exp(rope(after, base)) >= limit) & (one >= limit)
    np.testing.assert_allclose(two[fast], one[fast], rtol=1e-12)
    # And slow ones keep their turns in the train length, at the band that was as slow.
    x = math.log(0.9 * 2 * math.pi / length) - math.log(2)
    y = learned.at(x, 2 * length)
    if learned.curve.at(x + math.log(2)) < math.log(2 * math.pi / length):
        assert y == pytest.approx(learned.curve.at(x + math.log(2)) - math.log(2), abs=1e-12)


def test_the_dominant_band_moves_as_in_the_paper():
    """Table of dominant bands, 217M: from 2,048 to 4,096 and 8,192 it went from band 16 to 18 and 19 of 32, and from
    4,243 to 9,482 and 18,098 tokens, of which twice and four times the first are 10 % and 6 % short."""
    x, y = rope(32, 10_000.0)[16], math.log(2 * math.pi / 4243.3)
    for length, band, wavelength in ((4096, 18, 9481.7), (8192, 19, 18097.8)):
        assert round(-moved(x, 2048, length) / math.log(10_000.0) * 32) == band
        got = 2 * math.pi / math.exp(moved(y, 2048, length))
        assert got == pytest.approx(4243.3 * length / 2048, rel=1e-12)
        assert got == pytest.approx(wavelength, rel=0.11)


def test_no_band_falls_between_two():
    """Half the bands: the dominant one was an odd one, and would be lost."""
    scales = made_log_scales(32, 2048)
    x = rope(32, 10_000.0)
    dominant = scales[17] + x[17]
    got = resample([Learned(Curve(scales, 10_000.0), 2048, dominant)], 16, 2048)
    assert dominant in got
    assert sum(abs(g - s - r) > 1e-12 for g, s, r in zip(got, scales[::2], x[::2], strict=True)) == 1
    assert with_dominant([3.0, 1.0, -5.0], 0.5) == [3.0, 0.5, -5.0]
    assert with_dominant([3.0, 1.0], None) == [3.0, 1.0]
