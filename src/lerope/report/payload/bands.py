"""What trained bands do: frequencies, contributions by distance, phasors, and the loss without one of them."""

import numpy as np

from lerope.report.bands import (
    dominant_band,
    frequency_history,
    gradient_phasors,
    mean_wavelengths,
    num_pairs,
    num_suppressed,
    rope_frequencies,
    turns,
)
from lerope.report.collect import RunFiles
from lerope.report.curves import distance_edges, thinned
from lerope.report.payload.values import Json, number, numbers
from lerope.results import Ablation, Bands, LearnedFrequencies, Phasors, SlowestRemovals

MAX_RECORDS = 120
"""Records of the frequencies through training."""
MAX_DISTANCES = 96
"""Points of a curve by distance."""


def frequencies(files: RunFiles) -> Json | None:
    """Wavelengths through training; where layers or heads have their own, their mean and extremes."""
    described, history = files.result(LearnedFrequencies), frequency_history(files)
    if history is None:
        return None
    chosen = thinned(len(history[0]), MAX_RECORDS)
    steps, values = history[0][chosen], history[1][chosen]
    _, num_sets, num_bands = values.shape
    every = turns(values)
    first = described.sets[0]["suppressed_from"] if described is not None and len(described.sets) == 1 else None
    return {
        "rope": numbers(turns(np.array(rope_frequencies(files, num_bands)))),
        "steps": steps.tolist(),
        "wavelengths": [numbers(row, 4) for row in mean_wavelengths(values)],
        "low": None if num_sets == 1 else [numbers(row, 4) for row in every.min(1)],
        "high": None if num_sets == 1 else [numbers(row, 4) for row in every.max(1)],
        "dominantBand": dominant_band(files),
        "suppressedFrom": first,
    }


def bands(files: RunFiles) -> Json | None:
    """What each band adds to the logits: means over groups of distances, each pair of tokens counted equally."""
    found = files.result(Bands)
    if found is None:
        return None
    arrays = files.arrays(Bands)
    curves = {}
    if {"mean", "std"} <= arrays.keys() and arrays["mean"].shape[-1] > 1:
        edges = distance_edges(arrays["mean"].shape[-1] - 1, MAX_DISTANCES)
        pairs = num_pairs(arrays["mean"].shape[-1])
        # The last group of reduceat runs to the end of the array, which is where the last edge is.
        counts = np.add.reduceat(pairs, edges[:-1])
        means, spreads = (
            np.add.reduceat(arrays[name] * pairs, edges[:-1], axis=1) / counts for name in ("mean", "std")
        )
        curves = {
            "edges": edges.tolist(),
            "mean": [numbers(row, 4) for row in means],
            "spread": [numbers(row, 2) for row in spreads],
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


def phasors(files: RunFiles) -> Json | None:
    """Gradient phasors, those of layers and heads added up, relative to the largest of a band."""
    found, measured = files.result(Phasors), gradient_phasors(files)
    if found is None or measured is None:
        return None
    distances, gradients, theta = measured
    resultant, total = gradients.sum(-1), abs(gradients).sum(-1)
    largest = abs(gradients).max(-1, keepdims=True)
    scaled = gradients / np.where(largest > 0, largest, 1.0)
    chosen = distance_edges(len(distances), MAX_DISTANCES)[:-1] - 1
    return {
        "distances": [int(distances[at]) for at in chosen],
        "real": [numbers(row.round(3)) for row in scaled[:, chosen].real],
        "imaginary": [numbers(row.round(3)) for row in scaled[:, chosen].imag],
        "gradient": numbers(resultant.real, 4),
        "direction": numbers(np.angle(resultant), 4),
        "coherence": numbers(abs(resultant) / np.where(total > 0, total, 1.0), 4),
        "wavelengths": numbers(turns(theta.mean(0)), 4),
        "numSets": len(theta),
        "relativeError": number(found.relative_error, 2),
    }


def ablation(files: RunFiles) -> Json | None:
    """Increases of the loss without one band, by meaning."""
    found = files.result(Ablation)
    if found is None:
        return None
    meanings: Json = {}
    for removal in found.removals:
        bars = meanings.setdefault(removal["meaning"], [])
        values = (removal["increase"], removal["standard_error"], removal["wavelength"])
        bars.append([removal["band"], *numbers(values, 4)])
    return {"loss": number(found.loss), "numDocuments": found.num_documents, "meanings": meanings}


def slowest(files: RunFiles) -> Json | None:
    """Increases of the loss without the slowest bands, from one of them to all, by meaning."""
    found = files.result(SlowestRemovals)
    if found is None:
        return None
    meanings = {
        meaning: [
            [removal["num_bands"], *numbers((removal["increase"], removal["standard_error"]), 4)]
            for removal in found.rows(meaning)
        ]
        for meaning in dict.fromkeys(removal["meaning"] for removal in found.removals)
    }
    return {"numDocuments": found.num_documents, "suppressed": num_suppressed(files), "meanings": meanings}
