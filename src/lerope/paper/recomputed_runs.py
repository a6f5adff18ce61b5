"""What the paper prints about single runs, seeds and dominant bands, recomputed from its own numbers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lerope.paper import numbers
from lerope.paper.printed import Entry, entry, printed_range
from lerope.scaling.multipliers import Floats
from lerope.scaling.wavelengths import wavelength_ratio


def entries() -> list[Entry]:
    """Every number in these tables, with its recomputation."""
    return [*_dominant_bands(), *_seeds(), *_claims(), *_gain_captured(), *_ablations()]


def _dominant_bands() -> list[Entry]:
    table, found = "dominant bands", []
    for run, (length, band, scale, frequency, wavelength, turn) in numbers.DOMINANT_BANDS.items():
        start = 10_000.0 ** (-2 * band / 64)
        found += [
            entry(table, f"{run}, frequency", frequency, _times(start), [scale]),
            entry(table, f"{run}, wavelength", wavelength, _divided(2 * math.pi / start), [scale]),
            entry(table, f"{run}, frequency * length", turn, _times(start * length), [scale]),
        ]
    lengths = [length for length, *_ in numbers.DOMINANT_BANDS.values()]
    wavelengths = [row[4] for row in numbers.DOMINANT_BANDS.values()]
    text = "wavelength / length"
    return [
        *found,
        entry(
            table,
            f"{text}, slope",
            numbers.WAVELENGTH_BY_LENGTH,
            lambda x: wavelength_ratio(lengths, x).slope,
            wavelengths,
        ),
        entry(
            table,
            f"{text}, mean of runs",
            numbers.WAVELENGTH_BY_LENGTH,
            lambda x: wavelength_ratio(lengths, x).mean,
            wavelengths,
        ),
    ]


def _seeds() -> list[Entry]:
    found = []
    for rung, methods in numbers.SEEDS.items():
        table, best = f"seeds, {rung}", methods["LeRoPE"][0]
        for method, (losses, mean, deviation, margin) in methods.items():
            ranges = _ranges(rung, method, losses)
            found += [
                entry(table, f"{method}, mean", mean, _mean, losses, ranges),
                entry(table, f"{method}, deviation", deviation, _deviation, losses, ranges),
            ]
            if margin is not None:
                pair = [*losses, *best], [*ranges, *_ranges(rung, "LeRoPE", best)]
                found.append(entry(table, f"{method} - LeRoPE", margin, _paired(_mean), *pair))
                if paired := numbers.PAIRED_DEVIATIONS.get((rung, method)):
                    found.append(entry(table, f"{method} - LeRoPE, deviation", paired, _paired(_deviation), *pair))
    return found


def _claims() -> list[Entry]:
    table, losses = "217M, in the text", {method: row[0] for method, row in numbers.SEEDS["217M"].items()}
    rope, best = losses["RoPE"], losses["LeRoPE"]

    def against(method: str) -> list[str]:
        return [*losses[method], *rope]

    captured = [*losses["b = 500k"], *rope, *best]
    degraded = [numbers.ABLATIONS["p-RoPE, p = 0.25"][1], numbers.SEEDS["217M"]["LeRoPE"][2]]
    seeds = numbers.SEEDS["217M"]
    gap, deviations = seeds["RoPE"][3], {method: seeds[method][2] for method in ("RoPE", "LeRoPE")}
    assert gap is not None
    given: dict[str, tuple[Callable[[Any], float], list[str]]] = {
        "b = 2048 - RoPE": (_paired(_mean), against("b = 2048")),
        "b = 500k - RoPE": (_paired(_mean), against("b = 500k")),
        "b = 500k, share of the gain": (lambda x: _share(x.reshape(3, 3).mean(1)), captured),
        "gap / LeRoPE's deviation": (_ratio, [gap, deviations["LeRoPE"]]),
        "gap / RoPE's deviation": (_ratio, [gap, deviations["RoPE"]]),
        "best RoPE - worst LeRoPE": (lambda x: x[:3].min() - x[3:].max(), [*rope, *best]),
        "p = 0.25 / LeRoPE's deviation": (_ratio, degraded),
    }
    return [entry(table, claim, printed, *given[claim]) for claim, printed in numbers.CLAIMS.items()]


def _gain_captured() -> list[Entry]:
    rope, reference = numbers.SEED_42_PERPLEXITY["217M", "RoPE"], numbers.SEED_42_PERPLEXITY["217M", "LeRoPE"]
    return [
        entry(
            "gain captured, %",
            method if index == 0 else f"{method}, in the text",
            printed,
            lambda x: 100 * _share(x),
            [numbers.SEED_42_PERPLEXITY["217M", method], rope, reference],
        )
        for method, texts in numbers.GAIN_CAPTURED.items()
        for index, printed in enumerate(texts)
    ]


def _ablations() -> list[Entry]:
    found = [
        entry(
            "loss of a perplexity",
            method,
            printed,
            lambda x: math.log(x[0]),
            [numbers.SEED_42_PERPLEXITY["217M", method]],
        )
        for method, printed in numbers.LOSS.items()
    ]
    for table, baseline, methods in (
        ("ablations", numbers.LOSS["RoPE"], numbers.ABLATIONS),
        ("code", numbers.CODE_ROPE, numbers.CODE),
    ):
        found += [
            entry(table, f"{method} - RoPE", printed, _paired(_mean), [loss, baseline])
            for method, (loss, printed) in methods.items()
        ]
    return found


def _ranges(rung: str, method: str, losses: Sequence[str]) -> list[tuple[float, float]]:
    """What losses of seeds 42, 43 and 44 may be before rounding; the first is tighter where its perplexity is known."""
    first, *others = (printed_range(text) for text in losses)
    if (rung, method) in numbers.SEED_42_PERPLEXITY:
        low, high = printed_range(numbers.SEED_42_PERPLEXITY[rung, method])
        first = max(first[0], math.log(low)), min(first[1], math.log(high))
    return [first, *others]


def _times(factor: float) -> Callable[[Floats], float]:
    return lambda x: float(factor * x[0])


def _divided(number: float) -> Callable[[Floats], float]:
    return lambda x: float(number / x[0])


def _mean(x: Floats) -> float:
    return float(x.mean())


def _deviation(x: Floats) -> float:
    return float(np.std(x, ddof=1))


def _ratio(x: Floats) -> float:
    return float(x[0] / x[1])


def _paired(function: Callable[[Floats], float]) -> Callable[[Floats], float]:
    """A function of the differences between the first half of its inputs and the second."""
    return lambda x: function(x[: len(x) // 2] - x[len(x) // 2 :])


def _share(x: Floats) -> float:
    """(baseline - method) / (baseline - reference) of method, baseline, reference."""
    return float((x[1] - x[0]) / (x[1] - x[2]))
