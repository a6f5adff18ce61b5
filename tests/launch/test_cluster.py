"""Where jobs go, without any: options from file and command line, GPUs by memory, and no Slurm."""

import signal
from dataclasses import asdict, replace

import pytest

from lerope.cli.main import main
from lerope.core.files import read_json, write_json
from lerope.launch import job as module
from lerope.launch.cluster import Cluster, read_cluster, share
from lerope.launch.job import JobFile, carry_out_job, program
from lerope.launch.scheduler import Job
from lerope.launch.slurm import _Watch
from lerope.launch.study import PlannedRun, Study, grid
from tests.data.corpora import write_corpus


def test_the_command_line_goes_before_the_file(tmp_path):
    (tmp_path / "c.toml").write_text(
        'partition = "gpu"\ntime = "1:00:00"\nmax_at_once = 4\nsbatch = "--qos=low --mem=9G"\n'
    )
    found = Cluster(partition="fast", gpus_per_run=0).over(read_cluster(tmp_path / "c.toml"))
    assert (found.partition, found.time, found.max_at_once, found.gpus_per_run) == ("fast", "1:00:00", 4, 0)
    assert found.options() == ["--partition=fast", "--time=1:00:00", "--signal=B:USR2@120", "--qos=low", "--mem=9G"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("partition = gpu", "Invalid value"),
        ("queue = 'gpu'", "queue is unknown; a cluster has partition, account, time"),
        ("max_at_once = 'many'", "Expected `int | null`, got `str` - at `$.max_at_once`"),
        ("max_at_once = 0", "max_at_once must be a positive whole number; got 0"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ValueError, match=sentence.replace("$", r"\$").replace("|", r"\|")):
        read_cluster(tmp_path / "c.toml")
    with pytest.raises(ValueError, match="does not exist; name a file that is there with --cluster"):
        read_cluster(tmp_path / "none.toml")


def taken(rung, **options):
    (run,) = grid([rung], ["rope"])
    found = share(run.recipe(None), Cluster(**options))
    return found.num_gpus, found.num_nodes, found.options


def test_a_run_takes_the_gpus_that_its_memory_needs():
    assert taken("217M") == (1, 1, [])
    assert taken("217M", gpus_per_run=0) == (0, 1, [])
    assert taken("2.52B", gpu="H200") == (1, 1, [])
    # 40 GiB of masters and moments do not go into 24: two GPUs hold half each, with blocks computed again.
    number, nodes, options = taken("2.52B", gpu="RTX 4090")
    assert (number > 1, nodes, options[:2]) == (True, 1, ["--parallel", "fsdp"])
    assert taken("2.52B", gpu="RTX 4090", gpus_per_node=1)[:2] == (number, number)
    assert taken("52M", gpu="H200", gpus_per_run=16) == (16, 2, [])
    with pytest.raises(ValueError, match="num_gpus must divide the 64 rows"):
        taken("52M", gpu="H200", gpus_per_run=24)


def a_job(tmp_path, **changes):
    data = tmp_path / "data"
    if not data.exists():
        write_corpus(data, {"train": [9], "validation": [9]})
    (run,) = grid(["demo"], ["rope"], steps=3)
    fields = {"runs": [replace(run, measure=())], "num_gpus": 1, "num_nodes": 1, "options": [], "save_seconds": 9}
    return JobFile(data=str(data), out=str(tmp_path / "out"), **{**fields, **changes})


def test_a_job_s_file_comes_back_as_it_was(tmp_path):
    first, *_ = grid(["demo"], ["lerope"], [43], steps=3, learning_rate=0.25)
    needs = PlannedRun(rung="demo", encoding="frozen", after=first.name, changes={"steps": 3})
    job = a_job(tmp_path, runs=[first, needs])
    write_json(tmp_path / "j.json", job)
    found = read_json(tmp_path / "j.json", JobFile, "fix it")
    assert asdict(found) == asdict(job)
    assert [run.name for run in found.runs] == [first.name, needs.name]


def test_ranks_are_torchrun_s_and_srun_s(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12345")
    assert program(a_job(tmp_path))[1:] == ["-m", "lerope"]
    one = program(a_job(tmp_path, num_gpus=8))
    assert "--nproc-per-node=8" in one
    assert one[-3:] == ["--standalone", "-m", "lerope"]
    many = program(a_job(tmp_path, num_gpus=16, num_nodes=2))
    assert many[:3] == ["srun", "--nodes=2", "--ntasks-per-node=1"]
    assert {"--nproc-per-node=8", "--nnodes=2", "--rdzv-id=12345"} <= set(many)


def test_near_the_time_limit_a_job_requeues_itself_if_it_got_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeued = []
    monkeypatch.setattr("lerope.launch.scheduler.requeue", requeued.append)
    job = a_job(tmp_path)
    metrics = tmp_path / "out" / "demo-rope-42" / "metrics.jsonl"

    def stop(signum, step):
        def carry_out(*args):
            if step is not None:
                metrics.parent.mkdir(parents=True, exist_ok=True)
                metrics.write_text(f'{{"step": {step}}}\n')
            raise module.Stopped(signum)

        monkeypatch.setattr("lerope.launch.local.carry_out", carry_out)
        return carry_out_job(job)

    assert stop(signal.SIGTERM, 1) == 128 + signal.SIGTERM
    assert requeued == []
    assert stop(signal.SIGUSR2, 2) == 0
    assert requeued == ["7"]
    assert stop(signal.SIGUSR2, None) == 1
    assert requeued == ["7"]
    assert "the time limit is too short for any progress; give a longer --time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--on", "slurm"], "on must be local where there is no Slurm; got 'slurm', and squeue is not installed here"),
        (["--on", "slurm", "--at-once", "2"], "at_once is for this machine; with --on slurm give --max-at-once 2."),
        (["--partition", "gpu"], "cluster and its options are for jobs; give --on slurm with them."),
        (["--cancel"], "cancel is for jobs; give --on slurm with it"),
        (["--on", "slurm", "--gpu", "H900"], "gpu must be one of A100-80G"),
        (["--on", "slurm", "--max-at-once", "0"], "max_at_once must be a positive whole number; got 0"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys, options, sentence):
    data = write_corpus(tmp_path / "data", {"train": [80] * 60, "validation": [40] * 4}, vocab_size=2048)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["ladder", "base", "--demo", "--data", str(data), "--out", str(tmp_path / "out"), *options])
    text = capsys.readouterr().err
    assert stop.value.code == 2, text
    assert sentence in text
    assert "Traceback" not in text


