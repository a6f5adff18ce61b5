"""What the page shows, as plain JSON values: thinned, rounded, and nothing that a page could not draw."""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lerope.report.collect import Bundle, RunFiles
from lerope.report.style import method_label
from lerope.results import (
    Ablation,
    Bands,
    Comparison,
    Evaluation,
    Extrapolation,
    LearnedFrequencies,
    MethodEffect,
    Needle,
    Phasors,
    Result,
    RunResult,
)
from lerope.runs import provenance

Json = dict[str, Any]
Floats = npt.NDArray[np.float64]

MAX_POINTS = 400
"""Points of a curve of training."""
MAX_RECORDS = 120
"""Records of the frequencies through training."""
MAX_DISTANCES = 160
"""Points of a curve by distance."""
MAX_TICKED = 12
"""Runs that are compared at a time."""
_DEFAULT_TICKED = 6
_DEFAULT_BASE = 10_000.0
_RATE_STEPS = 50


def payload(bundle: Bundle, runs: Sequence[Json] | None = None, made: Json | None = None) -> Json:
    """Everything the page needs.

    Args:
        runs: what `run_payload` gave for the bundle's runs, where that is known already.
        made: when and with what the page is made; now unless given.
    """
    shown = [dict(run) for run in (map(run_payload, bundle.runs) if runs is None else runs)]
    for run, name in zip(shown, _names([files.run.path for files in bundle.runs]), strict=True):
        run["id"] = name
    found: Json = {
        "title": _title([run["id"] for run in shown]),
        "made": made or provenance(),
        "maxTicked": MAX_TICKED,
        "ticked": _ticked(bundle.runs, [run["id"] for run in shown]),
        "runs": shown,
        "verdict": _verdict(bundle),
        "comparison": _comparison(bundle.comparison),
        "multipliers": _multipliers(bundle),
        "notes": _notes(bundle, [note for run in shown for note in run["notes"]]),
        "files": [],
    }
    return found


def run_payload(files: RunFiles) -> Json:
    """One run, without the `id` that tells it from others of the same name."""
    run = files.run
    recipe = run.recipe
    notes: list[str] = []
    metrics, history = _records(files, notes)
    return {
        "name": run.name,
        "path": str(run.path),
        "method": method(str(recipe["encoding"])),
        "label": method_label(str(recipe["encoding"])),
        "rung": str(recipe["rung"]),
        "rungs": [str(recipe["rung"]), f"{recipe['rung']}, {recipe.get('steps') or 0:,} steps"],
        "seed": recipe["seed"],
        "trainLength": recipe.get("row_length"),
        "finished": run.finished,
        "progress": _progress(metrics, recipe.get("steps")),
        "training": _curve(metrics, "loss"),
        "validation": _curve(metrics, "validation_loss"),
        "evaluation": _evaluation(files),
        "frequencies": _frequencies(files, history),
        "bands": _bands(files),
        "phasors": _phasors(files),
        "ablation": _ablation(files),
        "needles": [_needle(stem, found) for stem, found in files.results.items() if isinstance(found, Needle)],
        "extrapolation": _extrapolation(files),
        "provenance": _provenance(files),
        "notes": notes,
    }


def _records(files: RunFiles, notes: list[str]) -> tuple[list[Json], list[Json]]:
    """Records of metrics and of frequencies; damaged ones are none, with a note."""
    found: list[list[Json]] = []
    for name in ("metrics", "frequencies"):
        try:
            records = getattr(files, name)
        except (ValueError, OSError) as error:
            notes.append(str(error))
            records = []
        found.append([record for record in records if isinstance(record, dict) and "step" in record])
    return found[0], found[1]


def method(encoding: str) -> str:
    """The encoding as it was asked for, or `frozen` for the frequencies of a file, as `lerope compare` names it."""
    name, *options = encoding.split(",")
    return ",".join(["frozen" if name.endswith(".json") else name, *options])


