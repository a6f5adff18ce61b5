"""Runs a study on this machine: every run in its own process, several at once, with run directories the only state."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from lerope.core.signals import SAVE, Signals, Stopped
from lerope.core.terminal import Display
from lerope.data.shards import Manifest
from lerope.launch.launcher import LOGS, Task, last_words, needs_failed, put_away, tasks_left
from lerope.launch.measured import note
from lerope.launch.progress import in_use, is_trained, last_records
from lerope.launch.study import PlannedRun, Study

Place = dict[str, str]
"""Environment variables that give a run its GPU or its threads."""

_POLL_S = 0.1


def places(at_once: int | None) -> list[Place]:
    """Where runs can go: one per GPU; on a CPU one at a time, or `at_once` with equal shares of its cores.

    Args:
        at_once: how many runs at once; at most the number of GPUs, if any.
    """
    import torch

    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once must be a positive whole number; got {at_once}.")
    num_gpus = torch.cuda.device_count()
    if num_gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible else [str(gpu) for gpu in range(num_gpus)]
        if at_once is not None and at_once > num_gpus:
            raise ValueError(f"at_once must be at most the {num_gpus} GPUs of this machine; got {at_once}.")
        return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:at_once]]
    count = at_once or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [{"OMP_NUM_THREADS": str(max(1, cores // count))}] * count


def carry_out(
    study: Study,
    data: Path,
    out: Path,
    where: Sequence[Place],
    program: Sequence[str] = (sys.executable, "-m", "lerope"),
    options: Sequence[str] = (),
    archives: Path | None = None,
) -> dict[str, str]:
    """The launcher of one machine; after a signal, every child has saved its work.

    Args:
        study: what to run.
        data: a folder that `lerope data prepare` wrote.
        out: the study's folder: run directories, and logs/RUN.log.
        where: each of these takes one run at a time.
        program: the program that takes a command's arguments.
        options: what `lerope train` is given besides.
        archives: a folder for the archive of each run, as soon as it is finished.
    """
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    with Display() as display, Signals() as signals:
        queue = _Queue(study, data, out, where, program, options, archives, display.say)
        try:
            while queue.advance():
                if signals.received is not None:
                    display.say("asked to stop: waiting for active runs to save their work")
                    raise Stopped(signals.received)
                display.show(queue.describe())
                time.sleep(_POLL_S)
        finally:
            queue.stop()
    return queue.failed


class _Queue:
    """Waiting, active and finished runs."""

    def __init__(
        self,
        study: Study,
        data: Path,
        out: Path,
        where: Sequence[Place],
        program: Sequence[str],
        options: Sequence[str],
        archives: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._data, self._out, self._program, self._options = data, out, program, options
        self._archives, self._say = archives, say
        self._fingerprint = Manifest.load(data).fingerprint()
        self._runs = {run.name: run for run in study.runs}
        self._waiting = list(study.runs)
        self._free = list(where)
        self._working: list[_Work] = []
        self._elsewhere: set[str] = set()
        self._finished: set[str] = set()
        self.failed: dict[str, str] = {}

    def advance(self) -> bool:
        """Handles processes that ended and starts what can start; returns whether anything is left to do."""
        for work in list(self._working):
            if work.poll():
                continue
            self._working.remove(work)
            self._free.append(work.place)
            self._end(work)
        for run in list(self._waiting):
            try:
                self._consider(run)
            except ValueError as error:  # a run directory that is damaged or belongs to another run
                self._fail(run, str(error))
        return bool(self._working or self._waiting)

    def stop(self) -> None:
        """Asks all processes to save their work, and waits until they have."""
        for work in self._working:
            work.process.send_signal(SAVE)
        for work in self._working:
            work.process.wait()
            work.close()
        self._working.clear()

    def describe(self) -> str:
        """A progress line."""
        parts = [f"{len(self._finished)} of {len(self._runs)} runs finished"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        for work in self._working:
            step, _ = last_records(self._out / work.run.name)
            parts.append(f"{work.run.name} {work.doing}" + (f" (step {step:,})" if work.doing == "train" else ""))
        if self._elsewhere:
            parts.append(f"{len(self._elsewhere)} in use by other processes")
        return ", ".join(parts)

    def _consider(self, run: PlannedRun) -> None:
        name, folder = run.name, self._out / run.name
        if run.after is not None and not self._is_trained(run.after):
            if run.after in self.failed:
                self._fail(run, needs_failed(run))
            return
        tasks = tasks_left(run, self._data, self._out, self._fingerprint)
        if not tasks:
            put_away(folder, self._archives)
            self._waiting.remove(run)
            self._elsewhere.discard(name)
            self._finished.add(name)
            return
        if not self._free:
            return
        if in_use(folder):
            if name not in self._elsewhere:
                self._say(f"{name}: in use by another process; waiting for it")
            self._elsewhere.add(name)
            return
        self._elsewhere.discard(name)
        self._waiting.remove(run)
        log = (self._out / LOGS / f"{name}.log").open("a")
        tasks = [(what, command if what else [*command, *self._options]) for what, command in tasks]
        self._working.append(_Work(run, self._program, tasks, folder, self._free.pop(0), log))
        self._say(f"{name}: started")

    def _end(self, work: "_Work") -> None:
        work.close()
        name = work.run.name
        if work.process.returncode == 0:
            try:
                put_away(self._out / name, self._archives)
            except ValueError as error:
                self._fail(work.run, str(error))
                return
            self._finished.add(name)
            _, loss = last_records(self._out / name)
            self._say(f"{name}: finished" + (f", validation loss {loss:.4f}" if loss is not None else ""))
        elif in_use(self._out / name):
            self._waiting.append(work.run)  # another process was faster; wait for it
        else:
            words = last_words(Path(work.log.name))
            self._fail(work.run, f"{work.doing} exited with {work.process.returncode}: {words}")

    def _fail(self, run: PlannedRun, why: str) -> None:
        if run in self._waiting:
            self._waiting.remove(run)
        self.failed[run.name] = why
        self._say(f"{run.name}: failed; {why}")

    def _is_trained(self, name: str) -> bool:
        """Whether a run that others need is trained; problems with its folder are reported as its own failure."""
        try:
            return is_trained(self._runs[name], self._out, self._fingerprint)
        except ValueError:
            return False


class _Work:
    """A run's commands, one process at a time."""

    def __init__(
        self, run: PlannedRun, program: Sequence[str], tasks: list[Task], folder: Path, place: Place, log: IO[str]
    ) -> None:
        self.run, self.place, self.log = run, place, log
        self._program, self._tasks, self._folder = program, tasks, folder
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._measures, command = self._tasks.pop(0)
        self.doing = command[0]
        # A separate session: Ctrl-C reaches only the launcher, which asks its children to stop, once.
        return subprocess.Popen(
            [*self._program, *command],
            env={**os.environ, **self.place},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> bool:
        """Whether there is more to wait for; starts the next command after a successful one."""
        if self.process.poll() is None:
            return True
        if self.process.returncode != 0:
            return False
        if self._measures is not None:
            note(self._measures, self._folder)
        if not self._tasks:
            return False
        self.process = self._start()
        return True

    def close(self) -> None:
        """Closes the log."""
        self.log.close()
