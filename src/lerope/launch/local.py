"""Runs a study on this machine: every run a process of its own, several at once, the run directories its only state."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from lerope.data.display import Display
from lerope.data.files import locked
from lerope.data.signals import Signals, Stopped
from lerope.launch.study import PlannedRun, Study
from lerope.runs import METRICS, RESULTS, RUN, read_run

LOGS = "logs"
Place = dict[str, str]
"""Environment variables that give a run its GPU or its threads."""
State = Literal["waiting", "running", "stopped", "trained", "finished"]

# How result files begin that are not called after their command.
_RESULT_NAMES = {"extrapolate": "extrapolation"}
_POLL_S = 0.1
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Status:
    """How far a run of a study is, as its directory says."""

    name: str
    state: State
    """`stopped`: begun, and no process is at work on it. `trained`: not all measurements are there yet."""
    step: int
    steps: int
    validation_loss: float | None


def places(at_once: int | None) -> list[Place]:
    """Where runs can go: one to each GPU; on a CPU one after the other, or `at_once` with equal shares of its cores.

    Args:
        at_once: how many runs at once; on GPUs at most as many as there are.
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


def status(run: PlannedRun, out: Path) -> Status:
    """What a run's directory says about it."""
    folder = out / run.name
    steps = run.recipe(out).steps
    if not (folder / RUN).exists():
        return Status(run.name, "running" if _in_use(folder) else "waiting", 0, steps, None)
    step, loss = _progress(folder / METRICS)
    state: State
    if read_run(folder).finished:
        state, step = ("finished" if _measured(run, folder) else "trained"), steps
    else:
        state = "running" if _in_use(folder) else "stopped"
    return Status(run.name, state, step, steps, loss)


def carry_out(
    study: Study,
    data: Path,
    out: Path,
    where: Sequence[Place],
    program: Sequence[str] = (sys.executable, "-m", "lerope"),
) -> dict[str, str]:
    """Trains and measures all runs of a study that are not finished; returns what went wrong, by run.

    A run that fails leaves the others alone. Raises Stopped after a signal, once every child has saved its work.

    Args:
        study: what to run.
        data: a folder that `lerope data prepare` wrote.
        out: the study's folder: run directories, and logs/RUN.log.
        where: a run at a time goes to each of these.
        program: what the arguments of a command are given to.
    """
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    with Display() as display, Signals() as signals:
        queue = _Queue(study, data, out, where, program, display.say)
        try:
            while queue.advance():
                if signals.received is not None:
                    display.say("asked to stop: waiting for the running ones to save their work")
                    raise Stopped(signals.received)
                display.show(queue.describe())
                time.sleep(_POLL_S)
        finally:
            queue.stop()
    return queue.failed


