"""What the LeRoPE paper prints about single runs, seeds and dominant bands, recomputed from its own numbers."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from lerope.scaling.multipliers import Floats
from lerope.scaling.printed import Entry, entry, printed_range
from lerope.scaling.wavelengths import wavelength_ratio

# Run: training length, dominant band, exp(alpha), frequency, wavelength, frequency * length.
DOMINANT_BANDS = {
    "217M, 2048": (2048, 16, "0.1481", "0.001481", "4243.3", "3.033"),
    "217M, 4096": (4096, 18, "0.1178", "0.000663", "9481.7", "2.714"),
    "217M, 8192": (8192, 19, "0.0823", "0.000347", "18097.8", "2.844"),
    "608M, 2048": (2048, 17, "0.1945", "0.001459", "4307.8", "2.987"),
    "1.34B, 2048": (2048, 17, "0.1955", "0.001466", "4285.6", "3.003"),
    "2.52B, 2048": (2048, 17, "0.2009", "0.001507", "4170.3", "3.086"),
}
# Loss with seeds 42, 43, 44, their mean and standard deviation, and how far the mean is behind LeRoPE.
SEEDS = {
    "217M": {
        "b = 2048": (("2.9107", "2.9100", "2.9137"), "2.9115", "0.0020", "0.0134"),
        "RoPE": (("2.9035", "2.9050", "2.9053"), "2.9046", "0.0010", "0.0066"),
        "b = 500k": (("2.8996", "2.8997", "2.9031"), "2.9008", "0.0020", "0.0027"),
        "LeRoPE": (("2.8978", "2.8963", "2.9001"), "2.8981", "0.0019", None),
    },
    "608M": {
        "RoPE": (("2.6304", "2.6290", "2.6288"), "2.6294", "0.0009", "0.0040"),
        "LeRoPE": (("2.6253", "2.6250", "2.6257"), "2.6254", "0.0004", None),
    },
}
# Standard deviations of the differences to LeRoPE, seed by seed.
PAIRED_DEVIATIONS = {
    ("217M", "RoPE"): "0.0019",
    ("217M", "b = 500k"): "0.0008",
    ("608M", "RoPE"): "0.0010",
}
# Perplexities of seed 42, which say more of these losses than four digits do.
PERPLEXITY = {
    ("217M", "RoPE"): "18.2377",
    ("217M", "p-RoPE"): "18.2269",
    ("217M", "Fixed LeRoPE"): "18.1714",
    ("217M", "LeRoPE"): "18.1335",
    ("608M", "RoPE"): "13.8795",
    ("608M", "LeRoPE"): "13.8093",
}
LOSS = {"RoPE": "2.9035", "p-RoPE": "2.9029", "Fixed LeRoPE": "2.8999", "LeRoPE": "2.8978"}
GAIN_CAPTURED = {"p-RoPE": ("10.4",), "Fixed LeRoPE": ("63.6", "63")}
# Loss and difference to RoPE, 217M.
ABLATIONS = {
    "b = 2048": ("2.9107", "0.0073"),
    "b = 500k": ("2.8996", "-0.0039"),
    "p-RoPE, p = 0.25": ("2.9208", "0.0173"),
    "p-RoPE, p = 0.5": ("2.9029", "-0.0006"),
    "p-RoPE, p = 0.75": ("2.9029", "-0.0006"),
    "LeRoPE": ("2.8978", "-0.0057"),
    "LeRoPE, linear": ("2.8978", "-0.0057"),
    "LeRoPE, direct": ("2.8980", "-0.0055"),
    "LeRoPE, per layer and head": ("2.8996", "-0.0039"),
    "Fixed LeRoPE": ("2.8999", "-0.0036"),
}
CODE_ROPE = "1.2501"
CODE = {"p-RoPE": ("1.2495", "-0.0006"), "LeRoPE": ("1.2398", "-0.0104")}


def entries() -> list[Entry]:
    """Every number of these tables beside its recomputation."""
    return [*_dominant_bands(), *_seeds(), *_claims(), *_gain_captured(), *_ablations()]


def _dominant_bands() -> list[Entry]:
    table, found = "dominant bands", []
    for run, (length, band, scale, frequency, wavelength, turn) in DOMINANT_BANDS.items():
        start = 10_000.0 ** (-2 * band / 64)
        found += [
            entry(table, f"{run}, frequency", frequency, _times(start), [scale]),
            entry(table, f"{run}, wavelength", wavelength, _divided(2 * math.pi / start), [scale]),
            entry(table, f"{run}, frequency * length", turn, _times(start * length), [scale]),
        ]
    lengths = [length for length, *_ in DOMINANT_BANDS.values()]
    wavelengths = [row[4] for row in DOMINANT_BANDS.values()]
    text = "wavelength / length"
    return [
        *found,
        entry(table, f"{text}, slope", "2.205", lambda x: wavelength_ratio(lengths, x).slope, wavelengths),
        entry(table, f"{text}, mean of runs", "2.205", lambda x: wavelength_ratio(lengths, x).mean, wavelengths),
    ]


def _seeds() -> list[Entry]:
    found = []
    for rung, methods in SEEDS.items():
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
                if paired := PAIRED_DEVIATIONS.get((rung, method)):
                    found.append(entry(table, f"{method} - LeRoPE, deviation", paired, _paired(_deviation), *pair))
    return found


def _claims() -> list[Entry]:
    table, losses = "217M, in the text", {method: row[0] for method, row in SEEDS["217M"].items()}
    rope, best = losses["RoPE"], losses["LeRoPE"]

    def against(method: str) -> list[str]:
        return [*losses[method], *rope]

    captured = [*losses["b = 500k"], *rope, *best]
    degraded = [ABLATIONS["p-RoPE, p = 0.25"][1], SEEDS["217M"]["LeRoPE"][2]]
    return [
        entry(table, "b = 2048 - RoPE", "0.0069", _paired(_mean), against("b = 2048")),
        entry(table, "b = 500k - RoPE", "-0.0038", _paired(_mean), against("b = 500k")),
        entry(table, "b = 500k, share of the gain", "0.6", lambda x: _share(x.reshape(3, 3).mean(1)), captured),
        entry(table, "gap / LeRoPE's deviation", "3", _ratio, ["0.0066", "0.0019"]),
        entry(table, "gap / RoPE's deviation", "7", _ratio, ["0.0066", "0.0010"]),
        entry(table, "best RoPE - worst LeRoPE", "0.0034", lambda x: x[:3].min() - x[3:].max(), [*rope, *best]),
        entry(table, "p = 0.25 / LeRoPE's deviation", "9", _ratio, degraded),
    ]


def _gain_captured() -> list[Entry]:
    rope, reference = PERPLEXITY["217M", "RoPE"], PERPLEXITY["217M", "LeRoPE"]
    return [
        entry(
            "gain captured, %",
            method if index == 0 else f"{method}, in the text",
            printed,
            lambda x: 100 * _share(x),
            [PERPLEXITY["217M", method], rope, reference],
        )
        for method, texts in GAIN_CAPTURED.items()
        for index, printed in enumerate(texts)
    ]


def _ablations() -> list[Entry]:
    found = [
        entry("loss of a perplexity", method, printed, lambda x: math.log(x[0]), [PERPLEXITY["217M", method]])
        for method, printed in LOSS.items()
    ]
    for table, baseline, methods in (("ablations", LOSS["RoPE"], ABLATIONS), ("code", CODE_ROPE, CODE)):
        found += [
            entry(table, f"{method} - RoPE", printed, _paired(_mean), [loss, baseline])
            for method, (loss, printed) in methods.items()
        ]
    return found


def _ranges(rung: str, method: str, losses: Sequence[str]) -> list[tuple[float, float]]:
    """What losses of seeds 42, 43 and 44 may be before rounding; the first is known better where it is a perplexity."""
    first, *others = (printed_range(text) for text in losses)
    if (rung, method) in PERPLEXITY:
        low, high = printed_range(PERPLEXITY[rung, method])
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
