"""The paper's tables of runs, seeds and dominant bands against what its printed numbers give."""

from collections import Counter

import numpy as np
import pytest

from lerope.core.ladder import LEARNING_RATE_INDEX
from lerope.paper import numbers
from lerope.paper.numbers import DOMINANT_BANDS, SEED_42_PERPLEXITY, SEEDS
from lerope.paper.printed import Entry, entry, printed_range
from lerope.paper.recomputed import recomputed
from lerope.scaling import wavelength_ratio

ENTRIES = {(found.table, found.name): found for found in recomputed()}
WITHIN = "within the rounding of its inputs"

LENGTHS = [length for length, *_ in DOMINANT_BANDS.values()]
WAVELENGTHS = [float(row[4]) for row in DOMINANT_BANDS.values()]


def test_dominant_wavelengths_over_lengths():
    found = wavelength_ratio(LENGTHS, WAVELENGTHS)
    ratios = np.array(WAVELENGTHS) / LENGTHS
    np.testing.assert_allclose(ratios, [2.072, 2.315, 2.209, 2.103, 2.093, 2.036], atol=5e-4)
    assert found.mean == pytest.approx(2.138, abs=5e-4)
    assert found.standard_deviation == pytest.approx(0.104, abs=5e-4)
    assert found.slope == pytest.approx(2.2046, abs=5e-5)
    assert found.largest_weight == pytest.approx(0.67, abs=5e-3)
    # The same data by other estimators, none of which is 2.205.
    assert wavelength_ratio([2048] * 4, [WAVELENGTHS[i] for i in (0, 3, 4, 5)]).mean == pytest.approx(2.076, abs=5e-4)
    slope, intercept = np.polyfit(LENGTHS, WAVELENGTHS, 1)
    assert (slope, intercept) == (pytest.approx(2.267, abs=5e-4), pytest.approx(-308, abs=0.5))
    by_length = [ratios[np.array(LENGTHS) == length].mean() for length in (2048, 4096, 8192)]
    assert np.mean(by_length) == pytest.approx(2.200, abs=5e-4)


def test_dominant_wavelengths_of_code():
    assert wavelength_ratio([2048], [5250]).mean == pytest.approx(2.56, abs=5e-3)
    one = wavelength_ratio([8192], [16627])
    assert one.mean == one.slope == pytest.approx(2.03, abs=5e-3)
    assert one.standard_deviation is None
    assert one.largest_weight == 1


@pytest.mark.parametrize(
    ("lengths", "wavelengths", "sentence"),
    [
        ([], [], "lengths must be one or more positive numbers"),
        ([2048], [0.0], r"wavelengths must be one or more positive numbers; got \[0.0\]"),
        ([2048], [float("inf")], "wavelengths must be one or more positive"),
        ([2048], [1.0, 2.0], "wavelengths must be 1 numbers, one for each length; got 2"),
    ],
)
def test_bad_wavelengths_are_one_sentence(lengths, wavelengths, sentence):
    with pytest.raises(ValueError, match=sentence):
        wavelength_ratio(lengths, wavelengths)


# Recomputed from printed digits, to the digits given.
VALUES = [
    ("dominant bands", "217M, 4096, frequency", 6.62e-4, 6),
    ("dominant bands", "wavelength / length, slope", 2.2046, 4),
    ("dominant bands", "wavelength / length, mean of runs", 2.138, 3),
    ("seeds, 217M", "RoPE - LeRoPE", 0.00653, 5),
    ("seeds, 217M", "RoPE - LeRoPE, deviation", 0.00189, 5),
    ("seeds, 217M", "b = 500k - LeRoPE, deviation", 0.00083, 5),
    ("seeds, 608M", "RoPE - LeRoPE", 0.00407, 5),
    ("seeds, 608M", "RoPE - LeRoPE, deviation", 0.00100, 5),
    ("seeds, 608M", "LeRoPE, mean", 2.62533, 5),
    ("217M, in the text", "b = 500k, share of the gain", 0.58, 2),
    ("217M, in the text", "gap / LeRoPE's deviation", 3.5, 1),
    ("217M, in the text", "gap / RoPE's deviation", 6.6, 1),
    ("217M, in the text", "best RoPE - worst LeRoPE", 0.0034, 4),
    ("gain captured, %", "p-RoPE", 10.36, 2),
    ("gain captured, %", "Fixed LeRoPE", 63.63, 2),
    ("loss of a perplexity", "Fixed LeRoPE", 2.89985, 5),
    ("ablations", "b = 2048 - RoPE", 0.0072, 4),
    ("code", "LeRoPE - RoPE", -0.0103, 4),
]


@pytest.mark.parametrize(("table", "name", "value", "digits"), VALUES)
def test_recomputed_values(table, name, value, digits):
    assert ENTRIES[table, name].value == pytest.approx(value, abs=0.5001 * 10.0**-digits)


