"""Runs a study on a cluster: one job trains a run, another measures it after that, and Slurm does the rest.

Order, limits, requeueing and accounts are Slurm's. Its queue, where jobs carry the run directory they are for, and the
run directories are the only state: whoever gives the command finds both, and attaches to what is there.
"""

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lerope.core.files import write_json
from lerope.core.locks import locked
from lerope.core.signals import Signals, Stopped
from lerope.core.terminal import Display
from lerope.data.shards import Manifest
from lerope.launch import scheduler
from lerope.launch.cluster import SAVE_SECONDS, Cluster, Share, share
from lerope.launch.job import JOBS, JobFile
from lerope.launch.launcher import LOGS, Task, last_words, needs_failed, put_away, tasks_left
from lerope.launch.progress import last_records
from lerope.launch.scheduler import Job, Kind
from lerope.launch.study import PlannedRun, Study

# Seconds between looks at the queue: soon at first, and rarely enough for a controller that many people ask.
_FIRST_POLL_S, _LAST_POLL_S = 1.0, 10.0
# How long another command may take to submit its jobs.
_SUBMIT_PATIENCE_S = 600.0


def carry_out(study: Study, data: Path, out: Path, cluster: Cluster, archives: Path | None = None) -> dict[str, str]:
    """The launcher of a cluster: submits what has no job yet and watches until all jobs have ended.

    After a signal the jobs stay; given again, the command attaches to them.

    Args:
        study: what to run.
        data: a folder that `lerope data prepare` wrote, which all nodes see.
        out: the study's folder, which they see too: run directories, logs, and the jobs' files.
        cluster: where jobs go.
        archives: a folder for the archive of each run that this command sees finished.
    """
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    with Display() as display, Signals() as signals:
        watch = _Watch(study, data, out, cluster, display.say, archives)
        with locked(out / JOBS, _SUBMIT_PATIENCE_S):  # of two commands at once, the second finds the first one's jobs
            watch.submit()
        pause = _FIRST_POLL_S
        while watch.advance():
            display.show(watch.describe())
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline:
                if signals.received is not None:
                    display.say("the jobs stay in Slurm's queue; the same command attaches to them, --cancel ends them")
                    raise Stopped(signals.received)
                time.sleep(0.1)
            pause = min(2 * pause, _LAST_POLL_S)
    return watch.failed


def cancel(study: Study, out: Path) -> int:
    """Cancels all jobs of a study; how many there were. Runs save their work first."""
    names = {run.name for run in study.runs}
    found = [job.id for job in scheduler.jobs(out) if job.folder.name in names]
    scheduler.cancel(found)
    return len(found)


def job_words(job: Job) -> str:
    """A job for people: 1234 train RUNNING, 1235 measure PENDING (Dependency)."""
    reason = "" if job.reason in ("None", "") or job.state != "PENDING" else f" ({job.reason})"
    return f"{job.id} {job.kind} {job.state}{reason}"


@dataclass
class _Followed:
    """A run whose jobs are waited for."""

    run: PlannedRun
    ids: list[str]
    gone: bool = False
    """Whether its jobs were gone at the last look while work was left."""


