"""What was measured on documents and prompts."""

from lerope.report.collect import RunFiles
from lerope.report.curves import thinned
from lerope.report.payload.values import MAX_POINTS, Json, number, numbers
from lerope.report.words import asked, scored_on
from lerope.results import Evaluation, Extrapolation, Needle

_LOSSES = ("loss", "perplexity", "document_mean_loss", "bits_per_byte", "num_documents", "num_tokens")
_CELL = ("rate", "low", "high", "margin", "distractor_rate", "num_samples")


def evaluations(files: RunFiles) -> list[Json]:
    """Losses over documents: the usual evaluation first, then those of other documents or other cuts."""
    found = [(stem, result) for stem, result in files.results.items() if isinstance(result, Evaluation)]
    return [
        {
            "usual": stem == "eval",
            "on": scored_on(result),
            "fingerprint": result.settings["fingerprint"],
            **{name: number(getattr(result, name), 7) for name in _LOSSES},
        }
        for stem, result in sorted(found, key=lambda pair: pair[0] != "eval")
    ]


def needle(stem: str, found: Needle) -> Json:
    """A grid: depths by columns, which are distances or numbers of distractors."""
    columns = list(dict.fromkeys((cell["length"], cell["num_distractors"]) for cell in found.cells))
    depths = sorted({cell["depth"] for cell in found.cells if cell["depth"] is not None})
    grid: list[list[list[float | int | None] | None]] = [[None] * len(columns) for _ in depths]
    for cell in found.cells:
        if cell["depth"] is not None:
            row, column = depths.index(cell["depth"]), columns.index((cell["length"], cell["num_distractors"]))
            grid[row][column] = numbers((cell[name] for name in _CELL), 4)  # type: ignore[literal-required]
    return {
        "stem": stem,
        "long": "method" in found.settings,
        "asked": asked(found),
        "repeated": found.repeated,
        "fillerTokens": found.settings["num_filler_tokens"],
        "fields": list(_CELL),
        "columns": [list(column) for column in columns],
        "depths": depths,
        "cells": grid,
        "floor": found.at_floor,
    }


def extrapolation(files: RunFiles) -> Json | None:
    """Perplexity within and beyond the train length and loss by position, for each way and selection."""
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
        keep = thinned(len(curve["loss"]), MAX_POINTS) if curve["loss"] else ()
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
