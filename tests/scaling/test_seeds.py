"""Intervals hold what they claim to hold as often as they claim, and the bootstrap is the one that is meant."""

import numpy as np
import pytest
from scipy import special

from lerope.scaling import seeds
from lerope.scaling.seeds import (
    effect,
    gain_captured,
    gap_by_position,
    over_both,
    over_documents,
    over_seeds,
    resampled,
)
from tests.scaling.studies import simulate

PLANTED = 0.003


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_95_percent_intervals_hold_the_truth_in_95_percent_of_1000_studies(num_seeds):
    """93 to 97 %: the standard error of a share of 1,000 is 0.7 %."""
    generator = np.random.default_rng(num_seeds)
    inside = np.zeros(2)
    for _ in range(1000):
        found = simulate(generator, PLANTED, num_seeds)
        seeds_alone = over_seeds(found.differences, found.tokens)
        both = over_both(found.differences, found.tokens)
        inside += [
            seeds_alone.low <= found.all_seeds_these_documents <= seeds_alone.high,
            both.low <= PLANTED <= both.high,
        ]
    assert ((inside / 1000 >= 0.93) & (inside / 1000 <= 0.97)).all(), inside / 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"num_documents": 500},
        {"num_documents": 500, "seed_deviation": 0.0},
        {"num_documents": 500, "seed_deviation": 0.003},
        {"num_documents": 500, "pair_deviation": 0.0, "document_deviation": 0.02},
    ],
)
@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_the_interval_over_both_errs_to_the_wide_side(num_seeds, changes):
    """With few documents, whose noise outweighs that of seeds, it holds the truth in up to 99 % instead of 95 %."""
    generator = np.random.default_rng(20 + num_seeds)
    inside = 0
    for _ in range(1000):
        found = simulate(generator, PLANTED, num_seeds, **changes)
        both = over_both(found.differences, found.tokens)
        inside += both.low <= PLANTED <= both.high
    assert 0.94 <= inside / 1000 <= 0.995


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_intervals_over_documents_hold_what_these_seeds_give_on_all_documents(num_seeds):
    generator = np.random.default_rng(num_seeds)
    inside = 0
    for _ in range(1000):
        found = simulate(generator, PLANTED, num_seeds, num_documents=600)
        documents = over_documents(found.differences, found.tokens)
        inside += documents.low <= found.these_seeds_all_documents <= documents.high
    assert 0.93 <= inside / 1000 <= 0.97


@pytest.mark.parametrize(
    ("seed_deviation", "least", "most"), [(0.0, 0.005, 0.05), (0.001, 0.025, 0.065), (0.003, 0.03, 0.065)]
)
@pytest.mark.parametrize("num_seeds", [3, 5])
def test_without_an_effect_one_study_in_twenty_or_fewer_claims_one(num_seeds, seed_deviation, least, most):
    """Fewer where seeds do not matter at all, because the interval does not trust seeds that agree."""
    generator = np.random.default_rng(10 * num_seeds)
    claims = 0
    for _ in range(1000):
        found = simulate(generator, 0.0, num_seeds, seed_deviation=seed_deviation)
        claims += over_both(found.differences, found.tokens).excludes_zero
    assert least <= claims / 1000 <= most


def test_documents_alone_would_claim_far_too_much():
    """Why seeds matter: with many documents, a seed's luck looks like an effect."""
    generator = np.random.default_rng(1)
    alone = both = 0
    for _ in range(200):
        found = simulate(generator, 0.0, 3, num_documents=2000, seed_deviation=0.002, document_deviation=0.01)
        alone += over_documents(found.differences, found.tokens).excludes_zero
        both += over_both(found.differences, found.tokens).excludes_zero
    assert alone / 200 > 0.25
    assert both / 200 < 0.1


def test_a_percentile_bootstrap_of_three_seeds_is_their_range():
    """Its coverage is then 1 - 2 / 2^3 = 75 %, which is why seeds are not resampled."""
    generator = np.random.default_rng(2)
    values = generator.standard_normal((4000, 3))
    means = values[:, generator.integers(0, 3, (3000, 3))].mean(-1)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    np.testing.assert_allclose(low, values.min(1), atol=1e-12)
    np.testing.assert_allclose(high, values.max(1), atol=1e-12)
    assert ((low <= 0) & (high >= 0)).mean() == pytest.approx(0.75, abs=0.025)


def test_over_seeds_is_student_s_t():
    """The paper's 217M pairs, RoPE - LeRoPE: .0057 .0087 .0052, t(0.975, 2) = 4.30265."""
    tokens = np.array([100.0, 300.0])
    pairs = np.array([0.0057, 0.0087, 0.0052])
    found = over_seeds(pairs[:, None] * tokens, tokens)
    half = 4.30265 * 0.00189297 / np.sqrt(3)
    assert (found.low, found.high) == (
        pytest.approx(0.00653333 - half, abs=1e-7),
        pytest.approx(0.00653333 + half, abs=1e-7),
    )


