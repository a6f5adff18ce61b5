"""The search against every objective with one minimum on a small grid, and against the game it plays."""

import math
import random
from functools import cache
from itertools import combinations

import pytest

from lerope.scaling.lr_search import COLD, FIRST, LAST, fit_grid, learning_rate, next_index, optimum, upcoming

GRID = range(10, 19)


def search(objective, start):
    """The optimum found, and the indices in the order they were run; fails if one is run twice."""
    losses = {}
    while (index := next_index(losses, start)) is not None:
        assert index not in losses, "run twice"
        losses[index] = objective(index)
    best = optimum(losses)
    assert {best - 1, best, best + 1} <= losses.keys(), "ended without both neighbours"
    return best, list(losses)


def unimodal(minimum, left_ranks, grid):
    """Losses that fall to `minimum` and rise after it; `left_ranks` says which places in the order are to its left."""
    losses, left, right = {minimum: 0.0}, minimum - 1, minimum + 1
    for rank in range(1, len(grid)):
        if rank in left_ranks:
            losses[left], left = float(rank), left - 1
        else:
            losses[right], right = float(rank), right + 1
    beyond = len(grid)
    return lambda index: losses.get(index, beyond + abs(index - minimum))


def all_unimodal(grid):
    for minimum in grid:
        for ranks in combinations(range(1, len(grid)), minimum - grid[0]):
            yield minimum, unimodal(minimum, set(ranks), grid)


def test_from_a_guess_the_count_is_the_documented_one_for_every_objective():
    number = 0
    for minimum, objective in all_unimodal(GRID):
        for start in GRID:
            k = minimum - start
            found, order = search(objective, start)
            assert found == minimum
            assert order[0] == start
            assert len(order) == (k + 2 if k > 0 else 3 - k), (minimum, start, order)
            number += 1
    assert number == len(GRID) * 2 ** (len(GRID) - 1)


def test_without_a_guess_six_runs_find_any_minimum_within():
    low, high = COLD
    grid = range(low + 1, high)
    draw = random.Random(0)
    for minimum in grid:
        places = range(1, len(grid))
        num_left = minimum - grid[0]
        samples = [set(places[:num_left]), set(places[len(places) - num_left :])]
        samples += [set(draw.sample(places, num_left)) for _ in range(40)]
        for ranks in samples:
            found, order = search(unimodal(minimum, ranks, grid), None)
            assert found == minimum
            assert len(order) == (7 if minimum in (grid[0], grid[-1]) else 6), (minimum, order)


def test_no_search_on_twenty_indices_has_a_better_worst_case():
    """Plays the game: between indices known to be worse, the best so far has untested ones on its left and right."""

    @cache
    def more(left, right):
        if left == right == 0:
            return 0
        options = []
        for one, other in ((left, right), (right, left)):
            for beyond in range(one):
                between = one - 1 - beyond
                options.append(1 + max(more(beyond, between), more(between, other)))
        return min(options)

    worst = {n: 1 + min(more(x, n - 1 - x) for x in range(n)) for n in (12, 13, 20, 21)}
    assert worst == {12: 5, 13: 6, 20: 6, 21: 7}


@pytest.mark.parametrize("minimum", [2, 3, 29, 33])
def test_without_a_guess_it_walks_beyond_its_range(minimum):
    assert search(lambda index: abs(index - minimum), None)[0] == minimum


def test_two_equal_losses_count_as_one_minimum():
    losses = {12: 2.0, 13: 1.0, 14: 1.0, 15: 2.0}
    for start in (13, 14):
        found, order = search(lambda index: losses.get(index, 3.0), start)
        assert found == 14, "the smaller rate of the two"
        assert sorted(order) == [12, 13, 14, 15]


def test_equal_losses_on_the_way_down_are_no_end():
    losses = {10: 5.0, 11: 4.0, 12: 4.0, 13: 3.0, 14: 4.0}
    assert search(lambda index: losses.get(index, 6.0), 11)[0] == 13


