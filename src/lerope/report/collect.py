"""Everything that run directories hold, gathered for tables, figures and the page.

What cannot be read becomes a note: a report about eleven runs is worth having when the twelfth is damaged.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from lerope.core.grouping import grouped
from lerope.core.run import RESULTS, FrequencyRecord, Metrics, Run, is_run, read_history, read_metrics, read_run
from lerope.results import Comparison, Evaluation, Multipliers, Result, RunResult, load_result
from lerope.scaling.compare import compare
from lerope.scaling.evaluated import FREE_IN_PAIRS
from lerope.scaling.study import read_runs, study

Kind = TypeVar("Kind", bound=Result)
_MOST_FOLDERS = 100_000
_MOST_NAMED = 6
NOT_COMPARED = "The runs are not compared"
"""How the note begins that says why."""
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RunFiles:
    """One run and its results by file name without ending: `eval`, `needle`, `extrapolation`, ..."""

    run: Run
    results: dict[str, Result]

    def result(self, kind: type[Kind], stem: str | None = None) -> Kind | None:
        """The result of this kind, or the one in a file of this name; None if it is not there."""
        for name, result in self.results.items():
            if isinstance(result, kind) and stem in (None, name):
                return result
        return None

    @property
    def evaluation(self) -> Evaluation | None:
        """The usual one: on all validation documents, in windows of the train length."""
        return self.result(Evaluation, "eval")

    @property
    def can_be_compared(self) -> bool:
        """Whether the run is finished and evaluated."""
        return self.run.finished and self.evaluation is not None

    def arrays(self, kind: type[RunResult], stem: str | None = None) -> Arrays:
        """The long arrays beside that result; nothing if they are missing or not those it was saved with."""
        for name, result in self.results.items():
            if isinstance(result, kind) and stem in (None, name):
                try:
                    with result.open_arrays(self.run.results / f"{name}.json") as file:
                        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                except ValueError:
                    return {}
        return {}

    @cached_property
    def metrics(self) -> Metrics:
        """Records of training: steps and validations."""
        return read_metrics(self.run.path)

    @cached_property
    def frequencies(self) -> list[FrequencyRecord]:
        """Records of the frequencies through training; one for an encoding that does not learn."""
        return read_history(self.run.path)


@dataclass(frozen=True)
class Bundle:
    """The runs of a report and what they come to together."""

    runs: list[RunFiles]
    comparison: Comparison | None = None
    multipliers: Multipliers | None = None
    notes: list[str] = field(default_factory=list)
    """What could not be read or compared, in a sentence each."""

    @cached_property
    def compared(self) -> list[RunFiles]:
        """The finished and evaluated runs that can stand beside each other; nothing where none is evaluated."""
        return _comparable(self.runs)


def collect(paths: Sequence[Path]) -> Bundle:
    """Reads runs, or all runs in folders.

    Args:
        paths: run directories, or folders that hold some, at any depth.
    """
    notes: list[str] = []
    found = dict.fromkeys(found for path in paths for found in _find(path))
    whole = [files for files in (read_files(path, notes) for path in found) if files is not None]
    if not whole and notes:
        raise ValueError(notes[0])
    if not whole:
        named = ", ".join(map(str, paths)) or "nothing"
        raise ValueError(f"{named} holds no run; name run directories or a folder of them.")
    bundle = Bundle(whole, notes=notes)
    runs = bundle.compared
    compared = {files.run.path for files in runs}
    if left_out := [files.run.path for files in whole if files.can_be_compared and files.run.path not in compared]:
        why = "have other data, train lengths or recipes, started from other runs or were evaluated differently"
        alike = "`lerope eval` with the same options scores runs alike"
        more = f" and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
        named = ", ".join(map(str, left_out[:_MOST_NAMED])) + more
        notes.append(f"{len(left_out)} of the evaluated runs {why}, and are not compared ({named}); {alike}.")
    comparison = multipliers = None
    if len(_methods(runs)) > 1:
        comparison = _attempt(lambda: compare([files.run.path for files in runs]), NOT_COMPARED, notes)
    ladder = _whole_ladder(runs)
    if ladder:
        paths = [files.run.path for files in ladder]
        multipliers = _attempt(lambda: study(read_runs(paths)), "There are no compute multipliers", notes)
    return replace(bundle, comparison=comparison, multipliers=multipliers)


def _comparable(runs: list[RunFiles]) -> list[RunFiles]:
    """Finished runs with the same data and train length that were evaluated alike, all trained from scratch or none:
    the largest such group, and in it the largest of each rung and number of steps whose recipes pair."""
    evaluated = [files for files in runs if files.can_be_compared]
    chosen: list[RunFiles] = []
    for at_rung in grouped(_most_alike(evaluated, _study_key), lambda files: files.run.recipe.rung).values():
        by_steps = grouped(at_rung, lambda files: files.run.recipe.steps).values()
        pairing = [_most_alike(some, recipe_key) for some in by_steps]
        # Of several numbers of steps only those in which something pairs.
        paired = [some for some in pairing if {"rope"} < _methods(some)]
        chosen += [files for some in paired or pairing for files in some]
    return chosen


def setting(files: RunFiles) -> tuple[Any, ...]:
    """What all runs of one study have in common: corpus, train length, and whether they were trained from scratch."""
    recipe = files.run.recipe
    return files.run.identity.data, recipe.row_length, recipe.start_from is None


def _study_key(files: RunFiles) -> Any:
    evaluation = files.evaluation
    alike = sorted(evaluation.settings.items()) if evaluation is not None else []
    return *setting(files), repr(alike)


def recipe_key(files: RunFiles) -> str:
    """All of a recipe that a pair has in common."""
    recipe = asdict(files.run.recipe)
    return repr(sorted((field, value) for field, value in recipe.items() if field not in FREE_IN_PAIRS))


def _most_alike(runs: list[RunFiles], key: Callable[[RunFiles], Any]) -> list[RunFiles]:
    return max(grouped(runs, key).values(), key=len, default=[])


def _methods(runs: list[RunFiles]) -> set[str]:
    return {files.run.recipe.spec.method for files in runs}


def _whole_ladder(runs: list[RunFiles]) -> list[RunFiles]:
    """Runs of methods that are at every rung, if there are two rungs and two methods or more."""
    rungs = [_methods(some) for some in grouped(runs, lambda files: files.run.recipe.rung).values()]
    everywhere = set.intersection(*rungs) if len(rungs) > 1 else set()
    return [files for files in runs if files.run.recipe.spec.method in everywhere] if len(everywhere) > 1 else []


def _attempt(make: Callable[[], Kind], what: str, notes: list[str]) -> Kind | None:
    try:
        return make()
    except ValueError as error:
        notes.append(f"{what}: {error}")
        return None


def _find(path: Path) -> Iterator[Path]:
    """A run directory itself, or those below a folder; a link to a run counts, one to a folder of runs does not."""
    if is_run(path):
        yield path
        return
    for number, (folder, below, _) in enumerate(os.walk(path)):
        if number >= _MOST_FOLDERS:
            raise ValueError(f"{path} has more than {_MOST_FOLDERS:,} folders; name one that holds runs alone.")
        runs = [name for name in below if not name.startswith(".") and is_run(Path(folder, name))]
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in runs)
        yield from (Path(folder, name) for name in sorted(runs))


def read_files(path: Path, notes: list[str]) -> RunFiles | None:
    """One run; None, or without the results in question, if something cannot be read, and then a note says so."""
    try:
        run = read_run(path)
    except ValueError as error:
        notes.append(str(error))
        return None
    results: dict[str, Result] = {}
    for file in result_files(path):
        try:
            found = load_result(file)
            if isinstance(found, RunResult) and not _is_about(found, run):
                raise ValueError(f"{file} is about another training than {run.path}; measure this run again.")
            results[file.stem] = found
            if isinstance(found, RunResult) and found.arrays_sha256 is not None:
                found.check_arrays(file)
        except ValueError as error:
            notes.append(str(error))
    return RunFiles(run, results)


def _is_about(found: RunResult, run: Run) -> bool:
    """Whether a result is about this very training; its folder may have had another name."""
    label = run.label
    return all(found.run.get(field) == label[field] for field in ("created", "recipe"))


def result_files(run: Path) -> list[Path]:
    """The result files of a run directory; hidden files are notes that commands leave for themselves."""
    found = (file for file in (run / RESULTS).glob("*.json") if not file.name.startswith("."))
    return sorted(found, key=lambda file: file.stem)