class _Watch:
    """The runs of a study and their jobs."""

    def __init__(
        self,
        study: Study,
        data: Path,
        out: Path,
        cluster: Cluster,
        say: Callable[[str], None],
        archives: Path | None = None,
    ) -> None:
        self._data, self._out, self._cluster = data.resolve(), out.resolve(), cluster
        self._archives, self._say = archives, say
        self._fingerprint = Manifest.load(data).fingerprint()
        self._runs = {run.name: run for run in study.runs}
        self._shares = {run.name: share(run.recipe(out), cluster) for run in study.runs}
        self._followed: list[_Followed] = []
        self._finished: set[str] = set()
        self._live: list[Job] = []
        self.failed: dict[str, str] = {}

    def submit(self) -> None:
        """Gives a job to everything that is left to do and has none."""
        self._live = scheduler.jobs(self._out)
        training: dict[str, str] = {}
        # Runs that have jobs take their places first, wherever they stand in the study.
        last = list({job.folder.name: job.id for job in self._live if job.folder.name in self._runs}.values())
        for run in self._runs.values():
            try:
                tasks = self._left(run)
                if not tasks:
                    put_away(self._out / run.name, self._archives)
            except ValueError as error:  # a run directory that is damaged, or another run's
                self._fail(run, str(error))
                continue
            if not tasks:
                self._finished.add(run.name)
                continue
            if run.after in self.failed:
                self._fail(run, needs_failed(run))
                continue
            found = {job.kind: job.id for job in self._live if job.folder.name == run.name}
            is_new = not found
            needs = [f"afterok:{training[run.after]}"] if run.after in training else []
            limit = self._cluster.max_at_once
            if limit is not None and is_new and len(last) >= limit:
                needs.append(f"afterany:{last[-limit]}")
            ids = self._submit_run(run, tasks, found, needs)
            if tasks[0][0] is None:
                training[run.name] = ids[0]
            if is_new:
                last.append(ids[-1])
            self._followed.append(_Followed(run, ids))
            self._say(f"{run.name}: {'submitted, job' if is_new else 'in the queue, job'} {' and '.join(ids)}")

    def advance(self) -> bool:
        """Looks at the queue and at the runs; whether anything is left to wait for."""
        try:
            self._live = scheduler.jobs(self._out)
        except ValueError as error:  # in the days that a study takes, a controller may not answer for a while
            self._say(f"{error}; asking again")
            return True
        live = {job.id for job in self._live}
        for each in list(self._followed):
            if live & set(each.ids):
                each.gone = False
                continue
            try:
                left = self._left(each.run)
                if not left:
                    put_away(self._out / each.run.name, self._archives)
            except ValueError as error:
                self._followed.remove(each)
                self._fail(each.run, str(error))
                continue
            if left and not each.gone:
                each.gone = True  # what a node wrote last may take a moment to be seen here
                continue
            self._followed.remove(each)
            if left:
                self._fail(each.run, self._why(each))
            else:
                self._finished.add(each.run.name)
                _, loss = last_records(self._out / each.run.name)
                self._say(f"{each.run.name}: finished" + (f", validation loss {loss:.4f}" if loss is not None else ""))
        return bool(self._followed)

    def describe(self) -> str:
        """One line for people."""
        parts = [f"{len(self._finished)} of {len(self._runs)} runs finished"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        for job in self._live:
            if job.state != "PENDING":
                step, _ = last_records(job.folder)
                parts.append(f"{job.folder.name} {job.kind}" + (f" (step {step:,})" if job.kind == "train" else ""))
        waiting = sum(job.state == "PENDING" for job in self._live)
        return ", ".join([*parts, f"{waiting} jobs wait"] if waiting else parts)

    def _submit_run(self, run: PlannedRun, tasks: list[Task], found: dict[Kind, str], needs: list[str]) -> list[str]:
        """The ids of a run's jobs, those there are and new ones: to train if need be, then to measure."""
        if tasks[0][0] is not None:
            return [found.get("measure") or self._submit_job("measure", run, needs)]
        train = found.get("train")
        if train is None:
            if "measure" in found:
                scheduler.cancel([found.pop("measure")])  # it waited for a training that is no more
            train = self._submit_job("train", replace(run, measure=()), needs)
        if not run.measure:
            return [train]
        return [train, found.get("measure") or self._submit_job("measure", run, [f"afterok:{train}"])]

    def _submit_job(self, kind: Kind, run: PlannedRun, needs: list[str]) -> str:
        one = Share(num_gpus=min(1, self._shares[run.name].num_gpus), num_nodes=1, options=[])
        taken = self._shares[run.name] if kind == "train" else one
        file = self._out / JOBS / f"{run.name}.{kind}.json"
        runs = [*(replace(self._runs[name], measure=()) for name in self._ancestors(run)), run]
        job = JobFile(
            data=str(self._data),
            out=str(self._out),
            runs=runs,
            num_gpus=taken.num_gpus,
            num_nodes=taken.num_nodes,
            options=taken.options,
            save_seconds=self._cluster.save_seconds or SAVE_SECONDS,
        )
        write_json(file, job)
        options = [
            f"--job-name={run.name}",
            f"--output={self._log(run)}",
            "--open-mode=append",
            "--requeue",
            "--kill-on-invalid-dep=yes",
            *([f"--dependency={','.join(needs)}"] if needs else []),
            *taken.sbatch,
            *self._cluster.options(),
        ]
        command = shlex.join(["exec", sys.executable, "-m", "lerope.launch.job", str(file)])
        return scheduler.submit(kind, self._out / run.name, command, options)

    def _ancestors(self, run: PlannedRun) -> list[str]:
        """The runs that a run needs, the first first."""
        return [] if run.after is None else [*self._ancestors(self._runs[run.after]), run.after]

    def _left(self, run: PlannedRun) -> list[Task]:
        return tasks_left(run, self._data, self._out, self._fingerprint)

    def _why(self, each: _Followed) -> str:
        """Why a run whose jobs are gone is not finished."""
        if each.run.after in self.failed:
            return needs_failed(each.run)
        states = [scheduler.ended_as(number) for number in each.ids]
        number, state = next(
            ((n, s) for n, s in zip(each.ids, states, strict=True) if s != "COMPLETED"), (each.ids[-1], states[-1])
        )
        return f"job {number} ended as {state}: {last_words(self._log(each.run))}"

    def _log(self, run: PlannedRun) -> Path:
        """What the jobs of a run say; what its commands say is beside it, as on one machine."""
        return self._out / LOGS / f"{run.name}.slurm.log"

    def _fail(self, run: PlannedRun, why: str) -> None:
        self.failed[run.name] = why
        self._say(f"{run.name}: failed; {why}")