def number(value: Any, digits: int = 5) -> float | int | None:
    """A number with so many significant digits; None for what JSON cannot say."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if value is None or not math.isfinite(value):
        return None
    return float(f"{float(value):.{digits}g}")


def numbers(values: Iterable[Any], digits: int = 5) -> list[float | int | None]:
    """The same for each of several."""
    return [number(value, digits) for value in values]


def plain(value: Any) -> Any:
    """JSON values as they are, with None for NaN and infinity, at full precision."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def group_edges(length: int, most: int) -> npt.NDArray[np.int64]:
    """Where to cut `length` neighbours into at most `most` groups of nearly the same size."""
    return np.linspace(0, length, min(length, most) + 1).round().astype(np.int64)


def distance_edges(last: int, most: int = MAX_DISTANCES) -> npt.NDArray[np.int64]:
    """Where to cut distances 1 to `last` into at most `most` groups: single ones first, then ever wider."""
    return np.unique(np.geomspace(1, last + 1, most + 1).round().astype(np.int64))


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names; of those alike, all but the highest with as many folders above them as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    found = []
    for own in parts:
        depths = sorted(len(other) for other in parts if other[-1] == own[-1])
        highest = len(own) == depths[0] and depths.count(len(own)) == 1
        length = 1
        while not highest and length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        found.append("/".join(own[-length:]))
    return found


