"""A sweep finds a planted optimum in the fewest runs, and is killed and started again without repeating one."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from lerope.core.ladder import LADDER
from lerope.core.run import provenance, read_run
from lerope.core.signals import Stopped
from lerope.launch.sweep import SWEEP, losses_of, parameters, predict, sweep, training, training_by
from lerope.results import Sweep
from lerope.train import job
from lerope.train.trainer import Diverged
from tests.train.runs import tiny_recipe, tiny_setup

PLANTED = {"rope": 17, "lerope": 16}
TINY_RUN = {"steps": 12, "row_length": 32, "batch_tokens": 256, "validation_tokens": 300, "precision": "float32"}


class Planted:
    """Losses that are lowest at a planted index, and a note of every run that was asked for."""

    def __init__(self, diverges_below=0):
        self.asked, self.diverges_below = [], diverges_below

    def __call__(self, encoding, index, folder):
        self.asked.append((encoding, index))
        return math.inf if index < self.diverges_below else 3 + (index - PLANTED[encoding]) ** 2 / 100


def test_a_planted_optimum_in_the_fewest_runs(tmp_path):
    objective, lines = Planted(), []
    found = sweep(tmp_path / "s", {"rung": "demo"}, ["rope", "lerope"], 17, objective, lines.append)
    # From the right guess 3; for the next encoding from there, one below its own, 1 + 3.
    assert objective.asked[:3] == [("rope", 17), ("rope", 18), ("rope", 16)]
    assert len(objective.asked) == 7 == len(lines)
    assert [(best["encoding"], best["index"], best["num_runs"]) for best in found.optima] == [
        ("rope", 17, 3),
        ("lerope", 16, 4),
    ]
    best = found.optima[0]
    assert (best["loss"], best["loss_at_larger_rate"], best["loss_at_smaller_rate"]) == (3.0, 3.01, 3.01)
    assert best["learning_rate"] == 2**-8.5
    assert Sweep.load(tmp_path / "s" / SWEEP) == found
    assert {trial["run"] for trial in found.trials} >= {"rope/lr-17", "lerope/lr-16"}


def test_one_encoding_is_searched_once_however_it_is_spelled(tmp_path):
    with pytest.raises(ValueError, match=r"got \['rope', 'rope'\]"):
        sweep(tmp_path, {}, ["rope", "rope,base=10000"], 17, Planted(), print)
    objective = Planted()
    found = sweep(tmp_path, {}, ["rope,base=1e4", "lerope,sharing=shared"], 17, objective, lambda line: None)
    assert [best["encoding"] for best in found.optima] == ["rope", "lerope"]
    objective.asked.clear()
    assert sweep(tmp_path, {}, ["rope", "lerope"], 17, objective, lambda line: None).trials == found.trials
    assert objective.asked == []


def test_started_again_it_repeats_nothing(tmp_path):
    settings = {"rung": "demo"}
    first = sweep(tmp_path, settings, ["rope"], 17, Planted(), lambda line: None)
    objective = Planted()
    again = sweep(tmp_path, settings, ["rope", "lerope"], 12, objective, lambda line: None)
    assert {encoding for encoding, _ in objective.asked} == {"lerope"}
    assert again.trials[:3] == first.trials


def test_a_run_that_diverged_is_remembered(tmp_path):
    objective, lines = Planted(diverges_below=17), []
    found = sweep(tmp_path, {}, ["rope"], 16, objective, lines.append)
    assert (found.optima[0]["index"], found.optima[0]["loss_at_larger_rate"]) == (17, None)
    assert "rope  index 16  learning rate 3.906e-03  diverged" in lines
    assert losses_of(found, "rope")[16] == math.inf
    objective.asked.clear()
    sweep(tmp_path, {}, ["rope"], 16, objective, lines.append)
    assert objective.asked == []
    json.loads((tmp_path / SWEEP).read_text(), parse_constant=pytest.fail)


def test_another_sweep_s_folder_is_refused(tmp_path):
    sweep(tmp_path, {"recipe": {"steps": 10}}, ["rope"], 17, Planted(), print)
    with pytest.raises(ValueError, match=r"its recipe.steps is 10, not 20; .*another --out"):
        sweep(tmp_path, {"recipe": {"steps": 20}}, ["rope"], 17, Planted(), print)
    with pytest.raises(ValueError, match="encodings must be"):
        sweep(tmp_path, {}, ["rope", "rope"], 17, Planted(), print)


CHILD = """
import sys, time
from pathlib import Path
from lerope.launch.sweep import sweep
out, slow = Path(sys.argv[1]), sys.argv[2]
def objective(encoding, index, folder):
    folder.mkdir(parents=True, exist_ok=True)
    with (out / "calls").open("a") as calls:
        print(encoding, index, file=calls, flush=True)
    if f"{encoding} {index}" == slow:
        time.sleep(600)
    return (index - 17) ** 2
