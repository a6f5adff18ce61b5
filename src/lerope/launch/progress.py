"""How far the runs of a study are, and whether they match the study, according to run directories."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from lerope.core.encoding import FROZEN
from lerope.core.files import differences, parse_object
from lerope.core.locks import is_locked
from lerope.core.run import CONFIG, METRICS, MODEL, RESULTS, RUN, Run, read_run
from lerope.launch.measured import is_measured
from lerope.launch.study import PlannedRun
from lerope.model.saved import read_config
from lerope.model.spec import build_encoding

State = Literal["waiting", "running", "stopped", "trained", "finished", "different", "damaged"]

_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Status:
    """How far a run of a study is."""

    name: str
    state: State
    """`stopped`: started, but no process is working on it. `trained`: not all measurements are noted as done.
    `different`: the folder has a run other than the study's."""
    step: int
    steps: int
    """Those of the existing run, or else of the study's."""
    validation_loss: float | None
    problem: str | None
    """What is wrong with a different or damaged run, and what to do."""


def status(run: PlannedRun, out: Path, data: str | None = None) -> Status:
    """What a run's directory says about it.

    Args:
        run: a run of a study.
        out: the study's folder.
        data: the fingerprint of the study's data; None to skip this check.
    """
    folder = out / run.name
    if not (folder / RUN).exists():
        return Status(run.name, "running" if in_use(folder) else "waiting", 0, run.recipe(out).steps, None, None)
    step, loss = last_records(folder)
    try:
        found = read_run(folder)
    except ValueError as error:
        return Status(run.name, "damaged", step, run.recipe(out).steps, loss, str(error))
    steps = found.recipe.steps
    step = steps if found.finished else step
    problem = difference(run, out, found, data) if step else None
    state: State
    if problem is not None:
        state = "different"
    elif found.finished:
        state = "finished" if all(is_measured(each, folder) for each in run.measure) else "trained"
    else:
        state = "running" if in_use(folder) else "stopped"
    return Status(run.name, state, step, steps, loss, problem)


def is_trained(run: PlannedRun, out: Path, data: str) -> bool:
    """Whether a run is fully trained; raises if its folder has a different run that is."""
    folder = out / run.name
    if not (folder / RUN).exists() or not (found := read_run(folder)).finished:
        return False
    if (why := difference(run, out, found, data)) is not None:
        raise ValueError(why)
    return True


def difference(run: PlannedRun, out: Path, found: Run, data: str | None) -> str | None:
    """How the run found differs from the study's, in a sentence; None if they are the same.

    A precision that the study does not set is the machine's, which may not have been this one, and a vocabulary that it
    does not set the data's. Frequencies from another run are compared by value, not by path, so that a study's folder
    can be moved.

    Args:
        run: the run of the study.
        out: the study's folder.
        found: what is in the run's directory.
        data: the fingerprint of the study's data; None to skip this check.
    """
    planned = replace(run, changes={"vocab_size": found.recipe.model.vocab_size, **run.changes}).recipe(out)
    free = {"precision"} - run.changes.keys()
    if run.after is not None:
        free |= {"encoding"} if run.encoding == FROZEN else {"start_from"}
    old, new = (
        {field: value for field, value in asdict(recipe).items() if field not in free}
        for recipe in (found.recipe, planned)
    )
    for field, is_there, is_wanted in differences(old, new):
        return f"{found.path} has a different run: its {field} is {is_there!r}, not {is_wanted!r}; use another --out."
    if data is not None and found.identity.data != data:
        return (
            f"{found.path} has a different run: its data has another fingerprint; use another --out, or its own --data."
        )
    if run.encoding == FROZEN and Path(run.spec(out)).exists():
        frequencies = build_encoding(run.spec(out), planned.model, planned.row_length).artifact().fingerprint()
        if found.identity.initial_frequencies != frequencies:
            return f"{found.path} has a different run: its frequencies are not those of {run.after}; use another --out."
    source = None if planned.start_from is None else Path(planned.start_from) / MODEL
    if source is not None and (source / CONFIG).is_file():
        weights = read_config(source).weights_sha256
        if found.identity.initial_weights != weights:
            return f"{found.path} has a different run: its weights are not those of {run.after}; use another --out."
    return None


def in_use(folder: Path) -> bool:
    """Whether a process is training or measuring in a run directory."""
    return is_locked(folder) or is_locked(folder / RESULTS)


def last_records(folder: Path) -> tuple[int, float | None]:
    """A run's last step, and its last validation loss if that is near the end of the records."""
    step, loss = 0, None
    # The first line of a tail, or the last of a file being written, may be incomplete.
    for record in filter(None, (parse_object(line.encode()) for line in tail(folder / METRICS))):
        at, found = record.get("step"), record.get("validation_loss")
        step = max(step, at) if isinstance(at, int) else step
        loss = found if isinstance(found, float) else loss
    return step, loss


def tail(path: Path) -> list[str]:
    """The last lines of a file, the first of them perhaps cut; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