def _title(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _ticked(runs: Sequence[RunFiles], names: Sequence[str]) -> list[str]:
    """The runs with the most to show; unfinished ones first, which are the ones that somebody watches."""
    order = sorted(range(len(runs)), key=lambda at: (runs[at].run.finished, -len(runs[at].results)))
    chosen = order if len(order) <= _DEFAULT_TICKED else order[:_DEFAULT_TICKED]
    return [names[at] for at in sorted(chosen)]


def _verdict(bundle: Bundle) -> Json:
    """The sentence at the top and what it rests on, or what has to be done for one."""
    if bundle.comparison is None or not bundle.comparison.effects:
        return {"text": None, "missing": _missing(bundle)}
    effects = bundle.comparison.effects
    wanted = bundle.comparison.reference or ("lerope" if any(e["method"] == "lerope" for e in effects) else None)
    of_wanted = [effect for effect in effects if effect["method"] == wanted] or effects
    # Rungs come in order of size: the largest that has several seeds says most, else the largest.
    main = max(enumerate(of_wanted), key=lambda item: (item[1]["num_seeds"] > 1, item[0]))[1]
    return {"text": main["verdict"], "rung": main["rung"], "method": main["method"], "missing": None}


def _missing(bundle: Bundle) -> Json:
    """A sentence, and commands that would give a verdict."""
    runs = [files.run for files in bundle.runs]
    unfinished = [run for run in runs if not run.finished]
    methods = {method(str(run.recipe["encoding"])) for run in runs}
    if len(methods) < 2:
        run = runs[0]
        other = "lerope" if "rope" in methods else "rope"
        rest = f"--seed {run.recipe['seed']} --data DATA"
        return {
            "text": f"There is no verdict, because {next(iter(methods))} stands alone: train another encoding.",
            "command": f"lerope train {run.recipe['rung']} --encoding {other} {rest}",
        }
    unscored = [files.run for files in bundle.runs if files.run.finished and "eval" not in files.results]
    if unscored:
        return {
            "text": "There is no verdict yet: score the finished runs on the validation documents.",
            "command": f"lerope eval {shlex.join(str(run.path) for run in unscored)}",
        }
    if unfinished:
        return {"text": "There is no verdict yet: runs are still training.", "command": None}
    return {"text": "There is no verdict; the notes at the end say why.", "command": None}


def _interval(effect: MethodEffect) -> tuple[float, float]:
    """The interval that the verdict speaks of: over seeds and documents where there are seeds."""
    if effect["both_low"] is not None and effect["both_high"] is not None:
        return effect["both_low"], effect["both_high"]
    return effect["documents_low"], effect["documents_high"]


def _comparison(comparison: Comparison | None) -> Json | None:
    if comparison is None:
        return None
    effects = []
    for effect in comparison.effects:
        low, high = _interval(effect)
        effects.append({**plain(effect), "low": number(low), "high": number(high)})
    return {
        "baseline": comparison.baseline,
        "reference": comparison.reference,
        "effects": effects,
        "gains": plain(comparison.gains),
        "byPosition": plain(comparison.by_position),
    }


def _multipliers(bundle: Bundle) -> Json | None:
    """By every estimator where all methods are at all rungs, else the comparison's own for those that are."""
    found = bundle.multipliers or bundle.comparison
    if found is None or not found.multipliers:
        return None
    return {"baseline": found.baseline, "multipliers": plain(found.multipliers)}


def _notes(bundle: Bundle, of_runs: Sequence[str]) -> list[str]:
    found = [*bundle.notes, *of_runs]
    for result in (bundle.comparison, bundle.multipliers):
        found += result.notes if result is not None else []
    return list(dict.fromkeys(found))


def _progress(metrics: Sequence[Json], steps: int | None) -> Json:
    """Where training is; the time left from the speed of the last steps."""
    last = [record for record in metrics if "loss" in record][-_RATE_STEPS:]
    validations = [record for record in metrics if "validation_loss" in record]
    seconds = [record["seconds"] for record in last if isinstance(record.get("seconds"), int | float)]
    step = last[-1]["step"] if last else 0
    each = sum(seconds) / len(seconds) if seconds else None
    return {
        "step": step,
        "steps": steps,
        "loss": number(last[-1]["loss"]) if last else None,
        "validationLoss": number(validations[-1]["validation_loss"]) if validations else None,
        "tokensPerSecond": number(last[-1].get("tokens_per_second"), 3) if last else None,
        "secondsLeft": number(each * (steps - step), 3) if each is not None and steps is not None else None,
    }


def _curve(metrics: Sequence[Json], field: str) -> Json:
    """Means over neighbouring steps, so that no more than MAX_POINTS are left."""
    found = [(record["step"], record[field]) for record in metrics if isinstance(record.get(field), int | float)]
    edges = group_edges(len(found), MAX_POINTS) if found else np.zeros(1, np.int64)
    steps, values = [], []
    for start, stop in pairwise(edges.tolist()):
        group = found[start:stop]
        steps.append(number(sum(step for step, _ in group) / len(group), 7))
        values.append(number(sum(value for _, value in group) / len(group)))
    return {"steps": steps, "values": values}


def _evaluation(files: RunFiles) -> Json | None:
    found = files.result(Evaluation, "eval")
    if found is None:
        return None
    fields = ("loss", "perplexity", "document_mean_loss", "bits_per_byte", "num_documents", "num_tokens")
    return {name: number(getattr(found, name), 7) for name in fields}


def _frequencies(files: RunFiles, history: Sequence[Json]) -> Json | None:
    """Wavelengths through training; where layers or heads have their own, the mean of them and the outermost."""
    described = files.result(LearnedFrequencies)
    base = (described.base if described is not None else None) or _base(str(files.run.recipe["encoding"]))
    records = [(record["step"], values) for record in history if (values := _theta(record, base)) is not None]
    if not records or not records[-1][1].shape[-1]:
        return None
    shape = records[-1][1].shape
    records = [record for record in records if record[1].shape == shape]
    chosen = np.unique(np.linspace(0, len(records) - 1, min(len(records), MAX_RECORDS)).round().astype(int))
    with np.errstate(divide="ignore", invalid="ignore"):
        turns = np.stack([2 * math.pi / abs(records[at][1]) for at in chosen]).reshape(len(chosen), -1, shape[-1])
        turns[~np.isfinite(turns)] = np.nan
        middle = np.exp(np.log(turns).mean(1))
    bands = files.result(Bands)
    shared = turns.shape[1] == 1
    first = described.sets[0]["suppressed_from"] if described is not None and len(described.sets) == 1 else None
    return {
        "base": number(base),
        "rope": numbers(2 * math.pi * base ** (2 * np.arange(shape[-1]) / (2 * shape[-1]))),
        "steps": [int(records[at][0]) for at in chosen],
        "wavelengths": [numbers(row, 4) for row in middle],
        "low": None if shared else [numbers(row, 4) for row in turns.min(1)],
        "high": None if shared else [numbers(row, 4) for row in turns.max(1)],
        "dominantBand": bands.dominant_band if bands is not None and bands.stands_out else None,
        "suppressedFrom": first,
    }


def _base(encoding: str) -> float:
    options = dict(option.partition("=")[::2] for option in encoding.split(",")[1:])
    try:
        return float(options.get("base", _DEFAULT_BASE))
    except ValueError:
        return _DEFAULT_BASE


def _theta(record: Json, base: float) -> Floats | None:
    """The frequencies of a record, (..., bands), or None where it has none."""
    try:
        if record.get("frequencies") is not None:
            return np.array(record["frequencies"], np.float64)
        if record.get("log_scales") is None:
            return None
        scales = np.array(record["log_scales"], np.float64)
    except (TypeError, ValueError):
        return None
    num_bands = scales.shape[-1]
    theta: Floats = base ** (-2 * np.arange(num_bands) / (2 * num_bands)) * np.exp(scales)
    return theta


def _bands(files: RunFiles) -> Json | None:
    found = files.result(Bands)
    if found is None:
        return None
    arrays = files.arrays("bands")
    curves = {}
    if {"mean", "std"} <= arrays.keys() and arrays["mean"].shape[-1] > 1:
        edges = distance_edges(arrays["mean"].shape[-1] - 1)
        widths = np.diff(edges)
        means, spreads = (np.add.reduceat(arrays[name], edges[:-1], axis=1) for name in ("mean", "std"))
        # The last group of reduceat runs to the end of the array, which is where the last edge is.
        curves = {
            "edges": edges.tolist(),
            "mean": [numbers(row, 4) for row in means / widths],
            "spread": [numbers(row, 3) for row in spreads / widths],
        }
    return {
        "dominantBand": found.dominant_band,
        "dominantWavelength": number(found.dominant_wavelength),
        "dominance": number(found.dominance, 3),
        "standsOut": found.stands_out,
        "rms": numbers([band["rms"] for band in found.bands], 4),
        "wavelengths": numbers([band["wavelength"] for band in found.bands], 4),
        "curves": curves or None,
    }


def _phasors(files: RunFiles) -> Json | None:
    """Gradient phasors G(d) = i d C(d) e^{i d theta}, those of layers and heads added up, by the largest of a band."""
    found = files.result(Phasors)
    arrays = files.arrays("phasors") if found is not None else {}
    if found is None or not {"phasors_real", "phasors_imag", "distances", "frequencies"} <= arrays.keys():
        return None
    distances = arrays["distances"].astype(np.float64)
    phasors = arrays["phasors_real"] + 1j * arrays["phasors_imag"]
    turned = 1j * distances * phasors * np.exp(1j * distances * arrays["frequencies"][..., None])
    gradients = turned.reshape(-1, *turned.shape[-2:]).sum(0)
    resultant, total = gradients.sum(-1), abs(gradients).sum(-1)
    largest = abs(gradients).max(-1, keepdims=True)
    scaled = gradients / np.where(largest > 0, largest, 1.0)
    chosen = distance_edges(len(distances))[:-1] - 1
    theta = arrays["frequencies"].reshape(-1, gradients.shape[0])
    with np.errstate(divide="ignore"):
        wavelengths = 2 * math.pi / abs(theta.mean(0))
    return {
        "distances": [int(distances[at]) for at in chosen],
        "real": [numbers(row.round(4)) for row in scaled[:, chosen].real],
        "imaginary": [numbers(row.round(4)) for row in scaled[:, chosen].imag],
        "gradient": numbers(resultant.real, 4),
        "direction": numbers(np.angle(resultant), 4),
        "coherence": numbers(abs(resultant) / np.where(total > 0, total, 1.0), 4),
        "wavelengths": numbers(wavelengths, 4),
        "numSets": len(theta),
        "relativeError": number(found.relative_error, 2),
    }


def _ablation(files: RunFiles) -> Json | None:
    found = files.result(Ablation)
    if found is None:
        return None
    meanings: Json = {}
    for removal in found.removals:
        bars = meanings.setdefault(removal["meaning"], [])
        values = (removal["increase"], removal["standard_error"], removal["wavelength"])
        bars.append([removal["band"], *numbers(values, 4)])
    return {"loss": number(found.loss), "numDocuments": found.num_documents, "meanings": meanings}


def _needle(stem: str, found: Needle) -> Json:
    """A grid: depths by columns, which are distances or numbers of distractors."""
    columns = list(dict.fromkeys((cell["length"], cell["num_distractors"]) for cell in found.cells))
    depths = sorted({cell["depth"] for cell in found.cells if cell["depth"] is not None})
    fields = ("rate", "low", "high", "margin", "distractor_rate", "num_samples")
    grid: list[list[list[float | int | None] | None]] = [[None] * len(columns) for _ in depths]
    for cell in found.cells:
        if cell["depth"] is not None:
            row, column = depths.index(cell["depth"]), columns.index((cell["length"], cell["num_distractors"]))
            grid[row][column] = numbers((cell[name] for name in fields), 4)  # type: ignore[literal-required]
    return {
        "stem": stem,
        "long": "method" in found.settings,
        "way": found.settings.get("method"),
        "fields": list(fields),
        "columns": [list(column) for column in columns],
        "depths": depths,
        "cells": grid,
        "floor": sum(c["num_correct"] for c in found.cells) < 0.02 * sum(c["num_samples"] for c in found.cells),
    }


def _extrapolation(files: RunFiles) -> Json | None:
    found = files.result(Extrapolation)
    if found is None:
        return None
    curves: dict[tuple[str, str], Json] = {}
    for bin_ in found.by_position:
        key = (bin_["selection"], bin_["label"])
        curve = curves.setdefault(key, {"edges": [], "loss": []})
        curve["edges"].append((bin_["start"], bin_["stop"]))
        curve["loss"].append(number(bin_["loss"]))
    parts = ("in_distribution", "extrapolated", "full")
    ways = []
    for way in found.ways:
        curve = curves.get((way["selection"], way["label"]), {"edges": [], "loss": []})
        keep = np.unique(
            np.linspace(0, len(curve["loss"]) - 1, min(len(curve["loss"]), MAX_POINTS)).round().astype(int)
        )
        ways.append(
            {
                "selection": way["selection"],
                "label": way["label"],
                "way": way["method"],
                "temperature": way["temperature"],
                "numDocuments": way["num_documents"],
                "numTokens": way["num_tokens"],
                "numExtrapolated": way["num_extrapolated"],
                "perplexity": numbers((way[f"{part}_perplexity"] for part in parts), 6),  # type: ignore[literal-required]
                "edges": [curve["edges"][at] for at in keep],
                "loss": [curve["loss"][at] for at in keep],
            }
        )
    return {"trainLength": found.settings.get("train_length"), "to": found.settings.get("to"), "ways": ways}


def _provenance(files: RunFiles) -> Json:
    run = files.run
    start = run.starts[-1] if run.starts else {}
    recipe = {key: value for key, value in run.recipe.items() if key != "model"}
    model = run.recipe.get("model")
    return {
        "created": run.created,
        "numStarts": len(run.starts),
        "command": start.get("command"),
        "start": plain({key: value for key, value in start.items() if key not in ("command", "setup")}),
        "data": run.identity.get("data"),
        "initialFrequencies": run.identity.get("initial_frequencies"),
        "recipe": plain(recipe),
        "model": plain(model) if isinstance(model, dict) else {},
        "results": [_source(stem, found) for stem, found in files.results.items() if isinstance(found, RunResult)],
    }


def _source(stem: str, found: Result) -> Json:
    keys = ("date", "lerope", "commit", "torch", "gpu")
    return {"file": f"{stem}.json", **{key: plain(found.provenance.get(key)) for key in keys}}
