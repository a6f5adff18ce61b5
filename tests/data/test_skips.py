"""Positions that skip: rising, below the horizon, the same for every rank, and nothing else of a batch changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerope.data.loader import Loader
from lerope.data.shards import Corpus
from lerope.data.skips import Skips
from tests.data.corpora import write_corpus

ROW, HORIZON = 32, 128


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    folder = write_corpus(tmp_path_factory.mktemp("data"), {"train": [5, 90, 33, 200, 17] * 8, "validation": [30]})
    return Corpus(folder).train


@given(
    count=st.integers(1, 50),
    extra=st.integers(0, 300),
    row=st.integers(0, 1 << 40),
    document=st.integers(0, 60),
    seed=st.integers(0, 1 << 62),
)
def test_positions_rise_from_zero_and_stay_below_the_horizon(count, extra, row, document, seed):
    positions = Skips(count + extra, 1.0, seed).positions(row, document, count).astype(np.int64)
    assert len(positions) == count
    assert positions[0] == 0
    steps = np.diff(positions)
    assert (steps >= 1).all()
    assert positions[-1] < count + extra
    assert np.count_nonzero(steps > 1) <= 3


def test_every_distance_up_to_the_horizon_is_met():
    skips = Skips(HORIZON, 1.0, 7)
    found = [skips.positions(row, 0, ROW) for row in range(2000)]
    met = {int(distance) for positions in found for distance in positions[-1] - positions}
    assert met == set(range(HORIZON))
    # Near tokens stay together: most neighbours are still neighbours.
    assert np.mean([np.diff(positions) == 1 for positions in found]) > 0.9


def test_only_positions_and_their_centres_change_and_only_in_a_share_of_rows(split):
    plain, skipping = Loader(split, ROW, 16, 3), Loader(split, ROW, 16, 3, skips=Skips(HORIZON, 0.5, 3))
    changed = []
    for step in range(12):
        (one, targets), (other, other_targets) = plain.load(step), skipping.load(step)
        assert targets == other_targets
        for field in ("tokens", "targets", "document_ids"):
            assert np.array_equal(getattr(one, field), getattr(other, field))
        changed += (one.positions != other.positions).any(axis=1).tolist()
        starts = np.diff(other.document_ids, axis=1, prepend=-1) != 0
        assert (other.positions[starts] == 0).all()
    assert 0.3 < np.mean(changed) < 0.7


def test_centres_are_in_the_middle(split):
    batch, _ = Loader(split, ROW, 16, 3, skips=Skips(HORIZON, 1.0, 3)).load(0)
    for row in range(16):
        for document in np.unique(batch.document_ids[row]):
            here = batch.document_ids[row] == document
            assert set(batch.centres[row, here]) == {batch.positions[row, here].max() // 2}


def test_the_same_for_every_number_of_ranks(split):
    skips = Skips(HORIZON, 0.5, 3)
    whole, _ = Loader(split, ROW, 12, 3, skips=skips).load(5)
    for num_ranks in (2, 3, 4):
        parts = [Loader(split, ROW, 12, 3, rank, num_ranks, skips).load(5)[0] for rank in range(num_ranks)]
        assert np.array_equal(np.concatenate([part.positions for part in parts]), whole.positions)


def test_golden():
    """Who changes one of these changes every run that skips."""
    skips = Skips(64, 0.5, 42)
    assert [skips.skips(row) for row in range(8)] == [False, True, False, False, False, True, False, False]
    assert skips.positions(0, 0, 16).tolist() == [0, 1, 2, 3, 4, 5, 25, 26, 27, 28, 29, 49, 50, 51, 52, 53]
