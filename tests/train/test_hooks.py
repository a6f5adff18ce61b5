"""What goes on beside the steps: hooks of your own, checkpoints that steps do not wait for, profiles, the timeline."""

import gzip
import json
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from lerope.core.recipe import Setup, recipe
from lerope.core.run import FrequencyRecord, StepRecord, ValidationRecord
from lerope.data.shards import Corpus
from lerope.launch.small import RECIPE, STEPS
from lerope.results import Training
from lerope.train.checkpoint import Store
from lerope.train.engine import Engine
from lerope.train.hooks import Progress
from lerope.train.job import describe
from lerope.train.parallel import Ranks
from lerope.train.trainer import Hook
from tests.data.corpora import write_corpus
from tests.train.runs import StopAt, metrics, same, tiny_run


class Watching(Hook):
    """Notes everything that it is told."""

    name = "watching"

    def __init__(self):
        self.seen = []

    def begin(self, loop):
        self.seen.append(("begin", loop.step))

    def take(self, loop, record):
        self.seen.append((type(record), record.step))

    def is_due(self, loop):
        return loop.step % 2 == 0

    def act(self, loop):
        self.seen.append(("act", loop.step))

    def end(self, loop):
        self.seen.append(("end", loop.step))


def test_a_hook_of_your_own_sees_everything_in_order(data, tmp_path):
    hook = Watching()
    tiny_run(data, tmp_path / "run", {"frequency_records": 2, "validation_steps": 4}, [hook], steps=4)
    assert hook.seen[0] == ("begin", 0)
    assert hook.seen[-1] == ("end", 4)
    assert [step for kind, step in hook.seen if kind is StepRecord] == [1, 2, 3, 4]
    assert [step for kind, step in hook.seen if kind is ValidationRecord] == [4]
    assert [step for kind, step in hook.seen if kind is FrequencyRecord] == [0, 2, 4]
    assert [step for kind, step in hook.seen if kind == "act"] == [2, 4]
    # A step's numbers are there before anything acts on them.
    assert hook.seen.index((StepRecord, 2)) < hook.seen.index(("act", 2))


def test_the_time_left_counts_validations():
    """At 30 tokens a second: steps of 300 tokens take 10 s, and a validation of 900, three times as fast, 10 s too."""
    shown = []
    loop = SimpleNamespace(engine=SimpleNamespace(recipe=SimpleNamespace(steps=10, batch_tokens=300)))
    progress = Progress(SimpleNamespace(show=shown.append), validation_tokens=900, every=4)
    fields = {"loss": 1.0, "learning_rate": 0.1, "gradient_norm": 1.0, "frequency_gradient_norm": None, "seconds": 10.0}
    rest = {"wait_seconds": 0.0, "tokens_per_second": 30.0, "share_of_peak": None}
    for step in (1, 4, 5, 8, 9, 10):
        progress.take(loop, StepRecord(step=step, tokens=300 * step, **fields, **rest))
    left = [re.search(r"([^ ]+ (?:min [0-9]+ )?s) left", text)[1] for text in shown]
    # Validations come after steps 4, 8 and 10.
    assert left == ["2 min 0 s", "1 min 30 s", "1 min 10 s", "40 s", "20 s", "10 s"]


def test_the_last_validation_is_announced(data, tmp_path, capsys):
    tiny_run(data, tmp_path / "run", {"validation_steps": 2}, steps=4)
    lines = capsys.readouterr().out.splitlines()
    (said,) = [number for number, text in enumerate(lines) if "validation, " in text]
    assert "step 4 was the last" in lines[said]
    assert "step 4/4" in lines[said + 1]


def test_what_takes_a_cpu_hours_says_what_takes_minutes(tmp_path):
    corpus = Corpus(write_corpus(tmp_path / "data", {"train": [80] * 60, "validation": [40] * 4}, vocab_size=2048))
    ranks = Ranks(0, 1, 1, torch.device("cpu"))
    text = describe(recipe("demo", precision="float32"), corpus, ranks, 4, Setup())
    options = dict(re.findall(r"--([a-z-]+) ([0-9.]+)", text))
    small = recipe("demo", precision="float32", **RECIPE, steps=STEPS)
    assert {name: getattr(small, name.replace("-", "_")) for name in options} == {
        name: pytest.approx(float(value), rel=0.05) for name, value in options.items()
    }
    assert len(options) == 5
    assert "two cores take about " in text
    assert "two cores take" not in describe(small, corpus, ranks, 4, Setup())


