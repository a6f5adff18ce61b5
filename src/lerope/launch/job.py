"""What a job of a cluster runs: python -m lerope.launch.job OUT/jobs/RUN.KIND.json

It is the launcher of one machine with a study of one run, on the GPUs and nodes that the scheduler gave. Asked to save
because the time limit is near, it puts itself into the queue again; preempted or cancelled, it saves, and the scheduler
decides what follows.
"""

import importlib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from lerope.core.files import read_json
from lerope.core.run import RESULTS
from lerope.core.signals import SAVE, Signals, Stopped
from lerope.launch.study import PlannedRun, Study

JOBS = "jobs"
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """What a job has to know."""

    data: str
    out: str
    runs: list[PlannedRun]
    """The last of them is the job's; the others are what it needs."""
    num_gpus: int
    num_nodes: int
    options: list[str]
    """Of `lerope train`."""
    save_seconds: int


def carry_out_job(job: JobFile) -> int:
    """Trains or measures what is left; the exit code."""
    from lerope.launch import scheduler
    from lerope.launch.local import carry_out

    out = Path(job.out)
    # torchrun lets its processes save for 30 seconds unless told.
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(job.save_seconds)
    study = Study(name=job.runs[-1].name, sentence="", runs=job.runs)
    before = _progress(job)
    try:
        failed = carry_out(study, Path(job.data), out, [{}], program(job), job.options)
    except Stopped as stopped:
        if stopped.signum != SAVE:
            return 128 + stopped.signum
        if _progress(job) == before:
            print(f"{study.name}: the time limit is too short for any progress; give a longer --time", flush=True)
            return 1
        print(f"{study.name}: saved before the time limit; goes on in another job", flush=True)
        scheduler.requeue(os.environ["SLURM_JOB_ID"])
        return 0
    return 1 if failed else 0


def program(job: JobFile) -> list[str]:
    """What the arguments of `lerope` are given to: itself, or torchrun on one node or several."""
    if job.num_gpus <= 1:
        return [sys.executable, "-m", "lerope"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={job.num_gpus // job.num_nodes}"]
    torchrun.append(f"--signals-to-handle=SIGTERM,SIGINT,{SAVE.name}")
    if job.num_nodes == 1:
        return [*torchrun, "--standalone", "-m", "lerope"]
    number = os.environ["SLURM_JOB_ID"]
    # The job runs on the first of its nodes. Jobs that meet on one node have different numbers.
    endpoint = f"{socket.gethostname()}:{_FIRST_PORT + int(number) % _NUM_PORTS}"
    srun = ["srun", f"--nodes={job.num_nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    together = [
        f"--nnodes={job.num_nodes}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={number}",
        f"--rdzv-endpoint={endpoint}",
    ]
    return [*srun, *torchrun, *together, "-m", "lerope"]


def _progress(job: JobFile) -> tuple[int, int, int]:
    """Steps that are saved, measurements that are done, and bytes of those that are under way."""
    from lerope.launch.measured import is_measured
    from lerope.launch.progress import last_records

    run = job.runs[-1]
    folder = Path(job.out) / run.name
    under_way = sum(path.stat().st_size for path in (folder / RESULTS).glob(".*.partial"))
    return last_records(folder)[0], sum(is_measured(each, folder) for each in run.measure), under_way


def main() -> None:
    """Runs the job of a file."""
    try:
        with Signals() as signals:  # from the start, as torch takes a while to import
            job = read_json(Path(sys.argv[1]), JobFile, "submit the study again")
            importlib.import_module("lerope.launch.local")
        signals.check()
        code = carry_out_job(job)
    except Stopped as stopped:
        code = 128 + stopped.signum
    except ValueError as error:
        print(f"lerope: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
