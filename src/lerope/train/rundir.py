"""The run directory during training: who may write there, whether it is the same run, where to resume."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from lerope.core import run as core
from lerope.core.encoding import FROZEN
from lerope.core.files import differences, read_lines, write_whole
from lerope.core.locks import locked
from lerope.core.recipe import Recipe
from lerope.core.run import CHECKPOINTS, HISTORY, METRICS, RUN, Identity, Run, Start, is_run, now, read_run


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Creates a run directory if necessary and keeps other processes out of it."""
    with locked(path):
        if not is_run(path) and any(not other.name.startswith(".") for other in path.iterdir()):
            raise ValueError(f"{path} has other files but no {RUN}; name an empty or new folder with --out.")
        yield


def open_run(path: Path, identity: Identity, start: Start) -> bool:
    """Writes run.json, or checks that it is the same run and adds a start. Returns whether the run is finished."""
    run = read_run(path) if is_run(path) else Run(path, identity, False, now(), [])
    identity = replace(identity, recipe=_with_paths_of(run.identity.recipe, identity.recipe))
    found = list(differences(asdict(run.identity), asdict(identity)))
    if found and _has_begun(path):
        raise ValueError(f"{path} is a different run: {_difference(*found[0])}, or choose another --out.")
    if not run.finished:
        replace(run, identity=identity, starts=[*run.starts, start]).save()
    return run.finished


def finish(path: Path, model_sha256: dict[str, str]) -> None:
    """Marks a run as finished, with the hashes of its model's files."""
    replace(read_run(path), finished=True, model_sha256=model_sha256).save()


def rewind(path: Path, step: int) -> None:
    """Drops records after `step`, and damaged ones: the run resumes there and writes them again."""
    for file in (path / METRICS, path / HISTORY):
        if file.exists():
            kept = [json.dumps(record) for record in read_lines(file) if record and _step(record) <= step]
            write_whole(file, "\n".join(kept)) if kept else file.unlink()


def _has_begun(path: Path) -> bool:
    """Whether there is anything that another recipe would invalidate."""
    return any((path / CHECKPOINTS).glob("*")) or next(read_lines(path / METRICS), None) is not None


def _with_paths_of(old: Recipe, new: Recipe) -> Recipe:
    """The new recipe with files as the old one names them: what is in them is compared by its hash."""
    if old.start_from and new.start_from:
        new = replace(new, start_from=old.start_from)
    if FROZEN == old.spec.family == new.spec.family and old.spec.options == new.spec.options:
        new = replace(new, encoding=old.encoding)
    return new


def _step(record: dict[str, Any]) -> float:
    step = record.get("step")
    return step if isinstance(step, int) else float("inf")


def _difference(field: str, old: Any, new: Any) -> str:
    if field == "data":
        return "its data has a different fingerprint; name the folder it was trained on"
    if field == "initial_frequencies":
        return "its encoding started from different frequencies; restore the file they came from"
    if field == "initial_weights":
        return "the run it starts from has different weights now; restore that run"
    if field == "recipe.row_order":
        return f"its {field} is {old!r}, which is no longer trained; remove it"
    return f"its {field} is {old!r}, not {new!r}; use that value to continue"


def provenance() -> dict[str, Any]:
    """Versions, machine and commit: what a reader needs to trace numbers."""
    return {
        **core.provenance(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "num_threads": torch.get_num_threads(),
    }
