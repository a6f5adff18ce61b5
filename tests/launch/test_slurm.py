"""Studies on a real Slurm: what happens to nodes, jobs and the command, and that nothing of it shows in the results."""

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lerope.core.run import read_run
from lerope.launch.progress import last_records
from lerope.results import Evaluation
from tests.data.corpora import write_corpus
from tests.data.test_prepare import content
from tests.data.texts import made_up, write_jsonl
from tests.launch.real_slurm import obstacle, slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(obstacle() is not None, reason=f"no Slurm here: {obstacle()}"),
]

STUDIES = '''
from dataclasses import replace
from lerope.launch.study import PlannedRun, Study, grid

SMALL = dict(row_length=64, batch_tokens=512, learning_rate=2**-8, weight_decay=1.0, validation_tokens=500)
FROZEN = "demo-frozen-demo-lerope-43-42"


def six():
    """The one that another waits for takes a minute or more."""
    runs = grid(["demo"], ["lerope"], [43], steps=150, **{**SMALL, "batch_tokens": 4096})
    runs += grid(["demo"], ["rope", "prope"], [42, 43], steps=30, **SMALL)
    runs.append(PlannedRun(rung="demo", encoding="frozen", after="demo-lerope-43", changes=dict(steps=30, **SMALL)))
    few = (("eval", "--max-tokens", "500"),)
    runs = [replace(run, measure=() if run.encoding == "prope" else few) for run in runs]
    return Study(name="six", sentence="Does it run?", runs=runs)


def two():
    runs = [replace(run, measure=()) for run in grid(["demo"], ["rope", "lerope"], steps=60, **SMALL)]
    return Study(name="two", sentence="Does it run?", runs=runs)


def one():
    (run,) = grid(["demo"], ["lerope"], steps=40, **SMALL)
    return Study(name="one", sentence="Does it run?", runs=[replace(run, measure=())])
'''


@pytest.fixture(scope="module")
def cluster():
    """A Slurm that every command of this module's tests reaches."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        pytest.MonkeyPatch.context() as patch,
        slurm(Path(folder)) as variables,
    ):
        for name, value in {**variables, "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture
def home(cluster, tmp_path, monkeypatch):
    """A folder with studies and data."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(STUDIES)
    write_corpus(tmp_path / "data", {"train": [80] * 60, "validation": [40] * 14}, vocab_size=2048)
    return tmp_path


