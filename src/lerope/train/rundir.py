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
from lerope.core.run import CHECKPOINTS, HISTORY, METRICS, MODEL, RUN, Identity, Run, Start, is_run, now, read_run


class RunDirectory:
    """One run's folder, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Creates the folder if necessary and keeps other processes out of it."""
        with locked(self.path):
            if not is_run(self.path) and any(not path.name.startswith(".") for path in self.path.iterdir()):
                raise ValueError(f"{self.path} has other files but no {RUN}; name an empty or new folder with --out.")
            yield

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / CHECKPOINTS

    @property
    def model(self) -> Path:
        """Where the finished model is."""
        return self.path / MODEL

    def open(self, identity: Identity, start: Start) -> bool:
        """Writes run.json, or checks that it is the same run and adds a start. Returns whether the run is finished."""
        run = read_run(self.path) if is_run(self.path) else Run(self.path, identity, False, now(), [])
        identity = replace(identity, recipe=_with_paths_of(run.identity.recipe, identity.recipe))
        found = list(differences(asdict(run.identity), asdict(identity)))
        if found and self._has_begun():
            raise ValueError(f"{self.path} is a different run: {_difference(*found[0])}, or choose another --out.")
        if not run.finished:
            replace(run, identity=identity, starts=[*run.starts, start]).save()
        return run.finished

    def _has_begun(self) -> bool:
        """Whether there is anything that another recipe would invalidate."""
        return any(self.checkpoints.glob("*")) or next(read_lines(self.path / METRICS), None) is not None

    def finish(self, model_sha256: dict[str, str]) -> None:
        """Marks the run as finished, with the hashes of its model's files."""
        replace(read_run(self.path), finished=True, model_sha256=model_sha256).save()

    def rewind(self, step: int) -> None:
        """Drops records after `step`, and damaged ones: the run resumes there and writes them again."""
        for name in (METRICS, HISTORY):
            path = self.path / name
            if path.exists():
                kept = [json.dumps(record) for record in read_lines(path) if record and _step(record) <= step]
                write_whole(path, "\n".join(kept)) if kept else path.unlink()


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
