"""A study: runs that are compared, what each changes in the paper's recipe, and what is measured afterwards."""

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from lerope.cli.demo import RECIPE as DEMO_RECIPE
from lerope.cli.train import Changes
from lerope.model.config import rung
from lerope.train.config import Recipe, recipe

FROZEN = "frozen"
DEMO_STEPS = 100
# What a measurement in small takes; short rows hold few needles.
DEMO_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "eval": {"--max-tokens": ("32768",)},
    "extrapolate": {"--max-tokens": ("32768",)},
    "needle": {"--samples": ("2",), "--distractors": ("1", "3")},
}

Measurement = tuple[str, ...]
"""A command and its arguments, without the run: ("extrapolate", "--to", "4096")."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study."""

    rung: str
    encoding: str
    """What `lerope train --encoding` takes, or "frozen" for the frequencies that the run `after` has learned."""
    seed: int = 42
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ from the paper's."""
    suffix: str = ""
    """What tells this run's name from others of the same rung, encoding and seed."""
    after: str | None = None
    """The name of an earlier run of the study whose model/frequencies.json this one is trained with."""
    measure: tuple[Measurement, ...] = (("eval",),)

    def __post_init__(self) -> None:
        if (self.encoding == FROZEN) != (self.after is not None):
            raise ValueError(
                f"after must name a run for the encoding {FROZEN!r} and for no other; got {self.after!r} with "
                f"{self.encoding!r}."
            )
        known = [each.name for each in fields(Changes)]
        for name in self.changes:
            if name not in known:
                raise ValueError(f"changes must be what `lerope train` takes: {', '.join(known)}; got {name!r}.")

    @cached_property
    def name(self) -> str:
        """The name of the run directory."""
        return "-".join(filter(None, (self.recipe(Path()).name, self.suffix)))

    def recipe(self, out: Path) -> Recipe:
        """The whole recipe, for a study in the folder `out`."""
        return recipe(self.rung, self.spec(out), self.seed, **self.changes)

    def spec(self, out: Path) -> str:
        """What `--encoding` takes; a file by its whole path, so that it is the same however `out` is spelled."""
        return self.encoding if self.after is None else str(out.resolve() / self.after / "model" / "frequencies.json")

    def commands(self, data: Path, out: Path) -> list[list[str]]:
        """Arguments of `lerope` that train this run and measure it."""
        folder = str(out / self.name)
        train = ["train", self.rung, "--data", str(data), "--encoding", self.spec(out), "--seed", str(self.seed)]
        for name, value in self.changes.items():
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
    """What `lerope data prepare` is to be given."""

    def __post_init__(self) -> None:
        names: set[str] = set()
        for run in self.runs:
            name = run.name
            if name in names:
                raise ValueError(f"study {self.name}: two runs are called {name}; give one of them a suffix.")
            if run.after is not None and run.after not in names:
                raise ValueError(f"study {self.name}: {name} needs {run.after}, which must be an earlier run.")
            names.add(name)


def grid(
    rungs: Iterable[str], encodings: Iterable[str], seeds: Iterable[int] = (42,), suffix: str = "", **changes: Any
) -> list[PlannedRun]:
    """A run for each rung, encoding and seed; `suffix` ends all names, and `changes` are fields of the recipe."""
    encodings, seeds = list(encodings), list(seeds)
    return [
        PlannedRun(rung=name, encoding=encoding, seed=seed, suffix=suffix, changes=dict(changes))
        for name in rungs
        for encoding in encodings
        for seed in seeds
    ]


def measured(runs: Iterable[PlannedRun], *measurements: Measurement) -> list[PlannedRun]:
    """The same runs with these measurements after their own."""
    return [replace(run, measure=(*run.measure, *measurements)) for run in runs]


def demo(study: Study, steps: int = DEMO_STEPS) -> Study:
    """Any study at a size for a laptop: the same runs, seeds and measurements with models of the rung `demo`.

    Every length is an eighth of what it was and a batch has 2,048 tokens. The largest rung takes `steps` steps and the
    others in proportion to their layers, so that rungs differ in compute; their names become part of the runs' names.
    """
    names: dict[str, str] = {}
    runs = []
    for run in study.runs:
        small = _demo_run(run, steps, names)
        names[run.name] = small.name
        runs.append(small)
    return replace(study, runs=runs)


def _demo_run(run: PlannedRun, steps: int, names: dict[str, str]) -> PlannedRun:
    full = run.recipe(Path())
    count = max(1, math.ceil(steps * full.model.num_layers / rung("2.52B").num_layers))
    changes = {
        **DEMO_RECIPE,
        "validation_tokens": 1 << 14,
        **{key: value for key, value in run.changes.items() if key != "vocab_size"},
        "row_length": full.row_length // 8,
        "batch_tokens": DEMO_RECIPE["batch_tokens"],
        "steps": count,
    }
    changes["weight_decay"] = min(float(changes["weight_decay"]), count / 10)
    changes.pop("warmup_steps", None)
    after = None if run.after is None else names[run.after]
    suffix = "-".join(filter(None, (run.rung, run.suffix)))
    measure = tuple(_demo_measurement(each) for each in run.measure)
    return replace(run, rung="demo", changes=changes, suffix=suffix, after=after, measure=measure)


def _demo_measurement(measurement: Measurement) -> Measurement:
    """Numbers of 1,024 and more are lengths, an eighth here too; less is measured, unless it says how much."""
    command, *words = [str(int(w) // 8) if w.isdecimal() and int(w) >= 1024 else w for w in measurement]
    options = DEMO_OPTIONS.get(command, {})
    if "--to" in words:
        options = {option: values for option, values in options.items() if option != "--distractors"}
    extra = [word for option, values in options.items() if option not in words for word in (option, *values)]
    return (command, *words, *extra)


def shortened(study: Study, steps: int) -> Study:
    """The same study with so many steps in every run."""
    return replace(study, runs=[replace(run, changes={**run.changes, "steps": steps}) for run in study.runs])


def label(encoding: str) -> str:
    """How an encoding is called in names of folders."""
    return recipe("demo", encoding, 0).name.removeprefix("demo-").removesuffix("-0")


def own_study(spec: str) -> Study:
    """A study of one's own: what the function returns that `path/to/file.py:function` or `module:function` names."""
    module, _, function = spec.rpartition(":")
    try:
        found = getattr(_module(module), function)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise ValueError(f"study {spec!r} cannot be imported: {error}.") from None
    if not callable(found):
        raise ValueError(f"study {spec!r} must name a function; got {type(found).__name__}.")
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
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
