"""A run that is killed and started again is the run that was never killed, bit for bit."""

import json
import os
import random
import shutil
import signal
import time

import pytest

from lerope.core.files import read_lines
from lerope.train.engine import Engine
from tests.train.runs import metrics, same, spawn, tensors, tiny_run


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """40 steps without a break, in a process of its own with one thread."""
    out = tmp_path_factory.mktemp("straight") / "run"
    process = spawn(data, out)
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    return out


def kill_when(process, ready):
    """kill -9 as soon as `ready` says so; whether it came to that."""
    while process.poll() is None:
        if ready():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.0005)
    return False


@pytest.mark.slow
def test_killed_three_times(data, straight, tmp_path):
    out = tmp_path / "run"

    def steps():
        return sum("loss" in record for record in read_lines(out / "metrics.jsonl"))

    def saving():
        return any((out / "checkpoints").glob(".saving-*/*.safetensors"))

    random.seed()
    early, late = random.randint(3, 12), random.randint(25, 34)
    for ready in (lambda: steps() >= early, saving, lambda: steps() >= late):
        assert kill_when(spawn(data, out), ready), "finished before it could be killed"
        if ready is saving:
            assert saving(), "the save in progress had ended"
    process = spawn(data, out)
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    assert "from step" in text
    same(straight, out)
    assert not any((out / "checkpoints").glob(".saving-*"))


@pytest.mark.parametrize(
    "kind", [signal.SIGINT, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (signal.SIGTERM, signal.SIGUSR2))]
)
def test_a_signal_saves_and_says_how_to_go_on(data, straight, tmp_path, kind):
    out = tmp_path / "run"
    process = spawn(data, out)
    while not (out / "metrics.jsonl").exists() or len(metrics(out)) < 3:
        time.sleep(0.002)
    process.send_signal(kind)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + kind, text
    assert "Traceback" not in text
    assert ("Ctrl-C once more stops at once" in text) == (kind == signal.SIGINT)
    step = len([r for r in metrics(out) if "loss" in r])
    assert f"stopped at step {step} with a checkpoint" in text
    assert "\n  lerope" in text
    assert (out / "checkpoints" / f"step-{step:08d}").is_dir()
    process = spawn(data, out)
    assert f"from step {step}\n" in process.communicate(timeout=60)[0]
    same(straight, out)


def test_a_signal_within_a_step_stops_after_that_step(data, tmp_path, monkeypatch):
    """A step may take minutes on a CPU."""
    step = Engine.step

    def interrupted(self, number, *args):
        if number == 2:
            monkeypatch.setattr(self, "_count_documents", lambda batch: signal.raise_signal(signal.SIGTERM))
        return step(self, number, *args)

    monkeypatch.setattr(Engine, "step", interrupted)
    outcome = tiny_run(data, tmp_path / "run", steps=5)
    assert (outcome.step, outcome.finished, outcome.stopped_by) == (3, False, signal.SIGTERM)


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_another_number_of_ranks_goes_on(data, straight, tmp_path, before, after, parallel):
    out = tmp_path / "run"
    setup = {"parallel": parallel}
    process = spawn(data, out, before, setup={**setup, "checkpoint_steps": 5})
    while not any((out / "checkpoints").glob("step-*")):
        time.sleep(0.005)
        assert process.poll() is None, process.communicate()[0]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process = spawn(data, out, after, setup=setup)
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    assert "from step" in text
    for got, want in zip(metrics(out), metrics(straight), strict=True):
        for field in ("loss", "validation_loss"):
            if field in want:
                assert got[field] == pytest.approx(want[field], rel=1e-6), want["step"]
        assert got["step"] == want["step"]


def test_a_finished_run_stays_as_it_is(data, tmp_path, capsys):
    out = tmp_path / "run"
    first = tiny_run(data, out, steps=5)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    again = tiny_run(data, out, steps=5)
    assert again == first
    assert again.finished
    assert "is finished: validation loss" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}


def test_an_end_that_was_cut_short_is_made_up_for(data, straight, tmp_path):
    """Killed after the last checkpoint and before the model was written."""
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    shutil.rmtree(out / "model")
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**run, "finished": False}))
    assert tiny_run(data, out).finished
    same(straight, out)


def test_only_the_newest_checkpoints_stay(data, tmp_path):
    tiny_run(data, tmp_path / "run", {"checkpoint_steps": 2, "keep_checkpoints": 3}, steps=11)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-00000008", "step-00000010", "step-00000011"]
    assert "model.encoding.alpha" in tensors(tmp_path / "run")
