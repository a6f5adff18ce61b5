"""The demo, in smaller still: real text, real training, and a loss that only a working model reaches."""

import json
import math
import signal

import pytest

from lerope.cli.demo import _verdict
from lerope.cli.main import main
from lerope.core.files import read_lines
from lerope.core.recipe import Setup, recipe
from lerope.core.signals import Stopped
from lerope.data.shards import Corpus
from lerope.train.job import train

pytestmark = pytest.mark.slow

STEPS = 60


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    main(["demo", "--out", str(out), "--steps", str(STEPS)])
    return out


def validation_loss(run):
    return [r["validation_loss"] for r in read_lines(run / "metrics.jsonl") if "validation_loss" in r][-1]


def test_both_learn_far_more_than_token_frequencies(demo):
    """A model that learns only how frequent tokens are ends at the unigram entropy of its text, at best."""
    entropy = Corpus(demo / "data").manifest.splits["validation"].unigram_entropy
    losses = {name: validation_loss(demo / f"demo-{name}-42") for name in ("rope", "lerope")}
    assert all(loss < entropy - 0.3 for loss in losses.values()), (losses, entropy)
    assert losses["rope"] != losses["lerope"]


def test_a_frozen_model_does_not(demo, tmp_path):
    """The same run with a learning rate that moves nothing ends far above."""
    manifest = Corpus(demo / "data").manifest
    fields = {"steps": 2, "row_length": 256, "batch_tokens": 2048, "learning_rate": 1e-12, "validation_tokens": 20_000}
    frozen = recipe("demo", "lerope", 42, "float32", **fields)
    outcome = train(frozen, demo / "data", tmp_path / "frozen", Setup(device="cpu"))
    assert outcome.validation_loss > manifest.splits["validation"].unigram_entropy + 0.5
    assert outcome.validation_loss > math.log(manifest.vocab_size)


def test_a_run_holds_every_file(demo):
    run = demo / "demo-lerope-42"
    for name in ("run.json", "metrics.jsonl", "frequencies.jsonl", "results/training.json"):
        assert (run / name).is_file(), name
    for name in ("model.safetensors", "config.json", "frequencies.json", "tokenizer.model"):
        assert (run / "model" / name).is_file(), name
    assert list((run / "checkpoints").iterdir())
    content = json.loads((run / "run.json").read_text())
    assert content["finished"]
    assert content["identity"]["data"] == Corpus(demo / "data").manifest.fingerprint()
    start = content["starts"][0]
    assert {"date", "lerope", "commit", "torch", "python", "command", "data", "setup", "num_ranks"} <= set(start)
    scales = [record["log_scales"] for record in read_lines(run / "frequencies.jsonl")]
    assert len(scales) == STEPS + 1
    assert not any(scales[0])
    assert max(map(abs, scales[-1])) > 1e-3
    steps = [record for record in read_lines(run / "metrics.jsonl") if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))


def test_a_second_call_shows_the_same_at_once(demo, capsys):
    before = times(demo)
    main(["demo", "--out", str(demo), "--steps", str(STEPS)])
    text = capsys.readouterr().out
    assert "is finished" in text
    assert "Learned frequencies of 32 bands" in text
    assert "Both learned more than token frequencies" in text.replace("\n", " ")
    assert "this is one seed (42)" in text.replace("\n", " ")
    assert before == times(demo)


def test_a_run_that_learned_nothing_is_not_said_to_have(demo):
    runs = {name: demo / f"demo-{name}-42" for name in ("rope", "lerope")}
    assert "So few steps taught neither more than token frequencies" in _verdict(runs, 42, 0)
    assert "Only one of them learned more than token frequencies" in _verdict(runs, 42, 1)


def times(demo):
    """When what takes long was written: checkpoints, models, losses, bands and phasors."""
    return {p: p.stat().st_mtime_ns for p in demo.rglob("*.safetensors") if p.stem != "frequencies"}


def test_the_page_is_there_and_its_wavelengths_moved(demo):
    page = (demo / "report" / "index.html").read_text()
    assert "demo-lerope-42" in page
    assert len(list((demo / "report" / "figures").glob("*.png"))) == 10  # those that two runs have inputs for
    learned = json.loads((demo / "demo-lerope-42" / "results" / "frequencies.json").read_text())
    assert learned["kind"]
    saved = json.loads((demo / "demo-lerope-42" / "model" / "frequencies.json").read_text())
    assert max(map(abs, saved["log_scales"])) > 1e-3


def test_stopped_while_it_prepares(tmp_path, monkeypatch, capsys):
    def stopped(*args, **kwargs):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr("lerope.data.prepare.prepare", stopped)
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(tmp_path / "out")])
    assert stop.value.code == 128 + signal.SIGTERM
    assert "Stopped by SIGTERM" in capsys.readouterr().err
