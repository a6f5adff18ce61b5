"""Every number of the paper's scaling analysis, recomputed from its printed perplexities."""

import numpy as np
import pytest

from lerope.core.ladder import LADDER, block_parameters, plan, total_parameters
from lerope.paper.numbers import SENSITIVITY as PRINTED
from lerope.scaling import (
    compute_multipliers,
    efficiency_gain,
    fit_hinge,
    fit_joint,
    fit_power_law,
    ladder_compute,
)
from tests.paper.losses import COMPUTE, LOSS, RUNGS


def near(got, want, digits):
    """Equal to the digits given."""
    np.testing.assert_allclose(got, want, rtol=0, atol=0.5000001 * 10.0**-digits)


def test_compute_is_that_of_the_plan():
    near(COMPUTE / [1e17, 1e18, 1e19, 1e20, 1e20], [1.1697, 3.9234, 3.7176, 1.9410, 7.1434], 4)
    with pytest.raises(ValueError, match=r"rung must be one of demo, 19M, 52M.*; got '3B'"):
        ladder_compute("3B")


def test_compute_multipliers():
    near(compute_multipliers(COMPUTE, LOSS["rope"], LOSS["lerope"]), [1.07096, 1.04831, 1.04723, 1.03219, 1.03363], 5)
    near(compute_multipliers(COMPUTE, LOSS["rope"], LOSS["prope"]), [0.99439, 1.00489, 1.00870, 1.00717, 1.00607], 5)
    np.testing.assert_allclose(compute_multipliers(COMPUTE, LOSS["rope"], LOSS["rope"]), 1, rtol=1e-12)


def test_other_definitions_do_not_give_the_paper_s_multipliers():
    """What one might take for the definition, and what it gives instead."""
    total = np.array([6 * total_parameters(LADDER[r]) * plan(LADDER[r]).tokens for r in RUNGS], float)
    near(compute_multipliers(total, LOSS["rope"], LOSS["lerope"]), [1.0575, 1.0443, 1.0451, 1.0313, 1.0327], 4)
    short = np.array([6 * 20 * block_parameters(LADDER[r]) ** 2 for r in RUNGS], float)
    near(compute_multipliers(short, LOSS["rope"], LOSS["lerope"])[0], 1.0845, 4)
    rope, variant = np.exp(LOSS["rope"]), np.exp(LOSS["lerope"])
    near(compute_multipliers(COMPUTE, rope, variant)[0], 1.0908, 4)
    # On a raw compute axis instead of its logarithm: each of LeRoPE's losses is below RoPE's of the same rung, and so
    # on the segment that starts there, the last one continued.
    first = np.array([0, 1, 2, 3, 3])
    slope = np.diff(COMPUTE)[first] / np.diff(LOSS["rope"])[first]
    reached = COMPUTE[first] + slope * (LOSS["lerope"] - LOSS["rope"][first])
    near(reached / COMPUTE, [1.6351, 1.1778, 1.1179, 1.0652, 1.0185], 4)


def test_single_fit():
    fit = fit_power_law(COMPUTE, LOSS["rope"])
    near(fit.E, 0.640702, 6)
    near(fit.A, 26.4238, 4)
    near(fit.alpha, 0.0574016, 7)
    near(fit.rmse, 5.3144e-4, 8)
    near(efficiency_gain(fit, COMPUTE, LOSS["lerope"]), [1.06406, 1.04706, 1.03882, 1.03919, 1.03106], 5)
    near(efficiency_gain(fit, COMPUTE, LOSS["prope"]), [0.99479, 1.00640, 1.00197, 1.01509, 1.00276], 5)
    others = {"prope": (0.6633, 26.935, 0.05809, 4.80e-4), "lerope": (0.6254, 25.858, 0.05680, 1.93e-4)}
    for name, (floor, a, alpha, rmse) in others.items():
        fit = fit_power_law(COMPUTE, LOSS[name])
        near(fit.E, floor, 4)
        near(fit.A, a, 3)
        near(fit.alpha, alpha, 5)
        near(fit.rmse, rmse, 6)


def test_rounded_parameters_are_a_trap():
    from lerope.scaling import PowerLaw

    rounded = PowerLaw(A=26.4, alpha=0.0574, E=0.641, rmse=0.0)
    near(efficiency_gain(rounded, COMPUTE, LOSS["lerope"]), [1.0506, 1.0344, 1.0266, 1.0273, 1.0195], 4)


