"""Evaluated runs as a study: rung by rung, method by method, seed by seed, refused where they are not comparable."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lerope.results import Evaluation
from lerope.runs import RESULTS, Run, differences, finished_run
from lerope.scaling.multipliers import Floats

Paths = Sequence[str | os.PathLike[str]]
Integers = npt.NDArray[np.int64]

NUM_BINS = 8
# Fields in which runs of a pair may differ: the two that are compared, and one that changes no weight.
_NO_RECIPE = ("encoding", "seed", "validation_tokens")
# What matters only where frequencies are learned.
_OF_FREQUENCIES = ("frequency_learning_rate", "frequency_max_norm")
_FIXED = ("rope", "prope", "nope", "frozen")
_TOKENS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Evaluated:
    """A finished run with an evaluation that belongs to it."""

    run: Run
    evaluation: Evaluation
    tokens: Path
    """The file with the loss of every token."""

    @property
    def rung(self) -> str:
        """The ladder's name of its size."""
        return str(self.run.recipe["rung"])

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.run.recipe["seed"])

    @property
    def num_steps(self) -> int:
        """Steps of training."""
        return int(self.run.recipe["steps"])

    @property
    def method(self) -> str:
        """The encoding as it was asked for, or `frozen` for the frequencies of a file."""
        name, *options = str(self.run.recipe["encoding"]).split(",")
        return ",".join(["frozen" if name.endswith(".json") else name, *options])

    @property
    def learns(self) -> bool:
        """Whether frequencies are learned."""
        return self.method.partition(",")[0] not in _FIXED

    @property
    def compute(self) -> float:
        """FLOPs: 6 times parameters without embeddings times tokens."""
        model, recipe = self.run.recipe["model"], self.run.recipe
        width = model["num_heads"] * model["head_dim"]
        return float(6 * 12 * width**2 * model["num_layers"] * recipe["steps"] * recipe["batch_tokens"])


Study = dict[str, dict[str, dict[int, Evaluated]]]
"""Rung, method, seed."""


def read_study(paths: Paths, evaluation: str = "eval") -> Study:
    """Reads runs and their evaluations, in order of compute; raises where they are not of one study.

    Within a rung recipes may differ in encoding and seed alone. Data and evaluation must be the same everywhere. A rung
    whose methods were all trained for several numbers of steps counts as several.
    """
    if not paths:
        raise ValueError("name two run directories or more; got none.")
    found = [_read(path, evaluation) for path in paths]
    names = _rung_names(found)
    study: Study = {}
    for item in sorted(found, key=lambda item: item.compute):
        study.setdefault(names[item.run.path], {})
    for item in found:
        _check_alike(found[0], item)
        rung = study[names[item.run.path]]
        seeds = rung.setdefault(item.method, {})
        others = [other for method in rung.values() for other in method.values()]
        if others:
            _check_recipe(others[0], item)
        for other in seeds.values():
            if other.run.identity.get("initial_frequencies") != item.run.identity.get("initial_frequencies"):
                raise ValueError(
                    f"{other.run.path} and {item.run.path} are both of method {item.method} and started from different "
                    "frequencies; compare one of them at a time."
                )
        if item.seed in seeds:
            raise ValueError(
                f"{seeds[item.seed].run.path} and {item.run.path} are both of rung {item.rung}, method {item.method} "
                f"and seed {item.seed}; name one of them."
            )
        seeds[item.seed] = item
    return study


def _rung_names(found: list[Evaluated]) -> dict[Path, str]:
    """What each run's rung is called: with its steps where all methods of a rung have the same several numbers."""
    methods: dict[str, dict[int, set[str]]] = {}
    for item in found:
        methods.setdefault(item.rung, {}).setdefault(item.num_steps, set()).add(item.method)
    split = {
        rung
        for rung, by_steps in methods.items()
        if len(by_steps) > 1
        and len(set(map(frozenset, by_steps.values()))) == 1
        and len(next(iter(by_steps.values()))) > 1
    }
    return {
        item.run.path: f"{item.rung}, {item.num_steps:,} steps" if item.rung in split else item.rung for item in found
    }


def default_baseline(study: Study) -> str:
    """RoPE where it was run, else the method that was named first."""
    methods = [method for rung in study.values() for method in rung]
    return "rope" if "rope" in methods else methods[0]


def check_baseline(study: Study, baseline: str) -> None:
    """Raises unless every rung has the baseline and something to hold against it."""
    for rung, methods in study.items():
        names = ", ".join(methods)
        if baseline not in methods:
            raise ValueError(f"baseline must have a run at every rung; {rung} has {names} and not {baseline!r}.")
        if len(methods) < 2:
            raise ValueError(f"name runs of two methods or more at every rung; {rung} has {names} alone.")


def read_ends(items: Sequence[Evaluated]) -> Integers:
    """Where each document's losses end, after a check that all runs were scored on the same ones."""
    ends = [_open_ends(item) for item in items]
    for item, other in zip(items, ends, strict=True):
        if not np.array_equal(ends[0], other):
            raise ValueError(
                f"{items[0].tokens} and {item.tokens} are of different documents; run `lerope eval` on both again."
            )
    return ends[0]


def position_edges(length: int) -> Integers:
    """Ends of bins of positions in a window of `length` tokens: half of it, a quarter, an eighth and so on."""
    return np.array(sorted({0, *(length >> halvings for halvings in range(NUM_BINS))}), np.int64)


