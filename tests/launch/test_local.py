"""A study on this machine: order, several at once, failures, and a launcher that is stopped or killed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from threading import Thread

import pytest

import lerope
from lerope.data.shards import Manifest
from lerope.launch.launcher import LOGS
from lerope.launch.local import carry_out, places
from lerope.launch.progress import status
from lerope.launch.study import PlannedRun, Study, grid, measured
from tests.data.corpora import write_corpus
from tests.train.runs import edit

ONE, TWO = [{"OMP_NUM_THREADS": "1"}], [{"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}]
STEPS = {"steps": 3}


def study(*runs):
    return Study(name="test", sentence="Does it run?", runs=runs)


def pair():
    return study(*grid(["demo"], ["rope", "lerope"], **STEPS))


def program(out):
    return (sys.executable, "-m", "tests.launch.fake", str(out / "calls"))


def launch(chosen, out, where=ONE, data="data", archives=None):
    """Carries a study out; what its runs are, and learn, is there for the program to copy."""
    corpus = out.parent / data
    if not corpus.exists():
        write_corpus(corpus, {"train": [9], "validation": [9]}, seed=len(data))
    out.mkdir(exist_ok=True)
    if not (out / "frequencies.json").exists():
        lerope.RoPE(64).save(out / "frequencies.json")
    learned = lerope.FrozenRoPE.load(out / "frequencies.json").artifact().fingerprint()
    fixed = {"data": Manifest.load(corpus).fingerprint(), "initial_frequencies": learned}
    identities = {run.name: {"recipe": asdict(run.recipe(out)), **fixed} for run in chosen.runs}
    (out / "identities.json").write_text(json.dumps(identities))
    return carry_out(chosen, corpus, out, where, program(out), archives=archives)


def calls(out):
    """What the program was asked for and did, in order: (word, run)."""
    path = out / "calls"
    return [tuple(line.split()[:2]) for line in path.read_text().splitlines()] if path.exists() else []


def pid_of(out, word, run):
    (line,) = (line for line in (out / "calls").read_text().splitlines() if line.startswith(f"{word} {run} "))
    return int(line.split()[2])


def wait_for(ready, process=None):
    for _ in range(6000):
        if ready():
            return
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    pytest.fail("it never came")


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    return tmp_path / "out"


def spawn(out, encodings="rope,lerope"):
    """A launcher in a process of its own, which can be killed."""
    code = (
        "import sys; from pathlib import Path; from lerope.cli.stopping import stoppable; "
        "from tests.launch.test_local import grid, launch, study, STEPS; "
        "chosen = study(*grid(['demo'], sys.argv[2].split(','), **STEPS))\n"
        "with stoppable(): print('failed', launch(chosen, Path(sys.argv[1])))"
    )
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(out), encodings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_every_run_is_trained_and_then_measured(out):
    assert launch(pair(), out) == {}
    assert [call for call in calls(out) if call[0] in ("train", "eval")] == [
        ("train", "demo-rope-42"),
        ("eval", "demo-rope-42"),
        ("train", "demo-lerope-42"),
        ("eval", "demo-lerope-42"),
    ]
    assert (out / LOGS / "demo-rope-42.log").exists()
    found = [status(run, out) for run in pair().runs]
    assert [(each.state, each.step, each.steps, each.validation_loss) for each in found] == 2 * [
        ("finished", 3, 3, 2.25)
    ]


def test_a_run_that_needs_another_s_frequencies_comes_after_it(out):
    frozen = PlannedRun(rung="demo", encoding="frozen", after="demo-lerope-43", changes=STEPS)
    chosen = study(*grid(["demo"], ["lerope"], [43], **STEPS), frozen, *grid(["demo"], ["rope"], **STEPS))
    out.mkdir()
    hold = out / "hold-demo-lerope-43"
    hold.touch()

    def release():
        wait_for(lambda: ("eval", "demo-rope-42") in calls(out))
        hold.unlink()

    thread = Thread(target=release)
    thread.start()
    assert launch(chosen, out, TWO) == {}
    thread.join()
    done = calls(out)
    # What needs nothing goes first where there is a place for it.
    assert done.index(("eval", "demo-rope-42")) < done.index(("train", frozen.name))
    assert done.index(("trained", "demo-lerope-43")) < done.index(("train", frozen.name))
    assert ("eval", frozen.name) in done


def test_a_failure_leaves_the_others_alone(out, capsys):
    first = PlannedRun(rung="demo", encoding="nope", seed=43, changes=STEPS)
    needs = PlannedRun(rung="demo", encoding="frozen", after=first.name, changes=STEPS)
    failed = launch(study(first, needs, *pair().runs), out)
    assert failed == {
        "demo-nope-43": "train exited with 1: lerope train: broken on purpose.",
        needs.name: "needs demo-nope-43, which failed",
    }
    assert ("eval", "demo-rope-42") in calls(out)
    assert ("eval", "demo-lerope-42") in calls(out)
    assert "demo-nope-43: failed; train exited with 1: lerope train: broken on purpose." in capsys.readouterr().out


def test_each_run_is_archived_as_soon_as_it_is_finished(out, monkeypatch):
    """Also one that was finished before; an archive that cannot be written is that run's failure."""
    archived = []
    monkeypatch.setattr(
        "lerope.launch.launcher.archive", lambda run, archives: archived.append((run.name, len(calls(out)), archives))
    )
    kept = out.parent / "kept"
    assert launch(pair(), out, archives=kept) == {}
    (first, so_far, folder), (second, at_end, _) = archived
    assert (first, second, folder) == ("demo-rope-42", "demo-lerope-42", kept)
    assert so_far < at_end == len(calls(out))
    launch(pair(), out, archives=kept)
    assert len(archived) == 4

    def full(run, archives):
        if run.name == "demo-rope-42":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("lerope.launch.launcher.archive", full)
    (out / "demo-rope-42" / "results" / "eval.json").unlink()
    failed = launch(pair(), out, archives=kept)
    assert failed.keys() == {"demo-rope-42"}
    assert "demo-rope-42 cannot be archived in" in failed["demo-rope-42"]
    assert "No space left" in failed["demo-rope-42"]