def test_a_plateau_is_an_end():
    found, order = search(lambda index: 1.0, 15)
    assert (found, len(order)) == (16, 3)
    assert len(search(lambda index: 1.0, None)[1]) <= 8


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_runs_that_diverge_are_worse_than_any(bad):
    assert search(lambda index: abs(index - 17) if index >= 17 else bad, 17) == (17, [17, 18, 16])
    assert search(lambda index: abs(index - 17) if index >= 16 else bad, 13)[0] == 17
    assert search(lambda index: abs(index - 22) if index >= 20 else bad, None)[0] == 22
    assert next_index({13: bad}, 13) == 14, "a smaller rate after one that diverged"


def test_it_ends_where_no_learning_rate_helps():
    with pytest.raises(ValueError, match="all diverged, from index 30 to 40"):
        search(lambda index: math.inf, 30)
    with pytest.raises(ValueError, match=r"index must be from 0 to 40.*the loss hardly depends"):
        search(lambda index: float(index), 3)
    with pytest.raises(ValueError, match=r"index must be from 0 to 40, learning rates 1 to 2.-20; got 41"):
        next_index({}, 41)
    with pytest.raises(ValueError, match="losses must include a finite one"):
        optimum({13: math.inf})
    assert (learning_rate(FIRST), learning_rate(LAST)) == (1.0, 2.0**-20)


def test_what_is_known_is_enough_to_go_on():
    """The order in which losses became known, and a guess that was given up, change nothing."""
    assert next_index({14: 1.0, 13: 2.0}, 30) == 15
    assert next_index({13: 2.0, 14: 1.0, 15: 1.5}, 13) is None


def test_the_paper_s_extrapolation():
    """Swept at 52M, 217M and 608M. The paper uses 22 at 1.34B, as predicted, and 23 at 2.52B, where this gives 24."""
    fit = fit_grid([51.642368e6, 216.530944e6, 607.911936e6], [13, 17, 20])
    assert fit.slope == pytest.approx(-0.98, abs=0.005)
    assert fit.index(1339.031552e6) == 22
    assert fit.index(2523.136e6) == 24
    assert [fit.index(n) for n in (51.642368e6, 216.530944e6, 607.911936e6)] == [13, 17, 20]


def test_an_exact_law_is_recovered():
    """Learning rate ~ 1 / N: four times the parameters are two halvings, four indices."""
    fit = fit_grid([1e6, 4e6, 16e6], [10, 14, 18])
    assert fit.slope == pytest.approx(-1)
    assert fit.index(64e6) == 22


@pytest.mark.parametrize(("sizes", "indices"), [([1e6], [10]), ([1e6, 1e6], [10, 11]), ([1e6, 2e6], [10])])
def test_a_line_needs_two_sizes(sizes, indices):
    with pytest.raises(ValueError, match="parameters must be two or more sizes"):
        fit_grid(sizes, indices)


@pytest.mark.parametrize("start", [None, 10, 14, 18])
def test_of_those_started_together_the_first_is_the_next_and_a_right_guess_is_one_round(start):
    rounds = []
    for minimum in GRID:
        losses, known, count = {}, {}, 0
        while (index := next_index(losses, start)) is not None:
            if index not in known:
                together = upcoming(losses, start, 3)
                assert together[0] == index
                assert len(set(together)) == len(together) <= 3
                known |= {each: abs(each - minimum) for each in together}
                count += 1
            losses[index] = known[index]
        assert optimum(losses) == minimum == search(lambda index, best=minimum: abs(index - best), start)[0]
        rounds.append(count)
        if minimum == start:
            assert count == 1
    assert max(rounds) < 9


def test_nothing_is_upcoming_beyond_the_grid_or_the_end():
    assert upcoming({LAST - 1: 2.0, LAST: 1.0}, LAST, 3) == []
    assert upcoming({14: 1.0, 13: 2.0, 15: 2.0}, 14, 3) == []
