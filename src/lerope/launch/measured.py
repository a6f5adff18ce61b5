"""Which measurements of a run are done: a note beside its results, written when a measurement's command has ended well.

A measurement that is done but not noted is started again and finds its result there, which takes seconds.
"""

import json
import shlex
from pathlib import Path

from lerope.data.files import write_whole
from lerope.launch.study import Measurement
from lerope.runs import RESULTS, read_run

NOTE = ".measured.json"


def note(measurement: Measurement, folder: Path) -> None:
    """Notes that a measurement of the run in `folder` is done, and which results were there then."""
    noted = {**_noted(folder), shlex.join(measurement): sorted(path.name for path in (folder / RESULTS).glob("*.json"))}
    write_whole(folder / RESULTS / NOTE, json.dumps({"created": read_run(folder).created, "measured": noted}, indent=1))


def is_measured(measurement: Measurement, folder: Path) -> bool:
    """Whether a measurement of this very training is noted, and no result is gone since."""
    names = _noted(folder).get(shlex.join(measurement))
    return names is not None and all((folder / RESULTS / name).is_file() for name in names)


def _noted(folder: Path) -> dict[str, list[str]]:
    """Names of results by measurement; none if the note is not there, is damaged, or is about an earlier training."""
    try:
        content = json.loads((folder / RESULTS / NOTE).read_text(encoding="utf-8"))
        noted: dict[str, list[str]] = content["measured"] if content["created"] == read_run(folder).created else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return noted