class FakeSlurm:
    """Stands for the scheduler: takes jobs, runs none."""

    def __init__(self, monkeypatch):
        self.live, self.options, self.cancelled = [], {}, []
        for name in ("jobs", "submit", "cancel", "ended_as"):
            monkeypatch.setattr(f"lerope.launch.scheduler.{name}", getattr(self, name))

    def jobs(self, out):
        return list(self.live)

    def submit(self, kind, folder, command, options):
        number = str(len(self.options) + 1)
        self.options[number] = [option for option in options if option.startswith("--dep")]
        self.live.append(Job(number, "PENDING", "Priority", kind, folder))
        return number

    def cancel(self, ids):
        self.cancelled += ids

    def ended_as(self, number):
        return "CANCELLED"


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Makes what watches a study of four runs, the last of which needs the second; measured but for the third."""
    data = write_corpus(tmp_path / "data", {"train": [9], "validation": [9]})
    runs = grid(["demo"], ["rope"], steps=3) + grid(["demo"], ["lerope"], [42, 43], steps=3)
    runs[2] = replace(runs[2], measure=())
    runs.append(PlannedRun(rung="demo", encoding="frozen", after=runs[1].name, changes={"steps": 3}))
    (tmp_path / "out" / "jobs").mkdir(parents=True)
    said = []

    def make(archives=None, **options):
        study, cluster = Study(name="four", sentence="", runs=runs), Cluster(gpus_per_run=0, **options)
        return _Watch(study, data, tmp_path / "out", cluster, said.append, archives), said

    return make


def test_slurm_is_told_what_waits_for_what(watch, monkeypatch):
    slurm = FakeSlurm(monkeypatch)
    watch()[0].submit()
    assert slurm.options == {
        "1": [],
        "2": ["--dependency=afterok:1"],
        "3": [],
        "4": ["--dependency=afterok:3"],
        "5": [],
        "6": ["--dependency=afterok:3"],
        "7": ["--dependency=afterok:6"],
    }


def test_at_most_so_many_are_a_chain_of_last_jobs(watch, monkeypatch):
    slurm = FakeSlurm(monkeypatch)
    watch(max_at_once=2)[0].submit()
    assert slurm.options["5"] == ["--dependency=afterany:2"]
    assert slurm.options["6"] == ["--dependency=afterok:3,afterany:4"]


def test_what_is_in_the_queue_is_not_submitted_again(watch, monkeypatch):
    slurm = FakeSlurm(monkeypatch)
    watch()[0].submit()
    slurm.live = [job for job in slurm.live if job.id not in ("1", "7")]  # two were cancelled by hand
    again, said = watch()
    again.submit()
    assert slurm.cancelled == ["2"]  # it waited for the first
    assert {number: slurm.options[number] for number in ("8", "9", "10")} == {
        "8": [],
        "9": ["--dependency=afterok:8"],
        "10": ["--dependency=afterok:6"],
    }
    assert len(slurm.options) == 10
    assert "demo-lerope-42: in the queue, job 3 and 4" in said


def test_jobs_that_are_gone_without_a_result_are_failures_and_a_silent_controller_is_not(watch, monkeypatch):
    slurm = FakeSlurm(monkeypatch)
    watching, said = watch()
    watching.submit()
    slurm.live = []
    assert watching.advance()  # once may be a file system that is late
    with monkeypatch.context() as patch:
        patch.setattr("lerope.launch.scheduler.jobs", lambda out: (_ for _ in ()).throw(ValueError("squeue refuses")))
        assert watching.advance()
    assert watching.failed == {}
    assert "squeue refuses; asking again" in said
    assert not watching.advance()
    assert watching.failed["demo-rope-42"] == "job 1 ended as CANCELLED: nothing in its log"
    assert watching.failed["demo-frozen-demo-lerope-42-42"] == "needs demo-lerope-42, which failed"


def test_what_is_finished_is_archived(watch, monkeypatch, tmp_path):
    """Two before the command is given, and the others when it sees that nothing is left of them."""
    slurm, archived = FakeSlurm(monkeypatch), []
    monkeypatch.setattr("lerope.launch.launcher.archive", lambda run, archives: archived.append((run.name, archives)))
    done = {"demo-rope-42", "demo-lerope-43"}
    monkeypatch.setattr(
        "lerope.launch.slurm.tasks_left", lambda run, *_: [] if run.name in done else [(None, ["train"])]
    )
    watching, _ = watch(archives=tmp_path / "kept")
    watching.submit()
    assert {name for name, _ in archived} == done
    slurm.live = []
    done |= {"demo-lerope-42", "demo-frozen-demo-lerope-42-42"}
    assert not watching.advance()
    assert len(archived) == 4
    assert {name for name, _ in archived} == done
    assert {folder for _, folder in archived} == {tmp_path / "kept"}
