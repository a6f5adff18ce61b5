"""What every launcher shares: how it is called, what is left to do for a run, and where its words are kept."""

from collections.abc import Callable
from pathlib import Path

from lerope.launch.measured import is_measured
from lerope.launch.progress import is_trained, tail
from lerope.launch.study import Command, PlannedRun, Study
from lerope.results.archive import archive

LOGS = "logs"

Launcher = Callable[[Study, Path, Path], dict[str, str]]
"""Trains and measures all runs of a study that are not finished, given its data and folder; returns what went wrong, by
run. A run that fails leaves the others alone. Raises Stopped after a signal."""

Task = tuple[Command | None, list[str]]
"""What a command measures, None for training; and its arguments."""


def tasks_left(run: PlannedRun, data: Path, out: Path, fingerprint: str) -> list[Task]:
    """What is left to do for a run; raises if its folder is damaged or has another run.

    Args:
        run: a run of a study.
        data: a folder that `lerope data prepare` wrote.
        out: the study's folder.
        fingerprint: the data's.
    """
    train, *measure = run.commands(data, out)
    tasks = list(zip(run.measure, measure, strict=True))
    if not is_trained(run, out, fingerprint):
        return [(None, train), *tasks]
    return [(each, command) for each, command in tasks if not is_measured(each, out / run.name)]


def put_away(folder: Path, archives: Path | None) -> None:
    """Archives a run that is finished, where there is a folder for archives."""
    if archives is None:
        return
    try:
        archive(folder, archives)
    except OSError as error:  # of a full disk, say; other runs go on
        raise ValueError(f"{folder.name} cannot be archived in {archives}: {error}; the run itself is safe.") from error


def last_words(log: Path) -> str:
    """The last line of a log."""
    lines = [line.strip() for line in tail(log) if line.strip()]
    return lines[-1] if lines else "nothing in its log"


def needs_failed(run: PlannedRun) -> str:
    """Why a run is not tried, where the one it needs failed."""
    return f"needs {run.after}, which failed"
