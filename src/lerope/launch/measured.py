"""Which measurements of a run are done: a note next to its results, written when a measurement's command succeeds.

A measurement that is done but not noted is started again and finds its result, which takes seconds.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from lerope.core.files import read_json, write_json
from lerope.core.run import RESULTS, read_run
from lerope.launch.study import Command

NOTE = ".measured.json"


@dataclass(frozen=True)
class _Note:
    created: str
    """When the run it describes was created."""
    measured: dict[str, list[str]]
    """Names of the results that existed, by command."""


def note(command: Command, folder: Path) -> None:
    """Notes that a measurement of the run in `folder` is done, and which results existed then."""
    results = sorted(path.name for path in (folder / RESULTS).glob("[!.]*.json"))
    noted = {**_noted(folder), shlex.join(command): results}
    write_json(folder / RESULTS / NOTE, _Note(read_run(folder).created, noted))


def is_measured(command: Command, folder: Path) -> bool:
    """Whether a measurement of this training is noted, and no result has been removed since."""
    names = _noted(folder).get(shlex.join(command))
    return names is not None and all((folder / RESULTS / name).is_file() for name in names)


def _noted(folder: Path) -> dict[str, list[str]]:
    """Names of results by command; none if the note is missing, damaged, or about an earlier training."""
    try:
        found = read_json(folder / RESULTS / NOTE, _Note, "measure again")
        return found.measured if found.created == read_run(folder).created else {}
    except ValueError:
        return {}