@pytest.mark.parametrize(
    ("table", "name", "low", "high", "digits"),
    [
        ("seeds, 217M", "RoPE - LeRoPE", 0.00647, 0.00661, 5),
        ("seeds, 608M", "RoPE - LeRoPE", 0.00399, 0.00413, 5),
        ("seeds, 608M", "LeRoPE, mean", 2.62531, 2.62538, 5),
    ],
)
def test_what_hidden_digits_leave_open(table, name, low, high, digits):
    """Bounds to one unit of their last digit, which were cut off rather than rounded."""
    found = ENTRIES[table, name]
    assert (found.low, found.high) == (
        pytest.approx(low, abs=1.001 * 10.0**-digits),
        pytest.approx(high, abs=1.001 * 10.0**-digits),
    )
    assert found.status == WITHIN


def test_what_does_not_reproduce_is_known():
    number = Counter(found.status for found in ENTRIES.values())
    assert number == {"reproduces": 109, WITHIN: 16, "differs": 3}
    assert [key for key, found in ENTRIES.items() if found.status == "differs"] == [
        ("floor held at 0", "rmse"),
        ("dominant bands", "wavelength / length, mean of runs"),
        ("gain captured, %", "Fixed LeRoPE, in the text"),
    ]
    within = [key for key, found in ENTRIES.items() if found.status == WITHIN]
    assert [key for key in within if key[0] != "dominant bands"] == [
        ("seeds, 217M", "RoPE - LeRoPE"),
        ("seeds, 608M", "RoPE - LeRoPE"),
        ("seeds, 608M", "LeRoPE, mean"),
        ("loss of a perplexity", "Fixed LeRoPE"),
        ("ablations", "b = 2048 - RoPE"),
        ("code", "LeRoPE - RoPE"),
    ]


def test_dominant_bands_agree_as_far_as_their_scales_are_printed():
    """Wavelengths are off by at most 6.4 tokens, frequency * length by 0.001 in four rows."""
    rows = [found for (table, _), found in ENTRIES.items() if table == "dominant bands"]
    waves = [found for found in rows if found.name.endswith(", wavelength")]
    assert max(abs(found.value - float(found.printed)) for found in waves) == pytest.approx(6.4, abs=0.05)
    turns = [found for found in rows if found.name.endswith("frequency * length")]
    assert sum(f"{found.value:.3f}" != found.printed for found in turns) == 4


def test_seed_margins_that_the_paper_does_not_print():
    rope, lerope = (np.array(SEEDS["608M"][method][0], float) for method in ("RoPE", "LeRoPE"))
    assert rope.min() - lerope.max() == pytest.approx(0.0031)
    short, default, _, learned = (np.array(row[0], float) for row in SEEDS["217M"].values())
    assert np.std(short - learned, ddof=1) == pytest.approx(0.00044, abs=5e-6)
    np.testing.assert_allclose(default - learned, [0.0057, 0.0087, 0.0052], atol=1e-9)
    np.testing.assert_allclose(rope - lerope, [0.0051, 0.0040, 0.0031], atol=1e-9)
    # Paired margins do not vary less than the methods themselves: correlations over seeds are weak or negative.
    assert np.corrcoef(default, learned)[0, 1] == pytest.approx(0.27, abs=5e-3)
    assert np.corrcoef(rope, lerope)[0, 1] == pytest.approx(-0.20, abs=5e-3)


def test_gain_captured_in_loss_is_another_number():
    names = ("RoPE", "p-RoPE", "Fixed LeRoPE", "LeRoPE")
    rope, prope, fixed, lerope = np.log([float(SEED_42_PERPLEXITY["217M", name]) for name in names])
    assert 100 * (rope - prope) / (rope - lerope) == pytest.approx(10.34, abs=0.005)
    assert 100 * (rope - fixed) / (rope - lerope) == pytest.approx(63.56, abs=0.005)
    assert ENTRIES["gain captured, %", "p-RoPE"].value != pytest.approx(10.34, abs=0.005)


@pytest.mark.parametrize(
    ("printed", "value", "low", "high", "status"),
    [
        ("0.0066", 0.00655, None, None, "reproduces"),
        ("0.0066", 0.00654, None, None, "differs"),
        ("0.0066", 0.00654, 0.0064, 0.00656, WITHIN),
        ("0.0066", 0.00654, 0.0064, 0.006545, "differs"),
        ("6.4e-3", 0.006345, None, None, "differs"),
        ("6.4e-3", 0.00636, None, None, "reproduces"),
        ("63", 63.6, None, None, "differs"),
    ],
)
def test_status(printed, value, low, high, status):
    assert Entry("", "", printed, value, low, high).status == status


def test_ranges_of_printed_numbers():
    assert printed_range("2.90") == (pytest.approx(2.895), pytest.approx(2.905))
    assert printed_range("5.3e-4") == (pytest.approx(5.25e-4), pytest.approx(5.35e-4))
    found = entry("", "", "0.07", lambda x: x[0] - x[1], ["2.91", "2.84"])
    assert (found.low, found.value, found.high) == (pytest.approx(0.06), pytest.approx(0.07), pytest.approx(0.08))


def test_learning_rates_of_the_ladder_are_the_paper_s():
    """Indices in one place, printed rates in the other."""
    for rung, printed in numbers.LEARNING_RATES.items():
        assert f"{2 ** (-LEARNING_RATE_INDEX[rung] / 2):.2e}".replace("e-0", "e-") == printed