def start(study, *options, out="out"):
    command = [sys.executable, "-m", "lerope", "ladder", f"own.py:{study}", "--data", "data", "--out", out, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def on_slurm(study, *options, out="out"):
    return start(study, "--on", "slurm", "--gpus-per-run", "0", *options, out=out)


def end(process, code=0):
    """What a command has printed when it ends as it should."""
    text = process.communicate(timeout=900)[0]
    assert process.returncode == code, text
    return text


def jobs(state="all"):
    """(id, run, node) of jobs."""
    command = ["squeue", "--noheader", f"--states={state}", "--format=%i %j %N"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [tuple((*line.split(), "")[:3]) for line in lines]


def elapsed(number):
    """Seconds since a job began."""
    command = ["squeue", "--noheader", f"--jobs={number}", "--format=%M"]
    *minutes, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(":")
    return int(seconds) + 60 * int(minutes[-1])


def tell(*command):
    subprocess.run(command, check=True)


def wait_for(ready, process):
    for _ in range(3000):
        if (found := ready()) is not None:
            return found
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    pytest.fail("it never came")


def training(name, at_least):
    """The job and node on which a run trains and has taken some steps; None if none does."""
    found = [job for job in jobs("running") if job[1] == name]
    return found[0] if found and last_records(Path("out") / name)[0] >= at_least else None


def results(out):
    """What runs came to: hashes of model files, and every loss that was measured."""
    found = {}
    for run in map(read_run, sorted(path.parent for path in Path(out).glob("*/run.json"))):
        losses = {path.name: Evaluation.load(path).loss for path in (run.path / "results").glob("eval*.json")}
        assert run.finished
        found[run.path.name] = (run.model_sha256, losses)
    return found


def test_a_study_whose_jobs_meet_every_kind_of_trouble_ends_as_one_without(home):
    options = ("--max-at-once", "3", "--time", "20", "--save-seconds", "80")
    process = on_slurm("six", *options)
    most = []

    def looked_at(name):
        most.append(len({run for _, run, _ in jobs("running")}))
        return training(name, 3)

    number, _, node = wait_for(lambda: looked_at("demo-rope-42"), process)
    tell("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    tell("scontrol", "requeue", number)
    cancelled, *_ = wait_for(lambda: looked_at("demo-rope-43"), process)
    tell("scancel", cancelled)
    long, *_ = wait_for(lambda: looked_at("demo-lerope-43"), process)
    # The end comes in 40 to 100 seconds; Slurm looks every 30, and asks to save 80 before it.
    tell("scontrol", "update", f"jobid={long}", f"timelimit={math.ceil((elapsed(long) + 40) / 60)}")
    log = Path("out/logs/demo-lerope-43.slurm.log")
    wait_for(lambda: "saved before the time limit; goes on in another job" in log.read_text() or None, process)
    tell("scontrol", "update", f"jobid={long}", "timelimit=20")
    text = end(process, code=1)
    assert f"demo-rope-43: failed; job {cancelled} ended as CANCELLED" in text
    assert "1 of 6 runs failed" in text
    end(on_slurm("six", *options))
    assert 0 < max(most) <= 3
    begun = {name: len(read_run(Path("out") / name).starts) for name in results("out")}
    twice = {"demo-rope-42", "demo-rope-43", "demo-lerope-43"}
    assert begun == {name: 2 if name in twice else 1 for name in begun}
    tell("scontrol", "update", f"nodename={node}", "state=resume")

    end(start("six", "--at-once", "2", out="local"))
    there, here = results("out"), results("local")
    assert len(here) == 6
    assert there == here
    tell(sys.executable, "-m", "lerope", "report", "out", "--out", "report")
    assert Path("report/index.html").is_file()


def test_two_submissions_at_once_train_no_run_twice(home):
    before = {number for number, *_ in jobs()}
    texts = [end(process) for process in [on_slurm("two"), on_slurm("two")]]
    assert len({number for number, *_ in jobs()} - before) == 2  # the controller forgets older ones
    assert sum(text.count("submitted, job") for text in texts) == 2
    assert sum(text.count("in the queue, job") for text in texts) == 2
    assert {name: len(read_run(Path("out") / name).starts) for name in results("out")} == {
        "demo-lerope-42": 1,
        "demo-rope-42": 1,
    }


def test_killed_the_command_leaves_its_jobs_and_given_again_attaches(home):
    process = on_slurm("two", "--max-at-once", "1")
    wait_for(lambda: training("demo-rope-42", 1), process)
    process.kill()
    process.communicate()
    shown = json.loads(end(on_slurm("two", "--status", "--json")))
    assert [row["state"] for row in shown] == ["running", "waiting"]
    assert ["RUNNING" in shown[0]["jobs"][0], "PENDING (Dependency)" in shown[1]["jobs"][0]] == [True, True]
    process = on_slurm("two")
    wait_for(lambda: training("demo-lerope-42", 1), process)
    process.send_signal(signal.SIGINT)
    text = end(process, code=128 + signal.SIGINT)
    assert text.count("in the queue, job") == 2
    assert "the jobs stay in Slurm's queue" in text
    text = end(on_slurm("two"))
    assert "demo-lerope-42: in the queue, job" in text
    assert all(len(read_run(Path("out") / name).starts) == 1 for name in results("out"))


def test_cancelled_runs_have_saved_and_go_on(home):
    process = on_slurm("two", "--max-at-once", "1")
    wait_for(lambda: training("demo-rope-42", 5), process)
    assert end(on_slurm("two", "--cancel")) == "2 jobs of out cancelled.\n"
    text = end(process, code=1)
    assert text.count("ended as CANCELLED") == 2
    run = Path("out/demo-rope-42")
    assert list((run / "checkpoints").iterdir())
    before = last_records(run)[0]
    assert 5 <= before < 60
    end(on_slurm("two"))
    assert f"from step {before}\n" in Path("out/logs/demo-rope-42.log").read_text()


@pytest.mark.parametrize(("number", "num_nodes"), [(2, 1), (4, 2)])
def test_several_gpus_and_nodes_are_ranks_of_one_run(home, number, num_nodes):
    """Slurm counts GPUs that torch does not see, so ranks compute on the CPU; also when a job is requeued."""
    process = start("one", "--on", "slurm", "--gpus-per-run", str(number), "--gpus-per-node", "2")
    job, *_ = wait_for(lambda: training("demo-lerope-42", 5), process)
    tell("scontrol", "requeue", job)
    end(process)
    run = read_run(Path("out/demo-lerope-42"))
    assert run.finished
    assert [each.num_ranks for each in run.starts] == [number, number]
    assert "from step" in Path("out/logs/demo-lerope-42.log").read_text()
    asked = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    assert f"NumNodes={num_nodes} " in asked


def test_what_sbatch_refuses_is_one_sentence(home):
    text = end(on_slurm("one", "--partition", "nowhere"), code=2)
    assert text.startswith("lerope ladder: sbatch refuses: ")
    assert "invalid partition specified: nowhere" in text
    assert "Traceback" not in text


def test_a_sweep_finds_the_same_optimum_as_on_one_machine(home):
    small = ["--steps", "12", "--row-length", "64", "--batch-tokens", "512", "--validation-tokens", "500"]
    small += ["--weight-decay", "1", "--encodings", "rope", "--start", "15", "--json"]
    command = [sys.executable, "-m", "lerope", "sweep", "demo", "--data", "data", *small]
    there = subprocess.run(
        [*command, "--out", "jobs", "--on", "slurm", "--gpus-per-run", "0"], capture_output=True, text=True
    )
    assert there.returncode == 0, there.stderr
    here = subprocess.run([*command, "--out", "local"], capture_output=True, text=True)
    assert here.returncode == 0, here.stderr
    there, here = json.loads(there.stdout), json.loads(here.stdout)
    assert there["trials"] == here["trials"]
    assert there["optima"] == here["optima"]


def test_data_prepared_by_an_array_of_four_equals_one(home):
    """As docs/clusters.md has it."""
    texts = made_up(400)
    for number in range(8):
        write_jsonl(Path(f"text-{number}.jsonl.gz"), texts[50 * number : 50 * (number + 1)])
    sources = [f"text-{number}.jsonl.gz" for number in range(8)]
    lerope = [sys.executable, "-m", "lerope"]
    tell(*lerope, "tokenizer", "train", *sources, "--vocab-size", "500", "--out", "t.model")
    prepare = [*lerope, "data", "prepare", *sources, "--tokenizer", "t.model", "--workers", "1", "--out"]
    tell(*prepare, "one")
    part = f"{shlex.join([*prepare, 'four'])} --part $SLURM_ARRAY_TASK_ID/4"
    submit = ["sbatch", "--parsable", "--output=%x-%a.log", "--job-name=part", "--array=1-4", f"--wrap={part}"]
    number = subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()
    merge = shlex.join([*lerope, "data", "merge", "four"])
    tell("sbatch", "--wait", "--output=merge.log", f"--dependency=afterok:{number}", f"--wrap={merge}")
    shutil.rmtree("four/parts")
    assert content(Path("four")) == content(Path("one"))