def test_over_both_is_what_its_variances_say():
    """Two seeds and three documents of equal length, by hand."""
    tokens = np.array([10.0, 10.0, 10.0])
    per_token = np.array([[0.01, 0.02, 0.06], [0.03, 0.04, 0.02]])
    found = over_both(per_token * tokens, tokens)
    # By seed 0.03 and 0.03, by document 0.02, 0.03 and 0.04: seeds that agree by chance leave the documents' error.
    half = 4.30265 * np.sqrt(1e-4 / 3)
    assert (found.low, found.high) == (pytest.approx(0.03 - half, rel=1e-4), pytest.approx(0.03 + half, rel=1e-4))
    # Seeds that differ by 0.002 on all documents alike.
    crossed = per_token.mean(0) + np.array([[-0.001], [0.001]])
    found = over_both(crossed * tokens, tokens)
    seeds_variance, documents = 2e-6 / 2, 1e-4 / 3
    half = (12.7062 * seeds_variance + 4.30265 * documents) / np.sqrt(seeds_variance + documents)
    assert (found.low, found.high) == (pytest.approx(0.03 - half, rel=1e-4), pytest.approx(0.03 + half, rel=1e-4))


def test_over_both_is_a_two_way_analysis_of_variance_where_documents_are_alike():
    """Three seeds, three documents: both quantiles are t(0.975, 2), so that only the variance is left to compare."""
    values = np.array([[0.010, 0.021, 0.062], [0.012, 0.026, 0.058], [0.020, 0.031, 0.069]])
    rows, columns, mean = values.mean(1), values.mean(0), values.mean()
    by_seed = 3 * ((rows - mean) ** 2).sum() / 2
    by_document = 3 * ((columns - mean) ** 2).sum() / 2
    rest = ((values - rows[:, None] - columns + mean) ** 2).sum() / 4
    assert by_document > rest
    half = 4.30265 * np.sqrt((by_seed + by_document - rest) / 9)
    found = over_both(values * 7, np.full(3, 7.0))
    assert (found.low, found.high) == (pytest.approx(mean - half, rel=1e-4), pytest.approx(mean + half, rel=1e-4))


@pytest.mark.parametrize("num_documents", [3, 7, 20, 50])
@pytest.mark.parametrize("num_seeds", [1, 3, 10])
def test_intervals_hold_what_they_claim_over_few_and_unequal_documents(num_documents, num_seeds):
    """One book among letters is most of the text: a bootstrap of 7 such documents held the truth in 80 %."""
    generator = np.random.default_rng(100 * num_documents + num_seeds)
    inside, of_both = 0, 0
    for _ in range(500):
        found = simulate(
            generator, PLANTED, num_seeds, num_documents=num_documents, document_deviation=0.02, length_deviation=2.0
        )
        documents = over_documents(found.differences, found.tokens)
        inside += documents.low <= found.these_seeds_all_documents <= documents.high
        if num_seeds > 1:
            both = over_both(found.differences, found.tokens)
            of_both += both.low <= PLANTED <= both.high
    assert inside / 500 >= 0.92
    assert num_seeds == 1 or of_both / 500 >= 0.92


def test_over_documents_is_the_jackknife_s_error_and_student_s_t():
    """By hand: 6, 3 and 1 tokens weigh as much as 100 / 46 documents of equal length."""
    tokens, per_token = np.array([6.0, 3.0, 1.0]), np.array([0.01, 0.03, 0.02])
    sums = per_token * tokens
    left_out = [(sums.sum() - s) / (10 - t) for s, t in zip(sums, tokens, strict=True)]
    error = np.sqrt(2 / 3 * ((np.array(left_out) - 0.017) ** 2).sum())
    half = special.stdtrit(100 / 46 - 1, 0.975) * error
    found = over_documents(sums[None], tokens)
    assert (found.low, found.high) == (pytest.approx(0.017 - half), pytest.approx(0.017 + half))


def test_one_document_that_is_nearly_all_has_one_degree_of_freedom():
    tokens = np.array([1e6, 1.0])
    found = over_documents(np.array([[0.01, 0.03]]) * tokens, tokens)
    assert (found.high - found.low) / 2 == pytest.approx(12.7062 * 0.02 * np.sqrt(0.5), rel=1e-3)