class _Queue:
    """Runs that wait, run and are done."""

    def __init__(
        self,
        study: Study,
        data: Path,
        out: Path,
        where: Sequence[Place],
        program: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self._data, self._out, self._program, self._say = data, out, program, say
        self._num_runs = len(study.runs)
        self._waiting = list(study.runs)
        self._free = list(where)
        self._working: list[_Work] = []
        self._elsewhere: set[str] = set()
        self._finished: set[str] = set()
        self.failed: dict[str, str] = {}

    def advance(self) -> bool:
        """Looks after processes that ended and starts what can start; whether anything is left to do."""
        for work in list(self._working):
            if work.poll():
                continue
            self._working.remove(work)
            self._free.append(work.place)
            self._end(work)
        for run in list(self._waiting):
            try:
                self._consider(run)
            except ValueError as error:  # a damaged run directory
                self._fail(run, str(error))
        return bool(self._working or self._waiting)

    def stop(self) -> None:
        """Asks all processes to save their work, and waits until they have."""
        for work in self._working:
            work.process.terminate()
        for work in self._working:
            work.process.wait()
            work.close()
        self._working.clear()

    def describe(self) -> str:
        """One line for people."""
        parts = [f"{len(self._finished)} of {self._num_runs} runs finished"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        for work in self._working:
            step, _ = _progress(self._out / work.run.name / METRICS)
            parts.append(f"{work.run.name} {work.doing}" + (f" (step {step:,})" if work.doing == "train" else ""))
        if self._elsewhere:
            parts.append(f"{len(self._elsewhere)} in use by other processes")
        return ", ".join(parts)

    def _consider(self, run: PlannedRun) -> None:
        name = run.name
        if run.after is not None and not self._trained(run.after):
            if run.after in self.failed:
                self._fail(run, f"needs {run.after}, which failed")
            return
        folder = self._out / name
        if self._trained(name) and _measured(run, folder):
            self._waiting.remove(run)
            self._elsewhere.discard(name)
            self._finished.add(name)
            return
        if not self._free:
            return
        if _in_use(folder):
            if name not in self._elsewhere:
                self._say(f"{name}: in use by another process; waiting for it")
            self._elsewhere.add(name)
            return
        self._elsewhere.discard(name)
        self._waiting.remove(run)
        commands = run.commands(self._data, self._out)
        if self._trained(name):
            commands = commands[1:]
        log = (self._out / LOGS / f"{name}.log").open("a")
        self._working.append(_Work(run, self._program, commands, self._free.pop(0), log))
        self._say(f"{name}: started")

    def _end(self, work: "_Work") -> None:
        work.close()
        name = work.run.name
        if work.process.returncode == 0:
            self._finished.add(name)
            _, loss = _progress(self._out / name / METRICS)
            self._say(f"{name}: finished" + (f", validation loss {loss:.4f}" if loss is not None else ""))
        elif _in_use(self._out / name):
            self._waiting.append(work.run)  # another process was faster; it is waited for
        else:
            self._fail(
                work.run, f"{work.doing} ended with {work.process.returncode}: {_last_line(Path(work.log.name))}"
            )

    def _fail(self, run: PlannedRun, why: str) -> None:
        if run in self._waiting:
            self._waiting.remove(run)
        self.failed[run.name] = why
        self._say(f"{run.name}: failed; {why}")

    def _trained(self, name: str) -> bool:
        folder = self._out / name
        return (folder / RUN).exists() and read_run(folder).finished


class _Work:
    """A run's commands, one process after the other."""

    def __init__(
        self, run: PlannedRun, program: Sequence[str], commands: list[list[str]], place: Place, log: IO[str]
    ) -> None:
        self.run, self.place, self.log = run, place, log
        self._program, self._commands = program, commands
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = self._commands.pop(0)
        self.doing = command[0]
        # A session of its own: Ctrl-C reaches the launcher alone, which asks its children to stop, once.
        return subprocess.Popen(
            [*self._program, *command],
            env={**os.environ, **self.place},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> bool:
        """Whether there is more to wait for; starts the next command after one that went well."""
        if self.process.poll() is None:
            return True
        if self.process.returncode == 0 and self._commands:
            self.process = self._start()
            return True
        return False

    def close(self) -> None:
        """Closes the log."""
        self.log.close()


def _measured(run: PlannedRun, folder: Path) -> bool:
    """Whether `results` has as many files of each measurement as were asked for."""
    wanted = Counter(_RESULT_NAMES.get(name, name) for name, *_ in run.measure)
    return all(len(list((folder / RESULTS).glob(f"{name}*.json"))) >= number for name, number in wanted.items())


def _in_use(folder: Path) -> bool:
    """Whether a process is at work in a run directory."""
    if not folder.exists():
        return False
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except ValueError:
            return True
    return False


def _progress(metrics: Path) -> tuple[int, float | None]:
    """The last step, and the last validation loss if it is near the end of the file."""
    step, loss = 0, None
    for line in _tail(metrics):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the first line of a tail, or the last of a file that is being written, may be half a line
        if isinstance(record, dict):
            step, loss = max(step, record.get("step", 0)), record.get("validation_loss", loss)
    return step, loss


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _tail(log) if line.strip()]
    return lines[-1] if lines else "nothing in its log"


def _tail(path: Path) -> list[str]:
    """The last lines of a file, the first of them perhaps cut."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