def test_a_hook_may_stop_a_run_which_then_goes_on(data, tmp_path):
    tiny_run(data, tmp_path / "straight", steps=24)
    outcome = tiny_run(data, tmp_path / "run", hooks=[StopAt(11)], steps=24)
    assert (outcome.finished, outcome.step) == (False, 11)
    assert tiny_run(data, tmp_path / "run", steps=24).finished
    same(tmp_path / "straight", tmp_path / "run")


def test_steps_go_on_while_a_checkpoint_is_written(data, tmp_path, monkeypatch):
    """The first checkpoint is held back until three more steps are done; what it holds is as of its own step."""
    tiny_run(data, tmp_path / "straight", {"checkpoint_steps": 2}, steps=6)
    save, go_on = Store.save, threading.Event()

    def held_back(self, step, state):
        if step == 2:
            assert go_on.wait(30)
        save(self, step, state)

    class Release(Hook):
        def take(self, loop, record):
            if isinstance(record, StepRecord) and record.step == 3:
                assert not (tmp_path / "run" / "checkpoints" / "step-00000002").exists()
                go_on.set()

    monkeypatch.setattr(Store, "save", held_back)
    setup = {"checkpoint_steps": 2, "keep_checkpoints": 9}
    tiny_run(data, tmp_path / "run", setup, [Release()], steps=6)
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 3
    same(tmp_path / "straight", tmp_path / "run")


def test_what_goes_wrong_while_a_checkpoint_is_written_is_said(data, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "save", full)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\)"):
        tiny_run(data, tmp_path / "run", {"checkpoint_steps": 2}, steps=6)
    assert max(record["step"] for record in metrics(tmp_path / "run")) <= 4


def test_a_profile_is_a_trace_of_some_steps(data, tmp_path):
    tiny_run(data, tmp_path / "plain", steps=14)
    assert not (tmp_path / "plain" / "profile").exists()
    tiny_run(data, tmp_path / "run", {"profile": True}, steps=14)
    with gzip.open(tmp_path / "run" / "profile" / "rank0.json.gz") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("Optimizer.step#AdamW.step") == 4
    same(tmp_path / "plain", tmp_path / "run")
    tiny_run(data, tmp_path / "short", {"profile": True}, steps=10)  # ended before the profile would have been
    assert (tmp_path / "short" / "profile" / "rank0.json.gz").is_file()


def test_the_timeline_does_not_count_compilation_as_a_step(data, tmp_path, monkeypatch, capsys):
    """A first step that takes a second is a phase of its own; the share of steps is of what a usual one takes."""
    step = Engine.step

    def slow(self, number, *rest):
        time.sleep(1.0 if number == 0 else 0.0)
        return step(self, number, *rest)

    monkeypatch.setattr(Engine, "step", slow)
    tiny_run(data, tmp_path / "run", {"checkpoint_steps": 4, "validation_steps": 4}, steps=12)
    found = Training.load(tmp_path / "run" / "results" / "training.json").last_start
    assert found["num_steps"] == 12
    assert list(found["phases"]) == ["start", "data", "model", "first step", "finish"]
    assert set(found["hook_seconds"]) == {"validation", "frequencies", "checkpoints", "data check"}
    assert found["phases"]["first step"] > 1.0
    assert 0 < found["median_step_seconds"] < 0.5
    assert found["step_share"] == pytest.approx(12 * found["median_step_seconds"] / found["total_seconds"])
    known = sum(found["phases"].values()) + sum(found["hook_seconds"].values())
    steps = sum(record["seconds"] for record in metrics(tmp_path / "run") if "seconds" in record)
    # The first step's own time is in its phase.
    assert known + steps - 1.0 < found["total_seconds"] + 0.1
    assert f"{found['step_share']:.1%} of it steps" in capsys.readouterr().out
