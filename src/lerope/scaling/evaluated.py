"""Evaluated runs as a study: rung by rung, method by method, seed by seed, refused where they are not comparable."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lerope.core.encoding import EncodingSpec
from lerope.core.files import differences
from lerope.core.grouping import grouped
from lerope.core.recipe import Recipe
from lerope.core.run import RESULTS, Run, finished_run
from lerope.results import Evaluation, arrays_of

Paths = Sequence[str | os.PathLike[str]]

# Fields in which runs of a pair may differ: the two that are compared, and one that changes no weight.
_NO_RECIPE = ("encoding", "seed", "validation_tokens")
# What matters only where frequencies are learned.
_OF_FREQUENCIES = ("frequency_learning_rate", "frequency_max_norm")
FREE_IN_PAIRS = (*_NO_RECIPE, *_OF_FREQUENCIES, "start_from")
"""Fields of a recipe in which a pair may differ, one or the other of them under conditions."""


@dataclass(frozen=True)
class Evaluated:
    """A finished run with an evaluation that belongs to it."""

    run: Run
    evaluation: Evaluation
    file: Path
    """The evaluation's; beside it lie the arrays."""

    @property
    def tokens(self) -> Path:
        """The file with losses of tokens."""
        return arrays_of(self.file)

    def open_sums(self) -> AbstractContextManager[Any]:
        """That file, after a check that it is intact and has their sums."""
        return self.evaluation.open_arrays(self.file, "document_sums", "document_counts")

    @property
    def recipe(self) -> Recipe:
        """What was trained."""
        return self.run.recipe


Study = dict[str, dict[str, dict[int, Evaluated]]]
"""Rung, method, seed."""


def read_study(paths: Paths, evaluation: str = "eval") -> Study:
    """Reads runs and their evaluations, in order of compute; raises unless they are of one study.

    Within a rung recipes may differ only in encoding and seed. Data and evaluation must be the same everywhere. A rung
    that was trained for several numbers of steps counts as several, if a method can be the baseline of all.
    """
    if not paths:
        raise ValueError("name two run directories or more; got none.")
    found = [_read(path, evaluation) for path in paths]
    names = _rung_names(found)
    study: Study = {}
    for item in sorted(found, key=lambda item: item.recipe.compute):
        study.setdefault(names[item.run.path], {})
    for item in found:
        _check_alike(found[0], item)
        rung, method, seed = study[names[item.run.path]], item.recipe.spec.method, item.recipe.seed
        seeds = rung.setdefault(method, {})
        # With each of them: whether two runs learn frequencies decides which fields count.
        for other in (other for runs in rung.values() for other in runs.values()):
            _check_recipe(other, item)
        for other in seeds.values():
            if other.run.identity.initial_frequencies != item.run.identity.initial_frequencies:
                raise ValueError(
                    f"{other.run.path} and {item.run.path} are both of method {method} and started from different "
                    "frequencies; compare one of them at a time."
                )
        if seed in seeds:
            raise ValueError(
                f"{seeds[seed].run.path} and {item.run.path} are both of rung {item.recipe.rung}, method {method} "
                f"and seed {seed}; name one of them."
            )
        seeds[seed] = item
    return study


def _rung_names(found: list[Evaluated]) -> dict[Path, str]:
    """What each run's rung is called: with its steps where it was trained for several numbers of them.

    Runs of unequal steps are no pair. So each number must have two methods or more, and all of them one in common;
    otherwise they stay one rung, which is refused for its steps.
    """
    names: dict[Path, str] = {}
    for rung, items in grouped(found, lambda item: item.recipe.rung).items():
        by_steps = grouped(items, lambda item: item.recipe.steps).values()
        methods = [{item.recipe.spec.method for item in some} for some in by_steps]
        is_split = len(methods) > 1 and min(map(len, methods)) > 1 and set.intersection(*methods)
        for item in items:
            names[item.run.path] = f"{rung}, {item.recipe.steps:,} steps" if is_split else rung
    return names


def as_method(name: str) -> str:
    """A method as comparisons spell it: `rope,base=10000` is rope. A name that is not an encoding stays as it is."""
    try:
        return EncodingSpec.parse(name).method
    except ValueError:
        return name


def default_baseline(study: Study) -> str:
    """RoPE where it was run, else the method that was named first."""
    methods = [method for rung in study.values() for method in rung]
    return "rope" if "rope" in methods else methods[0]


def check_baseline(study: Study, baseline: str) -> None:
    """Raises unless every rung has the baseline and something to compare with it."""
    for rung, methods in study.items():
        names = ", ".join(methods)
        if baseline not in methods:
            raise ValueError(f"baseline must have a run at every rung; {rung} has {names} but not {baseline!r}.")
        if len(methods) < 2:
            raise ValueError(f"name runs of two methods or more at every rung; {rung} has only {names}.")


def _read(path: str | os.PathLike[str], name: str) -> Evaluated:
    run = finished_run(path)
    name = name.removesuffix(".json")
    file = run.path / RESULTS / f"{name}.json"
    if not file.is_file():
        options = "" if name == "eval" else " with the options that name this file"
        raise ValueError(f"{file} does not exist; run `lerope eval {run.path}`{options}.")
    item = Evaluated(run, Evaluation.load(file), file)
    if item.evaluation.run.get("created") != run.created:
        raise ValueError(f"{file} was made from an earlier training in this folder; {again(item)}.")
    return item


def _check_alike(first: Evaluated, item: Evaluated) -> None:
    both = f"{first.run.path} and {item.run.path}"
    if first.run.identity.data != item.run.identity.data:
        raise ValueError(
            f"{both} were trained on different data or tokenizers (fingerprints {first.run.identity.data[:12]} and "
            f"{item.run.identity.data[:12]}); compare runs on the same."
        )
    # Documents are known by their fingerprint, whatever their folder is called.
    mine, yours = ({**each.evaluation.settings, "documents": None} for each in (first, item))
    for field, one, other in differences(mine, yours):
        raise ValueError(
            f"{both} were evaluated differently: {field} is {_short(one)} in the first and {_short(other)} in the "
            "second; score them alike with `lerope eval`."
        )


def _check_recipe(first: Evaluated, item: Evaluated) -> None:
    both_learn = first.recipe.spec.learns and item.recipe.spec.learns
    ignored = {*_NO_RECIPE, *(() if both_learn else _OF_FREQUENCIES)}
    one, other = ({k: v for k, v in asdict(each.recipe).items() if k not in ignored} for each in (first, item))
    if one["start_from"] and other["start_from"]:
        del one["start_from"], other["start_from"]  # each may start from the run of its own method
    for field, mine, yours in differences(one, other):
        raise ValueError(
            f"{first.run.path} and {item.run.path} are not a pair: {field} is {_short(mine)} in the first and "
            f"{_short(yours)} in the second; at one rung only encoding and seed may differ."
        )


def again(item: Evaluated) -> str:
    """What to do about an evaluation that is not as it should be."""
    return f"remove it and run `lerope eval {item.run.path}`"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
