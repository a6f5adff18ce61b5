"""Run directories as files, for everything that comes after training. No torch.

run.json  metrics.jsonl  frequencies.jsonl  model/  results/
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lerope

RUN, METRICS, FREQUENCIES, RESULTS = "run.json", "metrics.jsonl", "frequencies.jsonl", "results"


@dataclass(frozen=True)
class Run:
    """What run.json says."""

    path: Path
    identity: dict[str, Any]
    """What decides the result: recipe, fingerprint of the data, fingerprint of the initial frequencies."""
    finished: bool
    created: str
    starts: list[dict[str, Any]]
    """One for each time the run was started: versions, machine, command, folder of the data."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe's fields."""
        recipe: dict[str, Any] = self.identity["recipe"]
        return recipe

    @property
    def label(self) -> dict[str, Any]:
        """What a result file says about its run."""
        return {"name": self.name, "created": self.created, **self.identity}


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads run.json; whatever is wrong with it is one ValueError."""
    file = Path(path) / RUN
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        run = Run(Path(path), *(content[name] for name in ("identity", "finished", "created", "starts")))
        run.recipe["encoding"], run.recipe["seed"], run.recipe["rung"], run.identity["data"]
        return run
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{file} does not exist; name a folder that `lerope train` wrote.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error}); restore it or train in another folder.") from None


def finished_run(path: str | os.PathLike[str]) -> Run:
    """The same for a run that must be at its end."""
    run = read_run(path)
    if not run.finished:
        raise ValueError(f"{run.path} is not finished; go on with: {run.starts[-1].get('command', 'lerope train')}")
    return run


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a .jsonl file, none if it is not there; a last line that was cut off by a crash is left out."""
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            if line.endswith("\n"):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}, line {number:,} is not JSON ({error}); remove the line.") from None


def differences(old: Any, new: Any, field: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, as (dotted field, old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{field}.{key}" if field else key)
    elif old != new:
        yield field, old, new


def provenance() -> dict[str, Any]:
    """Date, versions and commit: what a reader needs to know where numbers come from."""
    return {
        "date": now(),
        "lerope": lerope.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str | None:
    """The commit of lerope's own source, `+` after it if files have changed; None outside a checkout."""
    folder = os.path.dirname(lerope.__file__)

    def git(*args: str) -> str:
        command = ["git", "-C", folder, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # An installed copy may lie in somebody else's checkout.
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
