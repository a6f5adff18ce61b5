"""A study: runs that are compared, what each changes in the paper's recipe, and what is measured afterwards."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from lerope.core.checks import check_fields, hint
from lerope.core.encoding import FROZEN
from lerope.core.own_code import own_code
from lerope.core.recipe import CHANGES, Recipe, recipe
from lerope.data.shards import Corpus, Manifest

Command = tuple[str, ...]
"""A command of `lerope` that measures, and its arguments, without the run: ("extrapolate", "--to", "4096")."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study."""

    rung: str
    encoding: str
    """What `lerope train --encoding` takes, or "frozen" for the frequencies learned by the run `after`."""
    seed: int = 42
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ from the paper's."""
    suffix: str = ""
    """What distinguishes this run's name from others of the same rung, encoding and seed."""
    after: str | None = None
    """The name of an earlier run of the study: a frozen encoding has its frequencies, any other starts from all of its
    weights."""
    measure: tuple[Command, ...] = (("eval",),)
    called: str = ""
    """A name of its own, in place of the one by rung, encoding and seed."""

    def __post_init__(self) -> None:
        check_fields(self)
        for command in self.measure:
            if not command:
                raise ValueError("measure must be commands with their arguments; got one without words.")
        if "/" in self.suffix:
            raise ValueError(f"suffix must be part of a folder's name, without a slash; got {self.suffix!r}.")
        if self.encoding == FROZEN and self.after is None:
            raise ValueError(f"after must name a run where the encoding is {FROZEN!r}; got none.")
        if "start_from" in self.changes:
            found = self.changes["start_from"]
            raise ValueError(f"changes has start_from {found!r}; name a run of the study with after.")
        for name in self.changes:
            if name not in CHANGES:
                known = f"what `lerope train` takes: {', '.join(CHANGES)}"
                raise ValueError(f"changes must be {known}; got {name!r}{hint(name, CHANGES)}")

    @cached_property
    def name(self) -> str:
        """The name of the run directory."""
        return self.called or "-".join(filter(None, (self.recipe(Path()).name, self.suffix)))

    def recipe(self, out: Path) -> Recipe:
        """The full recipe, for a study in the folder `out`."""
        return recipe(self.rung, self.spec(out), self.seed, **{**self._start(out), **self.changes})

    def spec(self, out: Path) -> str:
        """What `--encoding` takes."""
        if self.encoding != FROZEN or self.after is None:
            return self.encoding
        return str(out / self.after / "model" / "frequencies.json")

    def _start(self, out: Path) -> dict[str, Any]:
        """The run whose weights this one starts from, as a field of the recipe."""
        starts = self.encoding != FROZEN and self.after is not None
        return {"start_from": str(out / str(self.after))} if starts else {}

    def commands(self, data: Path, out: Path) -> list[list[str]]:
        """Arguments of `lerope` to train and measure this run."""
        folder = str(out / self.name)
        train = ["train", self.rung, "--data", str(data), "--encoding", self.spec(out), "--seed", str(self.seed)]
        for name, value in {**self._start(out), **self.changes}.items():
            train += [f"--{name.replace('_', '-')}", str(value)]
        return [[*train, "--out", folder], *([name, folder, *rest] for name, *rest in self.measure)]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs that are compared."""

    name: str
    sentence: str
    """What the study asks."""
    runs: Sequence[PlannedRun]
    source: str = "hf:c4"
    """The source to give to `lerope data prepare`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if "/" in self.name or not self.name:
            raise ValueError(f"name must be that of a folder, without a slash; got {self.name!r}.")
        if not self.runs:
            raise ValueError(f"study {self.name}: runs must be one or more; got none.")
        names: set[str] = set()
        for run in self.runs:
            name = run.name
            if name in names:
                raise ValueError(f"study {self.name}: two runs are named {name}; give one of them a suffix.")
            if run.after is not None and run.after not in names:
                raise ValueError(f"study {self.name}: {name} needs {run.after}, which must be an earlier run.")
            names.add(name)

    @property
    def tokens(self) -> int:
        """Training tokens of the longest run: with this many prepared, none reads a text twice."""
        return max(run.recipe(Path()).num_tokens for run in self.runs)