def test_over_many_documents_the_error_is_that_of_a_bootstrap():
    found = simulate(np.random.default_rng(3), PLANTED, 2, num_documents=3000)
    totals = resampled(np.stack([found.differences.mean(0), found.tokens], axis=1), 4000)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [0.025, 0.975])
    interval = over_documents(found.differences, found.tokens)
    assert (interval.high - interval.low) / (high - low) == pytest.approx(1, abs=0.06)
    assert (interval.high + interval.low) == pytest.approx(low + high, abs=0.1 * (high - low))


def test_many_documents_are_grouped_without_loss(monkeypatch):
    found = simulate(np.random.default_rng(4), PLANTED, 2, num_documents=5000)
    columns = np.stack([found.differences.mean(0), found.tokens], axis=1)
    alone = resampled(columns, 2000)
    monkeypatch.setattr(seeds, "_MAX_GROUPS", 1000)
    grouped = resampled(columns, 2000)
    ratios = [totals[:, 0] / totals[:, 1] for totals in (alone, grouped)]
    assert ratios[1].std() / ratios[0].std() == pytest.approx(1, abs=0.1)
    assert grouped.sum(0) / 2000 == pytest.approx(columns.sum(0), rel=0.02)


def test_resampling_draws_as_many_as_there_are_and_repeats_itself():
    columns = np.ones((37, 1))
    np.testing.assert_array_equal(resampled(columns, 600), 37)
    numbers = np.arange(37.0)[:, None]
    np.testing.assert_array_equal(resampled(numbers, 300, seed=5), resampled(numbers, 300, seed=5))
    assert (resampled(numbers, 300, seed=5) != resampled(numbers, 300, seed=6)).any()


def test_one_seed_has_an_interval_over_documents_alone():
    found = simulate(np.random.default_rng(5), PLANTED, 1)
    measured = effect(found.differences, found.tokens)
    assert measured.seeds is None
    assert measured.both is None
    assert measured.decisive == measured.documents
    assert measured.by_seed == [pytest.approx(measured.difference)]


def test_gain_captured_of_the_paper_s_perplexities():
    """217M: 10.36 % and 63.63 % in perplexity, 10.34 % and 63.56 % in loss."""
    tokens = np.array([100.0, 250.0, 400.0])
    rope, prope, fixed, lerope = (np.log(p) * tokens for p in (18.2377, 18.2269, 18.1714, 18.1335))
    for method, in_perplexity, in_loss in ((prope, 0.1036, 0.1034), (fixed, 0.6363, 0.6356)):
        found = gain_captured(rope, method, lerope, tokens, 100)
        assert found.perplexity == pytest.approx(in_perplexity, abs=5e-5)
        assert found.loss == pytest.approx(in_loss, abs=5e-5)
        # Every document has the same losses, so that resampling changes nothing.
        assert found.loss_interval.low == pytest.approx(found.loss_interval.high)


def test_the_interval_of_a_gain_captured_holds_the_planted_share():
    generator = np.random.default_rng(6)
    inside = 0
    for study in range(300):
        tokens = np.ceil(generator.lognormal(5.5, 0.8, 300))
        gain = 0.01 + 0.03 * generator.standard_normal(300)
        base = 3.0 * tokens
        method = base - tokens * (0.6 * gain + 0.01 * generator.standard_normal(300))
        found = gain_captured(base, method, base - gain * tokens, tokens, 300, study).loss_interval
        inside += found.low <= 0.6 <= found.high
    assert 0.91 <= inside / 300 <= 0.98


def test_the_gap_by_position_is_clustered_by_document():
    """Tokens of a document that move together count as one: the error is that of document means."""
    tokens = np.array([[10.0, 0.0], [10.0, 30.0], [10.0, 0.0]])
    differences = tokens * np.array([[0.1], [0.2], [0.3]])
    means, errors = gap_by_position(differences, tokens)
    assert means.tolist() == [pytest.approx(0.2), pytest.approx(0.2)]
    assert errors[0] == pytest.approx(0.1 / np.sqrt(3))
    assert np.isnan(errors[1])


@pytest.mark.parametrize(
    ("differences", "tokens", "sentence"),
    [
        (np.zeros((2, 3)), np.ones(4), "differences must be .seeds, documents. for 4 documents; got"),
        (np.zeros((0, 3)), np.ones(3), "differences must be .seeds, documents."),
        (np.zeros((2, 1)), np.ones(1), "two documents or more"),
        (np.full((2, 3), np.nan), np.ones(3), "differences must be finite"),
        (np.zeros((2, 3)), np.array([1.0, 0.0, 1.0]), "every document must have tokens"),
    ],
)
def test_bad_input_is_one_sentence(differences, tokens, sentence):
    with pytest.raises(ValueError, match=sentence):
        effect(differences, tokens)