# Floor, alpha, A, rmse, efficiency gains of LeRoPE.
SENSITIVITY = [
    (0.0, 0.04440, 19.484, 6.3453e-3, [1.0278, 1.1177, 1.0902, 1.0309, 0.9523]),
    (0.3, 0.04967, 21.872, 3.7933e-3, [1.0433, 1.0886, 1.0690, 1.0336, 0.9819]),
    (0.5, 0.05393, 24.216, 1.7642e-3, [1.0550, 1.0655, 1.0522, 1.0364, 1.0081]),
    (0.641, 0.05741, 26.429, 5.3146e-4, [1.0641, 1.0470, 1.0388, 1.0392, 1.0311]),
    (0.8, 0.06191, 29.750, 2.2449e-3, [1.0751, 1.0236, 1.0218, 1.0434, 1.0634]),
    (1.0, 0.06868, 35.881, 5.4716e-3, [1.0903, 0.9893, 0.9968, 1.0510, 1.1177]),
]


@pytest.mark.parametrize(("floor", "alpha", "a", "rmse", "gains"), SENSITIVITY)
def test_sensitivity_to_the_floor(floor, alpha, a, rmse, gains):
    fit = fit_power_law(COMPUTE, LOSS["rope"], floor)
    near(fit.alpha, alpha, 5)
    near(fit.A, a, 3)
    near(fit.rmse, rmse, 7)
    near(efficiency_gain(fit, COMPUTE, LOSS["lerope"]), gains, 4)


def test_only_least_squares_on_the_loss_gives_the_paper_s_sensitivity():
    """Residuals in ln L, and a straight line in ln(L - E), against the printed gains at each floor."""
    from scipy.optimize import least_squares

    x = np.log(COMPUTE) - np.log(COMPUTE).mean()
    worst = dict.fromkeys(("loss", "log loss", "line"), 0.0)
    for floor, (_, _, printed) in PRINTED.items():
        slope, height = np.polyfit(x, np.log(LOSS["rope"] - floor), 1)

        def residuals(p, floor=floor):
            return np.log(floor + np.exp(p[0] + p[1] * x)) - np.log(LOSS["rope"])

        in_log = least_squares(residuals, [height, slope], x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15).x
        fit = fit_power_law(COMPUTE, LOSS["rope"], floor)
        gains = {"loss": efficiency_gain(fit, COMPUTE, LOSS["lerope"])}
        for name, (a, b) in (("log loss", in_log), ("line", (height, slope))):
            gains[name] = np.exp((np.log(LOSS["lerope"] - floor) - a) / b - x)
        for name, values in gains.items():
            worst[name] = max(worst[name], np.abs(values - np.array(printed, float)).max())
    assert worst["loss"] < 0.0005
    near(worst["log loss"], 0.0176, 4)
    near(worst["line"], 0.0242, 4)


def test_the_spread_of_gains_over_floors():
    """Unrounded 0.136 from E = 0.3 on and 0.165 from 0; of the printed gains, 0.166."""
    floors = [floor for floor, *_ in SENSITIVITY]
    gains = [efficiency_gain(fit_power_law(COMPUTE, LOSS["rope"], e), COMPUTE, LOSS["lerope"]) for e in floors]
    near(np.ptp(gains[1:], axis=0).max(), 0.136, 3)
    near(np.ptp(gains, axis=0).max(), 0.165, 3)
    near(np.ptp([np.array(row[2], float) for row in PRINTED.values()], axis=0).max(), 0.166, 6)


def test_joint_fit():
    fit = fit_joint(COMPUTE, LOSS)
    near(fit.E, 0.64335, 5)
    near(fit.rmse, 4.721e-4, 7)
    for name, a, alpha, rmse in (
        ("rope", 26.471, 0.05747, 5.33e-4),
        ("prope", 26.569, 0.05756, 5.45e-4),
        ("lerope", 26.169, 0.05727, 2.97e-4),
    ):
        near(fit.methods[name].A, a, 3)
        near(fit.methods[name].alpha, alpha, 5)
        near(fit.methods[name].rmse, rmse, 6)
    rope = fit.methods["rope"]
    near(efficiency_gain(rope, COMPUTE, LOSS["lerope"]), [1.0642, 1.0467, 1.0386, 1.0392, 1.0315], 4)
    near(efficiency_gain(rope, COMPUTE, LOSS["prope"]), [0.9950, 1.0060, 1.0017, 1.0151, 1.0032], 4)
    exponents = [method.alpha for method in fit.methods.values()]
    near(100 * (max(exponents) / min(exponents) - 1), 0.509, 3)
    single = efficiency_gain(fit_power_law(COMPUTE, LOSS["rope"]), COMPUTE, LOSS["lerope"])
    near(np.abs(efficiency_gain(rope, COMPUTE, LOSS["lerope"]) - single).max(), 0.00048, 5)
    near(fit_joint(COMPUTE, LOSS, 0.3).rmse, 3.81e-3, 5)
    held = fit_joint(COMPUTE, LOSS, 1.0)
    near(held.rmse, 5.43e-3, 5)
    near(max(method.rmse for method in held.methods.values()), 5.61e-3, 5)