def test_a_damaged_run_directory_is_that_run_s_failure(out):
    (out / "demo-rope-42").mkdir(parents=True)
    (out / "demo-rope-42" / "run.json").write_text("{")
    assert "JSON" in launch(pair(), out)["demo-rope-42"]
    assert ("eval", "demo-lerope-42") in calls(out)


def test_what_is_done_is_not_done_again(out):
    launch(pair(), out)
    before = calls(out)
    launch(pair(), out)
    assert calls(out) == before
    (out / "demo-rope-42" / "results" / "eval.json").unlink()
    assert status(pair().runs[0], out).state == "trained"
    launch(pair(), out)
    assert calls(out)[len(before) :] == [("eval", "demo-rope-42"), ("measuring", "demo-rope-42")]


def test_a_measurement_is_done_when_its_command_has_ended_well(out):
    """Not when there is some result of that name: of other arguments, of an earlier training, or by hand."""
    (run,) = measured(grid(["demo"], ["rope"], **STEPS), ("needle",), ("needle", "--to", "9"))
    results = out / run.name / "results"
    assert launch(study(replace(run, measure=(("eval",), ("needle",)))), out) == {}
    (results / "needle-by-hand.json").write_text("{}")
    assert status(run, out).state == "trained"
    before = len(calls(out))
    assert launch(study(run), out) == {}
    assert [word for word, _ in calls(out)[before:]] == ["needle", "measuring"]
    assert (results / "needle---to-9.json").exists()
    assert status(run, out).state == "finished"
    edit(out / run.name / "run.json", created="later")
    assert status(run, out).state == "trained"
    launch(study(run), out)
    assert status(run, out).state == "finished"
    for damage in ("{", "[]", '{"created": "later"}'):
        (results / ".measured.json").write_text(damage)
        assert status(run, out).state == "trained"


def test_another_run_of_the_same_name_is_refused(out):
    chosen = pair()
    assert launch(chosen, out) == {}
    before = calls(out)
    longer = study(*grid(["demo"], ["rope", "lerope"], steps=5))
    folder = out / "demo-rope-42"
    failed = launch(longer, out)
    assert failed.keys() == {"demo-rope-42", "demo-lerope-42"}
    sentence = failed["demo-rope-42"]
    assert sentence.startswith(str(folder))
    assert "its steps is 3, not 5" in sentence
    found = status(longer.runs[0], out)
    assert (found.state, found.step, found.steps, found.problem) == ("different", 3, 3, sentence)
    other = launch(chosen, out, data="other")
    assert other["demo-rope-42"].startswith(str(folder))
    assert "fingerprint" in other["demo-rope-42"]
    assert status(chosen.runs[0], out, "another fingerprint").state == "different"
    assert status(chosen.runs[0], out).state == "finished"
    assert calls(out) == before


def test_precision_is_the_machine_s_unless_the_study_gives_it(out):
    (run,) = grid(["demo"], ["rope"], **STEPS)
    launch(study(run), out)
    content = json.loads((out / run.name / "run.json").read_text())
    there = content["identity"]["recipe"]["precision"]
    another = "float32" if there == "bf16" else "bf16"
    content["identity"]["recipe"]["precision"] = another
    (out / run.name / "run.json").write_text(json.dumps(content))
    assert status(run, out).state == "finished"
    fixed = replace(run, changes={**STEPS, "precision": there})
    assert f"its precision is '{another}', not '{there}'" in status(fixed, out).problem


def test_what_needs_another_run_is_not_trained_with_frequencies_of_a_different_one(out):
    first, *_ = grid(["demo"], ["lerope"], [43], **STEPS)
    needs = PlannedRun(rung="demo", encoding="frozen", after=first.name, changes=STEPS)
    launch(study(first), out)
    failed = launch(study(replace(first, changes={"steps": 5}), needs), out)
    assert failed[needs.name] == f"needs {first.name}, which failed"
    assert ("train", needs.name) not in calls(out)
    # Its own are compared with those of the run it names, wherever that lies.
    assert launch(study(first, needs), out) == {}
    assert status(needs, out).state == "finished"
    moved = out.rename(out.with_name("moved"))
    assert status(needs, moved).state == "finished"
    lerope.RoPE(64, base=500.0).save(moved / first.name / "model" / "frequencies.json")
    assert f"its frequencies are not those of {first.name}" in status(needs, moved).problem


