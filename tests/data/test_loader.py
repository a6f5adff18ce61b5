"""Rows and batches against a slow, separate construction of the same stream."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerope.data import packing, shards
from lerope.data.loader import IGNORED, Loader, assemble, validation_batches
from lerope.data.packing import Packing, fill_rows, place, shuffled, windows
from lerope.data.shards import Corpus, SplitWriter
from tests.data.corpora import BOS, EOS, write_corpus

LENGTHS = [5, 2, 40, 3, 17, 9, 9, 130, 6, 4, 3, 25]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 60)  # several shards
    return Corpus(write_corpus(tmp_path / "c", {"train": LENGTHS, "validation": [7, 33, 2, 64, 18]}))


def slow_rows(corpus, row_length, seed, epoch):
    """Every (token, target, position) of an epoch, row by row, the plain way."""
    stream = []
    for index in shuffled(len(corpus.train), seed, epoch):
        tokens = [int(t) for t in corpus.train.document(int(index))]
        stream += list(zip(tokens, [*tokens[1:], IGNORED], range(len(tokens)), [int(index)] * len(tokens), strict=True))
    rows = [stream[i : i + row_length] for i in range(0, len(stream) - row_length + 1, row_length)]
    return [rows[place(number, len(rows), seed, epoch)] for number in range(len(rows))]


def test_rows_are_the_shuffled_stream_cut_at_row_length_in_an_order_of_their_own(corpus):
    assert len(corpus.manifest.splits["train"].shards) > 2
    for row_length in (1, 8, 16, 50):
        loader = Loader(corpus.train, row_length, batch_rows=1, seed=3)
        want = [row for epoch in range(3) for row in slow_rows(corpus, row_length, 3, epoch)]
        for step, row in enumerate(want):
            batch, num_targets = loader.load(step)
            assert batch.tokens[0].tolist() == [t for t, *_ in row]
            assert batch.targets[0].tolist() == [t for _, t, *_ in row]
            assert num_targets == batch.num_targets
            # Positions restart where a document does and where a row does; ids change exactly there.
            documents = [d for *_, d in row]
            for i in range(row_length):
                starts = i == 0 or documents[i] != documents[i - 1]
                assert batch.positions[0, i] == (0 if starts else batch.positions[0, i - 1] + 1)
                assert starts == (i == 0 or batch.document_ids[0, i] != batch.document_ids[0, i - 1])
            for number in np.unique(batch.document_ids[0]):
                here = batch.document_ids[0] == number
                assert set(batch.centres[0, here]) == {here.sum() // 2}


def test_every_token_but_bos_is_a_target_once_an_epoch(corpus):
    loader = Loader(corpus.train, 1, batch_rows=1, seed=0)
    targets = [int(loader.load(s)[0].targets[0, 0]) for s in range(loader.packing.rows_per_epoch)]
    want = [int(t) for i in range(len(corpus.train)) for t in corpus.train.document(i)[1:]]
    assert sorted(t for t in targets if t != IGNORED) == sorted(want)
    assert BOS not in targets
    assert targets.count(EOS) == len(LENGTHS)


def test_any_number_of_ranks_sees_the_same_batch(corpus):
    whole = Loader(corpus.train, 8, 12, seed=1)
    for num_ranks in (2, 3, 4, 12):
        parts = [Loader(corpus.train, 8, 12, 1, rank, num_ranks) for rank in range(num_ranks)]
        for step in (0, 1, 7):
            for field in ("tokens", "targets", "positions", "document_ids", "centres"):
                got = np.concatenate([getattr(p.load(step)[0], field) for p in parts])
                assert np.array_equal(got, getattr(whole.load(step)[0], field))
            assert {p.load(step)[1] for p in parts} == {whole.load(step)[0].num_targets}
    with pytest.raises(ValueError, match="12 rows of 8 tokens, which 5 ranks cannot share evenly"):
        Loader(corpus.train, 8, 12, 1, 0, 5)


def test_batches_do_not_depend_on_what_was_read_before(corpus):
    loader = Loader(corpus.train, 8, 4, seed=1)
    forward = [loader.load(step)[0].tokens for step in range(30)]
    for step in (29, 0, 12, 13, 2):
        assert np.array_equal(Loader(corpus.train, 8, 4, seed=1).load(step)[0].tokens, forward[step])
        assert np.array_equal(loader.load(step)[0].tokens, forward[step])
    ahead = list(loader.ahead(5, 30, depth=3))
    assert len(ahead) == 25
    assert all(np.array_equal(batch.tokens, want) for (batch, _), want in zip(ahead, forward[5:], strict=True))
    assert not np.array_equal(Loader(corpus.train, 8, 4, seed=2).load(0)[0].tokens, forward[0])


def test_the_loader_passes_on_what_went_wrong_ahead(corpus):
    loader = Loader(corpus.train, 8, 4, seed=1)
    loader.split = None
    with pytest.raises(AttributeError):
        next(loader.ahead(0, 5))


@given(st.lists(st.integers(2, 200), min_size=1, max_size=60), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_windows_cover_every_target_once_and_fit(lengths, row_length):
    pieces = windows(np.array(lengths), row_length)
    covered = sorted((p.document, t) for p in pieces for t in range(p.start + 1, p.stop + 1))
    assert covered == [(d, t) for d, length in enumerate(lengths) for t in range(1, length)]
    rows = fill_rows(pieces, row_length)
    assert all(sum(p.stop - p.start for p in row) <= row_length for row in rows)
    assert sorted((p.document, p.start) for row in rows for p in row) == [(p.document, p.start) for p in pieces]


def test_validation_batches_share_out_the_split(corpus):
    want = sum(length - 1 for length in (7, 33, 2, 64, 18))
    for num_ranks in (1, 2, 3):
        shares = [validation_batches(corpus.validation, 16, 2, 10**9, rank, num_ranks) for rank in range(num_ranks)]
        assert len({len(share) for share in shares}) == 1
        batches = [assemble(corpus.validation, rows, 16) for share in shares for rows in share]
        assert {b.tokens.shape for b in batches} == {(2, 16)}
        assert sum(b.num_targets for b in batches) == want
    limited = validation_batches(corpus.validation, 16, 1, 30)
    assert sum(assemble(corpus.validation, rows, 16).num_targets for rows in limited) == 6 + 32


@given(st.integers(0, 2**63), st.integers(0, 1000), st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_the_order_is_a_permutation(seed, epoch, count):
    assert sorted(shuffled(count, seed, epoch).tolist()) == list(range(count))


def test_the_order_never_changes():
    """Runs of different versions are compared as pairs, so these numbers are for ever."""
    assert shuffled(10, 42, 0).tolist() == [3, 6, 8, 0, 4, 9, 7, 1, 2, 5]
    assert shuffled(10, 42, 1).tolist() != shuffled(10, 42, 0).tolist()


@given(st.integers(1, 400), st.integers(0, 2**63 - 1), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_rows_have_an_order_of_their_own(count, seed, epoch):
    order = [place(number, count, seed, epoch) for number in range(count)]
    assert sorted(order) == list(range(count))


def test_the_order_of_rows_never_changes():
    assert [place(number, 10, 42, 0) for number in range(10)] == [8, 2, 1, 5, 3, 7, 0, 4, 6, 9]
    assert [place(number, 10, 42, 1) for number in range(10)] == [6, 9, 4, 3, 0, 8, 2, 1, 5, 7]
    assert [place(number, 10**8, 42, 0) for number in (0, 1, 99_999_999)] == [52_641_953, 48_998_618, 23_089_430]


def test_rows_of_one_document_are_spread_over_the_epoch():
    """Documents of 100 rows, batches of 64: the commonest document has few rows of a batch, as in a random draw."""
    packing = Packing(np.full(200, 100 * 16), 16, seed=42)
    most = []
    for step in range(packing.rows_per_epoch // 64):
        documents = [packing.pieces(row)[0].document for row in range(64 * step, 64 * step + 64)]
        most.append(np.bincount(documents).max())
    drawn = np.random.default_rng(0).permutation(np.repeat(np.arange(200), 100))[: 64 * len(most)].reshape(-1, 64)
    expected = np.mean([np.bincount(batch).max() for batch in drawn])
    assert np.mean(most) == pytest.approx(expected, rel=0.05)
    assert max(most) < 10


def test_the_order_of_rows_looks_random():
    """Where a row goes says nothing about where it was, nor about where its neighbour goes: correlations and digits."""
    count = 20_011
    order = np.array([place(number, count, 7, 0) for number in range(count)])
    noise = 4 / np.sqrt(count)
    for lag in (1, 2, 142, 143):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < noise
    assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < noise
    gaps = np.abs(np.diff(order))
    assert np.mean(gaps) / count == pytest.approx(1 / 3, abs=0.02)
    fixed = np.count_nonzero(order == np.arange(count))
    assert fixed < 6  # a random permutation has 1 on average


def test_rows_longer_than_the_corpus_are_refused():
    with pytest.raises(ValueError, match="row_length must be at most the 12 tokens of the training split; got 16"):
        Packing(np.array([5, 7]), 16, 0)


def test_an_epoch_is_shuffled_once(corpus, monkeypatch):
    """Also where a batch holds rows of two epochs."""
    calls = []
    monkeypatch.setattr(packing, "shuffled", lambda *args: calls.append(args) or shuffled(*args))
    loader = Loader(corpus.train, 8, 5, seed=1, rank=0, num_ranks=5)
    steps = 3 * loader.packing.rows_per_epoch // 5
    for step in range(steps):
        loader.load(step)
    assert [epoch for _, _, epoch in calls] == [0, 1, 2]


def test_a_shard_that_lost_tokens_is_not_filled_up(tmp_path):
    """Going on with a half-prepared corpus whose files were cut in between."""
    writer = SplitWriter(tmp_path, "train", np.dtype("<u2"))
    writer.append(np.arange(100), np.array([60, 40]))
    state = writer.state()
    os.truncate(tmp_path / "train-00000.tokens", 20)
    with pytest.raises(ValueError, match=r"train-00000.tokens has lost .*; delete"):
        SplitWriter(tmp_path, "train", np.dtype("<u2"), state)
    (tmp_path / "train-00000.tokens").unlink()
    with pytest.raises(ValueError, match="has lost"):
        SplitWriter(tmp_path, "train", np.dtype("<u2"), state)
