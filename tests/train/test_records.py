"""What a run writes down: validation as defined, trackers, records that can be trusted after a crash."""

import json
import sys
import types

import pytest
import torch

from lerope.core.files import read_lines
from lerope.core.run import read_history, read_metrics
from lerope.data.shards import Corpus
from lerope.model.saved import load_model
from tests.train.runs import metrics, tiny_run


def test_validation_is_the_mean_over_tokens_of_unpacked_documents(data, tmp_path):
    """Against one document, one window at a time, without masks or packing, in float64."""
    tiny_run(data, tmp_path / "run", steps=5, validation_tokens=10**6)
    got = [record for record in metrics(tmp_path / "run") if "validation_loss" in record][-1]
    model = load_model(tmp_path / "run" / "model").double()
    split = Corpus(data).validation
    total = count = 0
    for index in range(len(split)):
        tokens = torch.tensor(split.document(index).astype("int64"))
        for start in range(0, len(tokens) - 1, 32):
            window = tokens[start : start + 33]
            with torch.no_grad():
                logits = model(window[None, :-1])[0]
            total += float(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum"))
            count += len(window) - 1
    assert got["validation_tokens"] == count
    assert got["validation_loss"] == pytest.approx(total / count, rel=1e-6)


def test_tensorboard_has_every_metric(data, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny_run(data, tmp_path / "run", {"trackers": ("tensorboard",)}, steps=6)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("loss")]
    wanted = [(record["step"], record["loss"]) for record in metrics(tmp_path / "run") if "loss" in record]
    assert logged == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in wanted]
    assert {"validation_loss", "learning_rate", "gradient_norm", "frequency_gradient_norm"} <= set(
        events.scalars.Keys()
    )


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_hosted_trackers_get_the_run_and_its_metrics(data, tmp_path, monkeypatch, package):
    """With a stand-in for the package: what it is called with is what its documentation asks for."""
    calls = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append(("log", step, values)), finish=lambda: calls.append(("finish",))
    )

    def init(**options):
        calls.append(("init", options))
        return run

    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(init=init))
    tiny_run(data, tmp_path / "run", {"trackers": (package,)}, steps=4)
    kind, options = calls[0]
    assert kind == "init"
    assert options["project"] == "lerope"
    assert options["name"] == "demo-lerope-7"
    assert options["resume"] == "allow"
    assert options["config"]["learning_rate"] == 0.02
    logged = [(step, set(values)) for _, step, values in calls[1:-1]]
    assert [step for step, names in logged if "loss" in names] == [1, 2, 3, 4]
    assert [step for step, names in logged if "validation_loss" in names] == [4]
    assert [step for step, names in logged if "log_scales/07" in names] == [0, 1, 2, 3, 4]
    assert calls[-1] == ("finish",)


def test_frequencies_are_recorded_through_training(data, tmp_path):
    tiny_run(data, tmp_path / "run", {"frequency_records": 4}, steps=10)
    records = list(read_lines(tmp_path / "run" / "frequencies.jsonl"))
    assert [record["step"] for record in records] == [0, 3, 6, 9, 10]
    final = json.loads((tmp_path / "run" / "model" / "frequencies.json").read_text())
    assert records[-1]["log_scales"] == final["log_scales"]
    assert records[-1]["frequencies"] is None, "they follow from the base"
    tiny_run(data, tmp_path / "rope", encoding="rope", steps=10)
    assert [record["step"] for record in read_lines(tmp_path / "rope" / "frequencies.jsonl")] == [0]
    tiny_run(data, tmp_path / "nope", encoding="nope", steps=2)
    assert next(read_lines(tmp_path / "nope" / "frequencies.jsonl"))["frequencies"] == [0.0] * 8


def test_a_damaged_record_costs_that_record(data, tmp_path):
    tiny_run(data, tmp_path / "run", steps=3)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:20], "[" * 100_000, '{"step": "3"}', *lines[2:]]) + "\n")
    found = read_metrics(tmp_path / "run")
    assert [record.step for record in found.steps] == [1, 3]
    assert found.num_damaged == 3
    assert found.validation_loss == json.loads(lines[-1])["validation_loss"]


@pytest.mark.parametrize("parametrization", ["linear", "direct"])
def test_frequencies_that_cross_zero_are_recorded(data, tmp_path, parametrization):
    """Where a frequency is negative it has no log-scale."""
    encoding = f"lerope,parametrization={parametrization}"
    tiny_run(data, tmp_path / "run", steps=6, encoding=encoding, frequency_learning_rate=1.0, warmup_steps=0)
    records = read_history(tmp_path / "run")
    assert any(None in record.log_scales for record in records)
    assert all(isinstance(value, float) for record in records for value in record.frequencies)
    assert records[-1].values(None) == json.loads((tmp_path / "run/model/frequencies.json").read_text())["frequencies"]
