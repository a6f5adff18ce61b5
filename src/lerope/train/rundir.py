"""The run directory: who may write to it, what it says about the run, and its files of records.

run.json  metrics.jsonl  frequencies.jsonl  checkpoints/  model/  results/
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lerope import runs
from lerope.data.files import locked, write_whole
from lerope.runs import FREQUENCIES, METRICS, RUN, Run, differences, now, read_records, read_run


class RunDirectory:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Creates the folder if need be and keeps other processes out of it."""
        with locked(self.path):
            if not (self.path / RUN).exists() and any(not path.name.startswith(".") for path in self.path.iterdir()):
                raise ValueError(f"{self.path} holds other files and no {RUN}; name an empty or new folder with --out.")
            for partial in self.path.glob(".*.jsonl.*"):
                partial.unlink()  # left by a process that was killed
            yield

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Where the finished model is."""
        return self.path / "model"

    def open(self, identity: dict[str, Any], start: dict[str, Any]) -> bool:
        """Writes run.json, or checks that it is the same run and notes another start. Whether the run is finished.

        Args:
            identity: what must be the same each time this run is started.
            start: what may differ: machine, versions, command.
        """
        if (self.path / RUN).exists():
            run = read_run(self.path)
            found = list(differences(run.identity, identity))
            if found and self._has_begun():
                raise ValueError(f"{self.path} is another run: {_difference(*found[0])}, or choose another --out.")
        else:
            run = Run(self.path, identity, False, now(), [])
        if not run.finished:
            self._write_run(replace(run, identity=identity, starts=[*run.starts, start]))
        return run.finished

    def _has_begun(self) -> bool:
        """Whether there is anything that another recipe would spoil."""
        return any(self.checkpoints.glob("*")) or next(read_records(self.path / METRICS), None) is not None

    def finish(self) -> None:
        """Marks the run as finished."""
        self._write_run(replace(read_run(self.path), finished=True))

    def _write_run(self, run: Run) -> None:
        content = {name: getattr(run, name) for name in ("identity", "finished", "created", "starts")}
        write_whole(self.path / RUN, json.dumps(content, indent=1))

    def rewind(self, step: int) -> None:
        """Drops records after `step`: the run goes on from there and writes them again."""
        for name in (METRICS, FREQUENCIES):
            path = self.path / name
            if path.exists():
                kept = [json.dumps(record) for record in read_records(path) if record["step"] <= step]
                write_whole(path, "\n".join(kept)) if kept else path.unlink()


def _difference(field: str, old: Any, new: Any) -> str:
    if field == "data":
        return "its data has another fingerprint; name the folder it was trained on"
    if field == "initial_frequencies":
        return "its encoding started from other frequencies; restore the file they came from"
    return f"its {field} is {old!r}, not {new!r}; give that to go on"


def provenance() -> dict[str, Any]:
    """Versions, machine and commit: what a reader needs to know where numbers come from."""
    return {
        **runs.provenance(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "num_threads": torch.get_num_threads(),
    }
