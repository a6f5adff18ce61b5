"""The paper's studies by name. Copy one, change it, and run yours with `lerope ladder my_study.py:my_study`."""

from collections.abc import Callable

from lerope.core.checks import hint
from lerope.core.encoding import FROZEN
from lerope.launch.study import Command, PlannedRun, Study, grid, measured, own_study
from lerope.paper.numbers import RUNGS

ENCODINGS = ("rope", "prope", "lerope")
SEEDS = (42, 43, 44)
LENGTHS = (4096, 8192)

# What figures of learned frequencies need, and what those of the largest models need in addition.
PROFILE: Command = ("analyze", "--parts", "frequencies", "bands")
EVERYTHING: Command = ("analyze", "--parts", "frequencies", "bands", "ablation", "slowest", "phasors")


def main() -> Study:
    """The paper's perplexity table, the source of its compute multipliers, and its analysis of frequencies."""
    runs = measured(grid(RUNGS[:-1], ENCODINGS), PROFILE) + measured(grid(RUNGS[-1:], ENCODINGS), EVERYTHING)
    return Study(name="main", sentence="Does LeRoPE save compute at every size?", runs=runs)


def seeds() -> Study:
    """The appendix's table of seeds."""
    runs = grid(["217M"], ["rope,base=2048", "rope", "rope,base=500000", "lerope"], SEEDS)
    runs += grid(["608M"], ["rope", "lerope"], SEEDS)
    runs = measured(runs, PROFILE)
    return Study(name="seeds", sentence="Is the gain larger than the effect of a seed?", runs=runs)


def base() -> Study:
    """Bases other than 10,000: the training length, and the base of long-context models."""
    runs = grid(["217M"], ["rope,base=2048", "rope", "rope,base=500000", "lerope"])
    return Study(name="base", sentence="Would another base of RoPE do as well?", runs=runs)


def p() -> Study:
    """How many bands p-RoPE rotates."""
    runs = grid(["217M"], ["rope", "prope,p=0.25", "prope,p=0.5", "prope,p=0.75"])
    return Study(name="p", sentence="What share of the bands should p-RoPE rotate?", runs=runs)


def parametrization() -> Study:
    """What is learned: a log-scale, a scale or the frequency itself."""
    runs = grid(["217M"], ["rope", "lerope", "lerope,parametrization=linear", "lerope,parametrization=direct"])
    runs = measured(runs, PROFILE)
    return Study(name="parametrization", sentence="Does it matter how frequencies are learned?", runs=runs)


def sharing() -> Study:
    """The paper has the first and last of the four ways to share; the two in between are added here."""
    ways = [f"lerope,sharing={way}" for way in ("layer", "head", "layer_head")]
    runs = measured(grid(["217M"], ["rope", "lerope", *ways]), PROFILE)
    return Study(name="sharing", sentence="Should layers or heads have frequencies of their own?", runs=runs)


def fixed() -> Study:
    """Fixed LeRoPE: frequencies that LeRoPE learned with another seed, frozen."""
    runs = [
        *grid(["217M"], ENCODINGS),
        PlannedRun(rung="217M", encoding="lerope", seed=43),
        PlannedRun(rung="217M", encoding=FROZEN, after="217M-lerope-43"),
    ]
    runs = measured(runs, PROFILE)
    return Study(name="fixed", sentence="Is the gain in the frequencies, or in learning them?", runs=runs)


def lengths() -> Study:
    """LeRoPE with rows of 2,048, 4,096 and 8,192 tokens."""
    runs = measured(_lengths(["lerope"]), PROFILE)
    return Study(name="lengths", sentence="How do learned frequencies follow the training length?", runs=runs)


def code() -> Study:
    """The Python part of the StarCoder data, with its own tokenizer."""
    runs = measured([*grid(["217M"], ["rope", "prope"]), *_lengths(["lerope"])], PROFILE)
    sentence = "Does what holds for English hold for Python code?"
    return Study(name="code", sentence=sentence, runs=runs, source="hf:starcoder")


def extrapolation() -> Study:
    """The largest models on documents of twice their training length."""
    runs = measured(grid(["2.52B"], ENCODINGS), PROFILE, ("extrapolate", "--to", "4096"))
    return Study(name="extrapolation", sentence="What happens beyond the training length?", runs=runs)


def needle() -> Study:
    """Retrieval with the largest models: among distractors, and of one needle in up to 32k tokens."""
    runs = measured(grid(["2.52B"], ENCODINGS), ("needle",), ("needle", "--to", "32768"))
    return Study(name="needle", sentence="Does retrieval from the context improve?", runs=runs)


STUDIES: dict[str, Callable[[], Study]] = {
    study.__name__: study
    for study in (main, seeds, base, p, parametrization, sharing, fixed, lengths, code, extrapolation, needle)
}


def study_named(spec: str) -> Study:
    """A study by its name here, or your own as `path/to/file.py:function` or `module:function`."""
    if spec in STUDIES:
        return STUDIES[spec]()
    if ":" not in spec:
        known = f"one of {', '.join(STUDIES)}, or your own file.py:function"
        raise ValueError(f"study must be {known}; got {spec!r}{hint(spec, STUDIES)}")
    return own_study(spec)


def _lengths(encodings: list[str]) -> list[PlannedRun]:
    """Runs with rows of the usual length and of longer ones."""
    runs = grid(["217M"], encodings)
    for length in LENGTHS:
        runs += grid(["217M"], encodings, suffix=f"length{length}", row_length=length)
    return runs