def test_hinge():
    fit = fit_hinge(COMPUTE, LOSS["rope"])
    near(np.exp(fit.x0) / 1e19, 1.12, 2)
    near(fit.c1, 0.0457, 4)
    near(fit.c2, 0.0426, 4)
    near(fit.rmse, 1.095e-3, 6)
    # The target's break comes from a grid, ours is refined further: the gains differ by up to 6e-5.
    got = efficiency_gain(fit, COMPUTE, LOSS["lerope"])
    np.testing.assert_allclose(got, [1.0655, 1.0441, 1.0388, 1.0504, 1.0215], rtol=0, atol=1e-4)
    # The claim that gains fall below 1 needs the break pinned at 1.34B or later, where the fit is bad.
    pinned = fit_hinge(COMPUTE, LOSS["rope"], np.log(COMPUTE[3]))
    near(pinned.rmse, 4.1e-3, 4)
    near(efficiency_gain(pinned, COMPUTE, LOSS["lerope"])[3], 0.984, 3)


@pytest.mark.parametrize(("width", "rmse"), [(0.2, 1.095e-3), (1.0, 8.6e-4), (2.0, 6.5e-4)])
def test_a_smooth_break_fits_better_the_smoother_it_is(width, rmse):
    """Caballero's form; at a width of 0.2 it is the hinge."""
    from scipy.optimize import least_squares

    x = np.log(COMPUTE)

    def residuals(p):
        return np.exp(p[0] - p[1] * x - p[2] * width * np.logaddexp(0, (x - p[3]) / width)) - LOSS["rope"]

    starts = [(3.0, 0.0457, -0.003, x0) for x0 in np.linspace(x[0], x[-1], 15)]
    found = [least_squares(residuals, s, x_scale="jac", xtol=1e-14, ftol=1e-14, gtol=1e-14) for s in starts]
    best = min(np.sqrt(np.mean(fit.fun**2)) for fit in found)
    np.testing.assert_allclose(best, rmse, rtol=0.02)


def test_fits_find_what_was_planted():
    compute = np.geomspace(1e17, 1e21, 7)
    fit = fit_power_law(compute, 0.9 + 31.0 * compute**-0.061)
    assert (fit.E, fit.A, fit.alpha) == (
        pytest.approx(0.9, abs=1e-6),
        pytest.approx(31, rel=1e-4),
        pytest.approx(0.061),
    )
    np.testing.assert_allclose(fit.compute(fit.loss(compute)), compute, rtol=1e-9)
    assert fit.compute([0.5])[0] == np.inf
    hinge = fit_hinge(compute, 300 * compute**-0.1 * np.maximum(compute / 1e19, 1) ** 0.03)
    np.testing.assert_allclose(hinge.compute(hinge.loss(compute)), compute, rtol=1e-6)
    assert hinge.rmse < 1e-6


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: compute_multipliers([1e18], [3.0], [2.9]), "compute must be two or more different positive numbers"),
        (lambda: compute_multipliers([1e18, 1e18], [3, 2], [3, 2]), "compute must be two or more different"),
        (lambda: compute_multipliers([1e18, -1], [3, 2], [3, 2]), "compute must be two or more different positive"),
        (lambda: compute_multipliers([1e18, 1e19], [3, 2], [3]), "losses must be 2 positive numbers"),
        (lambda: compute_multipliers([1e18, 1e19], [3, np.nan], [3, 2]), "losses must be 2 positive numbers"),
        (lambda: compute_multipliers([1e18, 1e19], [2, 3], [3, 2]), "baseline_loss must fall with compute"),
        (lambda: fit_power_law([1e18, 1e19], [3, 2]), "compute must have three points or more"),
        (lambda: fit_power_law(COMPUTE, LOSS["rope"], 2.5), "floor must be from 0 to below the lowest loss, 2.3196"),
        (lambda: fit_power_law(COMPUTE, LOSS["rope"], -1), "floor must be from 0"),
        (lambda: fit_joint(COMPUTE, {}), "losses must name at least one method"),
        (lambda: fit_hinge([1e18, 1e19, 1e20], [3, 2.5, 2]), "compute must have four points or more"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
