"""Frequencies set back one at a time, against models changed by hand."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lerope.analyze.beyond import set_back
from lerope.analyze.targets import open_target
from lerope.core.run import read_run
from lerope.core.signals import Stopped
from lerope.data.shards import Corpus
from lerope.evaluate.perplexity import EvalRequest
from lerope.evaluate.scorer import Scorer
from lerope.model.saved import load_model
from lerope.results import Beyond
from lerope.rotary.frequencies import geometric

CPU = torch.device("cpu")
LENGTH, TO = 32, 80


@pytest.fixture
def target(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("beyond*"))
    return open_target(tmp_path / "run", EvalRequest(device="cpu"))


def losses(model, tokens):
    """Up to TO tokens in one piece, in float64, whole logits."""
    ids = torch.from_numpy(tokens.astype("int64"))
    inputs = ids[: min(TO, len(ids) - 1)]
    with torch.no_grad():
        scores = model.double()(inputs[None])[0].log_softmax(-1)
    return -scores.gather(1, ids[1 : 1 + len(inputs), None])[:, 0].numpy()


def test_equals_models_changed_by_hand(run, target):
    got = set_back(target, TO, 100_000, CPU)
    split = Corpus(read_run(run).starts[-1].data).validation
    documents = [split.document(index) for index in range(len(split))]
    documents = [tokens for tokens in documents if len(tokens) - 1 > LENGTH]
    assert got.num_documents == len(documents) > 1
    own = load_model(run).encoding
    rope = geometric(own.rotary_dim, own.base)
    whole = [losses(load_model(run), tokens) for tokens in documents]
    assert got.num_tokens == sum(len(part) - LENGTH for part in whole)
    for field, where in (("within_loss", slice(LENGTH)), ("beyond_loss", slice(LENGTH, None))):
        assert getattr(got, field) == pytest.approx(np.concatenate([part[where] for part in whole]).mean(), abs=1e-6)
    assert got.bands[0]["band"] is None
    learned = [row["band"] for row in got.bands[1:]]
    assert learned == [band for band in range(len(rope)) if abs(own.theta[band] / rope[band] - 1) > 1e-4]
    for row in got.bands:
        model = load_model(run)
        bands = list(range(len(rope))) if row["band"] is None else [row["band"]]
        with torch.no_grad():
            model.encoding.theta[bands] = rope[bands]
        parts = [losses(model, tokens) for tokens in documents]
        for field, where in (("within", slice(LENGTH)), ("beyond", slice(LENGTH, None))):
            change = np.concatenate([new[where] - old[where] for new, old in zip(parts, whole, strict=True)])
            assert row[field] == pytest.approx(change.mean(), abs=2e-6), (row["band"], field)
    assert max(abs(row["beyond"]) for row in got.bands) > 1e-4
    arrays = load_file(target.path / "results" / f"beyond-{TO}.safetensors")
    assert arrays["counts"].sum() == sum(map(len, whole))
    assert arrays["sums"].shape == (1 + len(got.bands), len(arrays["edges"]) - 1)
    assert arrays["sums"][0].sum() == pytest.approx(np.concatenate(whole).sum(), rel=1e-6)
    assert Beyond.load(target.path / "results" / f"beyond-{TO}.json") == got


def test_goes_on_after_a_stop(target, monkeypatch):
    want = set_back(target, TO, 300, CPU)
    for file in (target.path / "results").glob("beyond*"):
        file.unlink()
    start, calls = Scorer.start, []

    def until_the_fourth(self, rows):
        calls.append(1)
        if len(calls) == 4:
            raise Stopped(2)
        return start(self, rows)

    monkeypatch.setattr(Scorer, "start", until_the_fourth)
    with pytest.raises(Stopped):
        set_back(target, TO, 300, CPU)
    got = set_back(target, TO, 300, CPU)
    assert got.bands == want.bands
    assert not list((target.path / "results").glob("*.partial"))


def test_refusals_are_one_sentence(target, monkeypatch):
    with pytest.raises(ValueError, match="to must be above the train length of 32 tokens; got 32"):
        set_back(target, LENGTH, 300, CPU)
    monkeypatch.setattr("lerope.analyze.beyond.select", lambda *_: [])
    with pytest.raises(ValueError, match="no document longer than the train length"):
        set_back(target, TO, 300, CPU)