def count_tokens(ends: Integers, length: int) -> Floats:
    """Tokens of each document in each bin of positions: (documents, bins)."""
    return _binned(None, ends, length)


def sum_losses(item: Evaluated, ends: Integers) -> Floats:
    """Sums of token losses of each document in each bin of positions: (documents, bins)."""
    sums = _binned(item, ends, int(item.evaluation.settings["length"]))
    loss = float(sums.sum()) / int(ends[-1])
    if not abs(loss - item.evaluation.loss) <= 1e-6 * max(1.0, abs(loss)):
        raise ValueError(
            f"{item.tokens} has a mean loss of {loss:.4f} where its evaluation says {item.evaluation.loss:.4f}; "
            f"{_again(item)}."
        )
    return sums


def _read(path: str | os.PathLike[str], name: str) -> Evaluated:
    run = finished_run(path)
    name = name.removesuffix(".json")
    file = run.path / RESULTS / f"{name}.json"
    if not file.is_file():
        options = "" if name == "eval" else " with the options that name this file"
        raise ValueError(f"{file} does not exist; run `lerope eval {run.path}`{options}.")
    item = Evaluated(run, Evaluation.load(file), file.with_suffix(".safetensors"))
    if item.evaluation.run.get("created") != run.created:
        raise ValueError(f"{file} was made from an earlier training in this folder; {_again(item)}.")
    return item


def _check_alike(first: Evaluated, item: Evaluated) -> None:
    both = f"{first.run.path} and {item.run.path}"
    if first.run.identity["data"] != item.run.identity["data"]:
        raise ValueError(
            f"{both} were trained on different data or tokenizers (fingerprints {first.run.identity['data'][:12]} and "
            f"{item.run.identity['data'][:12]}); compare runs on the same."
        )
    # Documents are known by their fingerprint, whatever the folder they lie in is called.
    mine, yours = ({**each.evaluation.settings, "documents": None} for each in (first, item))
    for field, one, other in differences(mine, yours):
        raise ValueError(
            f"{both} were evaluated differently: {field} is {_short(one)} in the first and {_short(other)} in the "
            "second; score them alike with `lerope eval`."
        )


def _check_recipe(first: Evaluated, item: Evaluated) -> None:
    ignored = {*_NO_RECIPE, *(_OF_FREQUENCIES if not (first.learns and item.learns) else ())}
    one, other = ({k: v for k, v in each.run.recipe.items() if k not in ignored} for each in (first, item))
    for field, mine, yours in differences(one, other):
        raise ValueError(
            f"{first.run.path} and {item.run.path} are no pair: {field} is {_short(mine)} in the first and "
            f"{_short(yours)} in the second; at one rung only encoding and seed may differ."
        )


def _open_ends(item: Evaluated) -> Integers:
    with _opened(item) as file:
        ends: Integers = file.get_tensor("ends")
        num_losses = file.get_slice("losses").get_shape()
    result = item.evaluation
    lengths = np.diff(ends, prepend=0) if ends.ndim == 1 else np.array([-1])
    fits = (lengths >= 0).all() and num_losses == [int(lengths.sum())] == [result.num_tokens]
    if not fits or int((lengths > 0).sum()) != result.num_documents:
        raise ValueError(
            f"{item.tokens} does not hold the {result.num_tokens:,} tokens of {result.num_documents:,} documents that "
            f"its evaluation counts; {_again(item)}."
        )
    return ends


def _binned(item: Evaluated | None, ends: Integers, length: int) -> Floats:
    """Losses, or ones without a run, summed over each document's tokens in each bin of positions."""
    edges = position_edges(length)
    num_bins = len(edges) - 1
    bins = np.searchsorted(edges, np.arange(length), side="right") - 1
    sums = np.zeros((len(ends), num_bins))
    for first, last, start, stop in _chunks(ends):
        lengths = np.diff(ends[first:last], prepend=start)
        documents = np.repeat(np.arange(last - first), lengths)
        positions = np.arange(start, stop) - np.repeat(ends[first:last] - lengths, lengths)
        keys = documents * num_bins + bins[positions % length]
        losses = None if item is None else _read_losses(item, start, stop)
        counts = np.bincount(keys, weights=losses, minlength=(last - first) * num_bins)
        sums[first:last] = counts.reshape(last - first, num_bins)
    return sums


def _chunks(ends: Integers) -> Iterator[tuple[int, int, int, int]]:
    """Whole documents, about four million tokens at a time: first and last document, first and last token."""
    first, start = 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, start + _TOKENS_AT_ONCE, side="right")))
        yield first, last, start, int(ends[last - 1])
        first, start = last, int(ends[last - 1])


def _read_losses(item: Evaluated, start: int, stop: int) -> Floats:
    with _opened(item) as file:
        losses: Floats = file.get_slice("losses")[start:stop].astype(np.float64)
    if not np.isfinite(losses).all():
        raise ValueError(f"{item.tokens} holds losses that are not finite; look at how {item.run.path} was trained.")
    return losses


def _opened(item: Evaluated) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(item.tokens, "numpy")
        missing = {"losses", "ends"} - set(file.keys())
    except (FileNotFoundError, SafetensorError) as error:
        raise ValueError(f"{item.tokens} cannot be read ({error}); {_again(item)}.") from None
    if missing:
        raise ValueError(f"{item.tokens} has no {' and no '.join(sorted(missing))}; {_again(item)}.")
    return file


def _again(item: Evaluated) -> str:
    return f"remove it and run `lerope eval {item.run.path}`"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