def test_status_leaves_nothing_behind(out):
    (out / "demo-rope-42").mkdir(parents=True)
    assert [status(run, out).state for run in pair().runs] == ["waiting", "waiting"]
    assert [path.name for path in out.rglob("*")] == ["demo-rope-42"]


def test_a_damaged_run_has_a_status(out):
    (out / "demo-rope-42").mkdir(parents=True)
    (out / "demo-rope-42" / "run.json").write_text("{")
    found = status(pair().runs[0], out)
    assert found.state == "damaged"
    assert "run.json is not" in found.problem


@pytest.mark.slow
def test_several_at_once_each_in_its_place(out):
    out.mkdir()
    holds = [out / f"hold-{run.name}" for run in pair().runs]
    for hold in holds:
        hold.touch()
    code = (
        "import sys; from pathlib import Path; from tests.launch.test_local import TWO, launch, pair; "
        "launch(pair(), Path(sys.argv[1]), TWO)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: sum(word == "held" for word, _ in calls(out)) == 2, process)
    assert [status(run, out).state for run in pair().runs] == ["running", "running"]
    for hold in holds:
        hold.unlink()
    assert process.wait(60) == 0
    threads = {line.split()[1]: line.split()[3] for line in (out / "calls").read_text().splitlines()}
    assert threads == {"demo-rope-42": "1", "demo-lerope-42": "2"}


@pytest.mark.slow
@pytest.mark.parametrize("children", ["live on", "die too"])
def test_killed_in_the_middle_and_started_again(out, children):
    out.mkdir()
    hold = out / "hold-demo-lerope-42"
    hold.touch()
    process = spawn(out, "rope,lerope,prope")
    wait_for(lambda: ("held", "demo-lerope-42") in calls(out), process)
    process.kill()
    process.wait()
    if children == "die too":
        os.kill(pid_of(out, "held", "demo-lerope-42"), signal.SIGKILL)
        hold.unlink()
    process = spawn(out, "rope,lerope,prope")
    if children == "live on":
        # The runs that can go on do; the one that a process still works on is waited for.
        wait_for(lambda: ("eval", "demo-prope-42") in calls(out), process)
        assert ("eval", "demo-lerope-42") not in calls(out)
        hold.unlink()
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert "failed {}" in text
    assert ("demo-lerope-42: in use by another process; waiting for it" in text) == (children == "live on")
    done = calls(out)
    again = 1 if children == "live on" else 2
    assert [done.count(("train", f"demo-{name}-42")) for name in ("rope", "lerope", "prope")] == [1, again, 1]
    assert [done.count(("eval", f"demo-{name}-42")) for name in ("rope", "lerope", "prope")] == [1, 1, 1]


@pytest.mark.slow
def test_killed_in_a_measurement_and_started_again(out):
    out.mkdir()
    hold = out / "hold-eval-demo-rope-42"
    hold.touch()
    process = spawn(out)
    wait_for(lambda: ("measuring", "demo-rope-42") in calls(out), process)
    process.kill()
    process.wait()
    process = spawn(out)
    wait_for(lambda: ("eval", "demo-lerope-42") in calls(out), process)
    assert calls(out).count(("eval", "demo-rope-42")) == 1
    hold.unlink()
    text = process.communicate(timeout=60)[0]
    assert "demo-rope-42: in use by another process; waiting for it" in text
    assert "failed {}" in text
    assert [calls(out).count(("train", f"demo-{name}-42")) for name in ("rope", "lerope")] == [1, 1]
    assert [status(run, out).state for run in pair().runs] == ["finished", "finished"]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_lets_children_save(out, kind):
    out.mkdir()
    hold = out / "hold-demo-rope-42"
    hold.touch()
    process = spawn(out)
    wait_for(lambda: ("held", "demo-rope-42") in calls(out), process)
    process.send_signal(kind)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + kind, text
    assert ("saved", "demo-rope-42") in calls(out)
    assert ("train", "demo-lerope-42") not in calls(out)
    assert f"Stopped by {kind.name}; " in text
    assert status(pair().runs[0], out).state == "stopped"
    hold.unlink()
    assert launch(pair(), out) == {}
    assert ("eval", "demo-lerope-42") in calls(out)


def test_places(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(6)))
    assert places(None) == [{"OMP_NUM_THREADS": "6"}]
    assert places(4) == 4 * [{"OMP_NUM_THREADS": "1"}]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert places(None) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert places(1) == [{"CUDA_VISIBLE_DEVICES": "5"}]
    with pytest.raises(ValueError, match="at_once must be at most the 2 GPUs of this machine; got 3"):
        places(3)
    with pytest.raises(ValueError, match="at_once must be a positive whole number; got 0"):
        places(0)
