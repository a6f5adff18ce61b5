"""Results in words for people."""

from typing import Any

from lerope.results import (
    Ablation,
    Bands,
    Beyond,
    Evaluation,
    Extrapolation,
    LearnedFrequencies,
    Needle,
    Phasors,
    Result,
    SlowestRemovals,
    Training,
)

WAYS = {
    "none": "naive",
    "pi": "PI",
    "ntk_by_parts": "NTK-by-parts",
    "yarn": "YaRN",
    "slow_bands": "slow bands",
    "dominant_band": "dominant band alone",
    "logits": "logits by position",
}
"""What methods of extension are called."""
_TITLES = {
    Training: "training",
    LearnedFrequencies: "frequencies",
    Bands: "what bands add to the logits",
    Ablation: "loss without one band",
    SlowestRemovals: "loss without the slowest bands",
    Beyond: "loss beyond the train length with frequencies set back",
    Phasors: "gradient phasors",
}
# Settings with these values go without saying.
_USUAL = {"precision": "float32", "filler": "python documentation", "documents": "validation"}


def scored_on(evaluation: Evaluation) -> str:
    """Which documents an evaluation covers, and how they were cut."""
    settings = evaluation.settings
    windows = f"{'first ' if settings.get('truncate') else ''}windows of {settings['length']:,} tokens"
    some = [f"the first {settings['max_tokens']:,} tokens"] if settings.get("max_tokens") else []
    swapped = [f"turned by {settings['encoding']}"] if settings.get("encoding") else []
    return ", ".join([str(settings["documents"]), windows, *some, *swapped, *_unusual(settings, "precision")])


def asked(needle: Needle) -> str:
    """How a needle test was made: how frequencies adapt, how many prompts, in which text."""
    settings = needle.settings
    how = [WAYS.get(settings["method"], settings["method"])] if "method" in settings else []
    samples = settings["samples"]
    how.append(f"{samples:,} prompt{'s' * (samples != 1)} per depth")
    return ", ".join(
        [*how, *(f"in {filler}" for filler in _unusual(settings, "filler")), *_unusual(settings, "precision")]
    )


def extension(method: str, temperature: float) -> str:
    """How frequencies adapt to long texts."""
    return WAYS[method] + (f", c = {temperature:g}" if temperature else "")


def title(result: Result) -> str:
    """What a result is about."""
    if isinstance(result, Evaluation):
        return f"loss on {scored_on(result)}"
    if isinstance(result, Needle):
        to = result.settings.get("to")
        return f"needles {f'up to {to:,} tokens' if to else 'among distractors'}, {asked(result)}"
    if isinstance(result, Extrapolation):
        settings = result.settings
        others = [*_unusual(settings, "documents"), *_unusual(settings, "precision")]
        return ", ".join([f"loss up to {settings['to']:,} tokens", *others])
    return _TITLES.get(type(result), result.kind)


def _unusual(settings: dict[str, Any], name: str) -> list[str]:
    """The value of a setting, where it does not go without saying."""
    value = settings.get(name, _USUAL[name])
    return [] if value == _USUAL[name] else [str(value)]