def prepare_command(study: Study, small: bool = False) -> str:
    """The command that prepares text for a study, or for its `demo` version."""
    if small:
        return "lerope data prepare python: --vocab-size 2048 --out data/my-text"
    folder = Path(study.source.removeprefix("hf:").partition(":")[0]).name
    return f"lerope data prepare {study.source} --max-tokens {study.tokens} --out data/{folder}"


def grid(
    rungs: Iterable[str], encodings: Iterable[str], seeds: Iterable[int] = (42,), suffix: str = "", **changes: Any
) -> list[PlannedRun]:
    """A run for each rung, encoding and seed; `suffix` ends all names, and `changes` are recipe fields."""
    encodings, seeds = list(encodings), list(seeds)
    return [
        PlannedRun(rung=name, encoding=encoding, seed=seed, suffix=suffix, changes=dict(changes))
        for name in rungs
        for encoding in encodings
        for seed in seeds
    ]


def measured(runs: Iterable[PlannedRun], *measurements: Command) -> list[PlannedRun]:
    """The same runs with these measurements after their own."""
    return [replace(run, measure=(*run.measure, *measurements)) for run in runs]


def with_options(study: Study, command: str, *options: str) -> Study:
    """The same study with these options added to every measurement by a command."""

    def extended(each: Command) -> Command:
        return (*each, *options) if each[0] == command else each

    return replace(study, runs=[replace(run, measure=tuple(map(extended, run.measure))) for run in study.runs])


def with_learning_rates(study: Study, rates: Mapping[str, float]) -> Study:
    """The same study with these learning rates by rung."""
    return _changed(study, lambda run: {**run.changes, "learning_rate": rates[run.rung]})


def shortened(study: Study, steps: int) -> Study:
    """The same study with this many steps in every run."""
    return _changed(study, lambda run: {**run.changes, "steps": steps})


def with_vocabulary(study: Study, data: Path) -> Study:
    """The same study with the data's vocabulary in every run that names none."""
    found = Manifest.load(data).vocab_size

    def changes(run: PlannedRun) -> dict[str, Any]:
        return run.changes if run.recipe(Path()).model.vocab_size == found else {"vocab_size": found, **run.changes}

    return _changed(study, changes)


def _changed(study: Study, changes: Callable[[PlannedRun], dict[str, Any]]) -> Study:
    return replace(study, runs=[replace(run, changes=changes(run)) for run in study.runs])


def check_data(study: Study, data: Path) -> None:
    """Raises before anything is started if the data does not fit the models."""
    found = Corpus(data, verify="sizes").manifest.vocab_size
    for run in study.runs:
        wanted = run.changes.get("vocab_size", found)
        if wanted != found:
            raise ValueError(
                f"{data} has a vocabulary of {found:,}, but {run.name} says {wanted:,}; leave vocab_size out of its "
                f"changes, or prepare the data with --vocab-size {wanted}."
            )


def own_study(spec: str) -> Study:
    """Your own study: what the function named by `path/to/file.py:function` or `module:function` returns."""
    module, _, function = spec.rpartition(":")
    with own_code(f"study {spec!r} cannot be imported"):
        found = getattr(_module(module), function)
    if not callable(found):
        raise ValueError(f"study {spec!r} must name a function; got {type(found).__name__}.")
    with own_code(f"study {spec!r} fails"):
        study = found()
    if not isinstance(study, Study):
        raise ValueError(f"study {spec!r} must return a lerope.launch.study.Study; got {type(study).__name__}.")
    return study


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        return importlib.import_module(name)
    found = importlib.util.spec_from_file_location(Path(name).stem, name)
    if found is None or found.loader is None:
        raise ImportError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
