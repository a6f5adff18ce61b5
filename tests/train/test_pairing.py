"""Runs that differ in the encoding alone are pairs: same weights at the start, same batches, and the same step."""

import torch

import lerope
from lerope.data.loader import Loader
from lerope.data.shards import Corpus
from lerope.model.spec import build_encoding
from lerope.train.job import train
from lerope.train.parallel import Ranks, build
from tests.train.runs import TINY, metrics, tensors, tiny_corpus, tiny_recipe, tiny_run, tiny_setup

ENCODINGS = ("lerope", "rope", "nope", "prope,p=0.5", "rope,base=500", "lerope,sharing=layer_head")


class Held(lerope.LeRoPE):
    """LeRoPE whose alpha does not learn."""

    def __init__(self, head_dim):
        super().__init__(head_dim)
        self.alpha.requires_grad_(False)


def initial(encoding, seed=7):
    ranks = Ranks(0, 1, 1, torch.device("cpu"))
    return build(TINY, build_encoding(encoding, TINY), seed, tiny_setup(), ranks).model.state_dict()


def test_encodings_start_from_the_same_weights():
    want = {name: value for name, value in initial("lerope").items() if not name.startswith("encoding.")}
    assert want
    for encoding in ENCODINGS:
        got = initial(encoding)
        assert all(torch.equal(got[name], value) for name, value in want.items()), encoding
    assert not torch.equal(initial("rope", seed=8)["head.weight"], want["head.weight"])


def test_encodings_see_the_same_batches(tmp_path, monkeypatch):
    """Recorded at the loader while runs train, not read off the code."""
    data = tiny_corpus(tmp_path / "c")
    seen = {}
    original = Loader.load

    def spy(self, step):
        batch, num_targets = original(self, step)
        seen.setdefault(current, []).append((step, batch.tokens.tobytes(), batch.targets.tobytes()))
        return batch, num_targets

    monkeypatch.setattr(Loader, "load", spy)
    for current in ENCODINGS:
        tiny_run(data, tmp_path / current.replace(",", "-"), encoding=current, steps=6)
    assert len(seen["lerope"]) == 6
    assert len({tokens for _, tokens, _ in seen["lerope"]}) == 6
    assert all(seen[encoding] == seen["lerope"] for encoding in ENCODINGS)


def test_with_alpha_held_lerope_is_rope(tmp_path):
    """After one step, and after ten: weights, optimizer and records are equal bit for bit."""
    data = tiny_corpus(tmp_path / "c")
    for steps in (1, 10):
        held, rope = tmp_path / f"held-{steps}", tmp_path / f"rope-{steps}"
        tiny_run(data, held, encoding="tests.train.test_pairing:Held", steps=steps)
        tiny_run(data, rope, encoding="rope", steps=steps)
        assert metrics(held) == metrics(rope)
        one, other = tensors(held), tensors(rope)
        assert set(one) - set(other) == {"model.encoding.alpha"}
        assert all(torch.equal(one[name], value) for name, value in other.items())
        assert not one["model.encoding.alpha"].any()
    learned = tmp_path / "learned"
    tiny_run(data, learned, encoding="lerope", steps=10)
    assert metrics(learned)[0]["loss"] == metrics(rope)[0]["loss"]
    assert metrics(learned)[-1]["validation_loss"] != metrics(rope)[-1]["validation_loss"]


def test_frequencies_of_another_run_stay_fixed(tmp_path):
    """The paper's fixed transfer: a run's frequencies.json is an encoding."""
    data = tiny_corpus(tmp_path / "c")
    tiny_run(data, tmp_path / "first", steps=10)
    source = tmp_path / "first" / "model" / "frequencies.json"
    tiny_run(data, tmp_path / "second", encoding=str(source), steps=10, seed=8)
    first, second = (
        lerope.Frequencies.load(tmp_path / run / "model" / "frequencies.json") for run in ("first", "second")
    )
    assert first.frequencies == second.frequencies
    assert first.frequencies != lerope.RoPE(16).artifact().frequencies
    assert all(record.get("frequency_gradient_norm") is None for record in metrics(tmp_path / "second"))


def test_the_corpus_decides_the_fingerprint_of_a_run(tmp_path):
    data = tiny_corpus(tmp_path / "c")
    outcome = train(tiny_recipe(steps=1), data, tmp_path / "run", tiny_setup())
    from lerope.core.run import read_run

    assert read_run(outcome.path).identity.data == Corpus(data).manifest.fingerprint()
