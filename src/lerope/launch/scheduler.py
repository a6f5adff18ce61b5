"""Slurm's own commands: sbatch, squeue, scancel, scontrol, sacct. What they can do is not done again anywhere here."""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["train", "measure"]
KINDS: tuple[Kind, ...] = ("train", "measure")
_MARK = "lerope"


@dataclass(frozen=True)
class Job:
    """A job that waits, runs or is just ending."""

    id: str
    state: str
    """PENDING, RUNNING, COMPLETING ..."""
    reason: str
    """Why it waits, in Slurm's words: Priority, Dependency, BeginTime ...; None otherwise."""
    kind: Kind
    folder: Path
    """The run directory that it works on."""


def submit(kind: Kind, folder: Path, command: str, options: Iterable[str]) -> str:
    """Puts a command into the queue; the job's id.

    Args:
        kind: what the job does with the run.
        folder: the run directory, by which the job is found again.
        command: for the shell.
        options: of sbatch.
    """
    comment = f"--comment={_MARK} {kind} {folder.resolve()}"
    return _call(["sbatch", "--parsable", comment, *options, f"--wrap={command}"]).strip().partition(";")[0]


def jobs(out: Path) -> list[Job]:
    """This user's jobs for the runs of a study's folder, in the order in which they were submitted."""
    found = []
    folder = out.resolve()
    for line in _call(["squeue", "--me", "--noheader", "--sort=i", "--format=%i|%T|%r|%k"]).splitlines():
        number, state, reason, comment = line.split("|", 3)
        for kind in KINDS:
            path = Path(comment.removeprefix(f"{_MARK} {kind} "))
            if path.parent == folder:
                found.append(Job(number, state, reason, kind, path))
    return found


def cancel(ids: Sequence[str]) -> None:
    """Takes jobs out of the queue; those that run are asked to stop and save first."""
    if ids:
        _call(["scancel", *ids])


def requeue(number: str) -> None:
    """Lets a job that runs begin again, when its turn comes."""
    _call(["scontrol", "requeue", number])


def ended_as(number: str) -> str:
    """How a job ended that is no longer in the queue: TIMEOUT, CANCELLED, FAILED ...; `unknown` after a while.

    The controller forgets jobs after minutes; where the cluster keeps accounts, those remember.
    """
    try:
        shown = _call(["scontrol", "--oneliner", "show", "job", number])
        return next(word for word in shown.split() if word.startswith("JobState=")).removeprefix("JobState=")
    except (ValueError, StopIteration):
        pass
    try:
        return _call(["sacct", "--allocations", "--noheader", "--parsable2", "--format=State", "-j", number]).split()[0]
    except (ValueError, IndexError):
        return "unknown"


def _call(command: list[str]) -> str:
    """What a command prints; what it complains of is one sentence."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ValueError(
            f"on must be local where there is no Slurm; got 'slurm', and {command[0]} is not installed here: go to a "
            "machine from which jobs are submitted."
        ) from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split()) or f"it ended with {done.returncode}"
        raise ValueError(f"{command[0]} refuses: {words.removeprefix(f'{command[0]}: ').removeprefix('error: ')}")
    return done.stdout