sweep(out, {}, ["rope", "lerope"], 15, objective)
"""


@pytest.mark.parametrize("slow", ["rope 17", "lerope 18"])
def test_killed_in_the_middle_of_a_run(tmp_path, monkeypatch, slow):
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), slow], start_new_session=True)
    calls = tmp_path / "calls"
    while not calls.exists() or slow not in calls.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = calls.read_text().splitlines()
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path), "none"])
    exec(CHILD, {})
    asked = calls.read_text().splitlines()
    # From 15, two below the minimum: 2 + 2 runs; then 3. The one that was cut short is the only one asked for twice.
    assert len(asked) == 7 + 1
    rope, lerope = [f"rope {i}" for i in (15, 16, 17, 18)], [f"lerope {i}" for i in (16, 17, 18)]
    assert sorted(set(asked)) == sorted([*rope, *lerope])
    assert [line for line in asked if asked.count(line) == 2] == [slow, slow]
    assert asked[: len(before)] == before
    assert len(Sweep.load(tmp_path / SWEEP).trials) == 7


def test_a_real_sweep(data, tmp_path, tiny_demo):
    settings, objective = training("demo", data, 7, TINY_RUN, tiny_setup())
    found = sweep(tmp_path / "s", settings, ["lerope"], 12, objective)
    best = found.optima[0]
    assert best["loss"] <= min(best["loss_at_larger_rate"], best["loss_at_smaller_rate"])
    for trial in found.trials:
        run = read_run(tmp_path / "s" / trial["run"])
        assert run.finished
        assert run.recipe.learning_rate == run.recipe.frequency_learning_rate == trial["learning_rate"]
        results = json.loads((run.path / "results" / "training.json").read_text())
        assert results["validation_loss"] == trial["loss"]
    assert len({trial["loss"] for trial in found.trials}) == len(found.trials)
    # Without sweep.json the runs themselves are enough: none is trained again.
    (tmp_path / "s" / SWEEP).unlink()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("model.safetensors")}
    assert sweep(tmp_path / "s", settings, ["lerope"], 12, objective).trials == found.trials
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_real_runs_that_diverge_or_are_stopped(data, tmp_path, tiny_demo, monkeypatch):
    train = job.train

    def fragile(recipe, *args):
        if recipe.learning_rate > 2**-6:
            raise Diverged("loss is nan at step 3.")
        return train(recipe, *args)

    monkeypatch.setattr(job, "train", fragile)
    _, objective = training("demo", data, 7, {**TINY_RUN, "steps": 3}, tiny_setup())
    assert objective("rope", 11, tmp_path / "a") == math.inf
    assert math.isfinite(objective("rope", 12, tmp_path / "b"))
    monkeypatch.setattr(job, "train", lambda recipe, data, out, setup: job.Outcome(out, 1, False, None, signal.SIGINT))
    with pytest.raises(Stopped):
        training("demo", data, 7, TINY_RUN, tiny_setup())[1]("rope", 12, tmp_path / "c")
    monkeypatch.setattr(job, "train", lambda *args: (_ for _ in ()).throw(ValueError("something else")))
    with pytest.raises(ValueError, match="something else"):
        training("demo", data, 7, TINY_RUN, tiny_setup())[1]("rope", 12, tmp_path / "d")
    with pytest.raises(ValueError, match="learning_rate is what a sweep searches"):
        training("demo", data, 7, {"learning_rate": 0.1}, tiny_setup())


def swept(name: str, index: int) -> Sweep:
    model = vars(LADDER[name])
    best = {"encoding": "rope", "index": index, "learning_rate": 2 ** (-index / 2), "loss": 1.0}
    best |= {"loss_at_larger_rate": 2.0, "loss_at_smaller_rate": 2.0, "num_runs": 3}
    return Sweep(
        settings={"rung": name, "recipe": {"model": model}},
        provenance=provenance(),
        trials=[],
        optima=[best],
        predictions=[],
    )


def test_the_paper_s_sweeps_predict_larger_rungs():
    sweeps = [swept("52M", 13), swept("217M", 17), swept("608M", 20)]
    assert [parameters(each) for each in sweeps] == [51_642_368, 216_530_944, 607_911_936]
    found = predict(sweeps, ["1.34B", "2.52B"])
    assert [(each["rung"], each["index"]) for each in found] == [("1.34B", 22), ("2.52B", 24)]
    assert found[0]["slope"] == pytest.approx(-0.98, abs=0.005)
    assert predict(sweeps[:1], ["1.34B"]) == []


def test_a_launcher_that_trains_ahead_finds_what_one_after_the_other_does(data, tmp_path, tiny_demo):
    """Real runs, by a launcher that trains in this process; what was trained ahead and not asked for does not count."""
    settings, objective = training("demo", data, 7, TINY_RUN, tiny_setup())
    alone = sweep(tmp_path / "alone", settings, ["rope", "lerope"], 9, objective)
    rounds = []

    def launch(study, data, out):
        rounds.append([run.name for run in study.runs])
        for run in study.runs:
            job.train(run.recipe(out), data, out / run.name, tiny_setup())
        return {}

    settings, objective, ahead = training_by(launch, "demo", data, 7, TINY_RUN)
    found = sweep(tmp_path / "ahead", settings, ["rope", "lerope"], 9, objective, ahead=ahead)
    assert (found.trials, found.optima) == (alone.trials, alone.optima)
    assert len(rounds) < len(found.trials)
    assert rounds[0] == ["lr-9", "lr-10", "lr-8"]
    before = len(rounds)
    assert sweep(tmp_path / "ahead", settings, ["rope", "lerope"], 9, objective, ahead=ahead).trials == found.trials
    assert len(rounds) == before


def test_by_a_launcher_a_run_that_diverged_is_inf_and_one_that_failed_ends_the_sweep(data, tmp_path, tiny_demo):
    def launch(study, data, out):
        failed = {}
        for run in study.runs:
            if run.recipe(out).learning_rate > 2**-4:
                (out / run.name).mkdir(parents=True)
                (out / run.name / "diverged.json").write_text("{}")
                failed[run.name] = "job 1 ended as FAILED: loss is nan"
            elif run.name == "lr-10":
                failed[run.name] = "job 2 ended as CANCELLED: asked to stop"
            else:
                job.train(run.recipe(out), data, out / run.name, tiny_setup())
        return failed

    settings, objective, ahead = training_by(launch, "demo", data, 7, {**TINY_RUN, "steps": 3})
    with pytest.raises(ValueError, match=r"lr-10 failed, and a sweep needs its loss: job 2 ended as CANCELLED"):
        sweep(tmp_path, settings, ["rope"], 7, objective, lambda line: None, ahead)
    assert losses_of(Sweep.load(tmp_path / SWEEP), "rope")[7] == math.inf


def test_a_sweep_that_has_no_result_yet_is_still_another_one(data, tmp_path, tiny_demo):
    """What its jobs train in the meantime must not count for a sweep with other settings."""

    def leave(encoding, folders):
        raise Stopped(2)

    settings, objective, _ = training_by(lambda *_: {}, "demo", data, 7, {**TINY_RUN, "steps": 3})
    with pytest.raises(Stopped):
        sweep(tmp_path, settings, ["rope"], 7, objective, lambda line: None, leave)
    settings, objective, ahead = training_by(lambda *_: {}, "demo", data, 7, {**TINY_RUN, "steps": 4})
    with pytest.raises(ValueError, match=r"recipe\.steps is 3, not 4"):
        sweep(tmp_path, settings, ["rope"], 7, objective, lambda line: None, ahead)


def test_a_run_that_diverges_says_so_in_its_folder(data, tmp_path, tiny_demo, monkeypatch):
    chosen = tiny_recipe(steps=3)

    def diverge(*args):
        raise Diverged("loss is nan at step 3.")

    with monkeypatch.context() as patch:
        patch.setattr("lerope.train.trainer.run", diverge)
        with pytest.raises(Diverged):
            job.train(chosen, data, tmp_path / "run", tiny_setup())
    assert json.loads((tmp_path / "run" / "diverged.json").read_text()) == {"sentence": "loss is nan at step 3."}
    assert job.train(chosen, data, tmp_path / "run", tiny_setup()).finished
    assert not (tmp_path / "run" / "diverged.json").exists()
