"""The campaign's questions asked of the smallest model, in runs of a quarter of an hour on one core: repeated without
a GPU.

    lerope data prepare english-00.jsonl.xz --validation english-validation.jsonl.xz --vocab-size 2048 --out data/laptop
    lerope ladder results/laptop.py:effect --data data/laptop --out runs/laptop --archive results/laptop --at-once 2

Three layers, a window of 256 tokens, four million tokens. What is large shows here, such as the fall beyond the window;
whether the gain within it does is what `effect` asks.
"""

from dataclasses import replace
from typing import Any

from lerope.core.encoding import FROZEN
from lerope.launch.recipes import PROFILE
from lerope.launch.study import Command, PlannedRun, Study, grid, measured, with_options

WINDOW, HORIZON = 256, 1_024
SKIPPING = f"horizon={HORIZON}"
SEEDS = (42, 43, 44)
LENGTHS = (128, WINDOW, 512)
SETTING: dict[str, Any] = {
    "row_length": WINDOW,
    "batch_tokens": 8_192,
    "steps": 500,
    "precision": "bf16",
    "learning_rate": 2**-8,
    "frequency_learning_rate": 2**-5,
    "validation_tokens": 200_000,
}
"""Of every run. The learning rate is the best of 2^-5 to 2^-10 for RoPE at 200 steps, each half the one before. With it
a frequency could not get far in 500 steps, so frequencies have one of their own."""
EVAL_TOKENS, REACH_TOKENS = "600000", "100000"
REACH: Command = ("extrapolate", "--to", str(HORIZON), "--max-tokens", REACH_TOKENS)
FALL: Command = ("analyze", "--parts", "beyond", "--max-tokens", "60000")


def effect() -> Study:
    """Three pairs, also the source of the profile and of the reach."""
    runs = [run for seed in SEEDS for run in _runs(["rope", "lerope"], seed)]
    return _study("effect", "Is LeRoPE better than RoPE?", measured(runs, REACH))


def window() -> Study:
    """The same number of tokens in rows of three lengths."""
    runs = [_longer(run, length) for length in LENGTHS for run in _runs(["lerope"])]
    return _study("window", "Does the dominant wavelength follow the window?", runs)


def transfer() -> Study:
    """Learned frequencies of another seed, frozen."""
    frozen = PlannedRun(rung="demo", encoding=FROZEN, after="demo-lerope-43", changes=dict(SETTING))
    runs = [*_runs(["rope", "lerope"]), *_runs(["lerope"], 43), frozen]
    return _study("transfer", "Is the gain in the frequencies, or in learning them?", runs)


def horizon() -> Study:
    """What may keep learned frequencies from falling off: positions that skip while training, and constraints."""
    encodings = ["rope", "lerope", f"lerope,{SKIPPING}", f"rope,{SKIPPING}"]
    encodings += [f"lerope,{SKIPPING},horizon_from={begin}" for begin in (0.9, 0.8)]
    encodings.append(f"lerope,{SKIPPING},horizon_from=0.9,horizon_share=1")
    encodings.append(f"results.candidates:Gap,train_length={WINDOW},reach={HORIZON}")
    encodings.append(f"results.candidates:Slowed,train_length={WINDOW},reach={HORIZON}")
    encodings.append(f"results.candidates:WholeTurns,train_length={WINDOW}")
    encodings.append("results.candidates:WholeTokens")
    runs = measured(_runs(encodings), REACH)
    made = _study("horizon", "Can learned frequencies reach beyond the window?", runs)
    return replace(made, runs=[*made.runs, *map(_learned_on, runs[:2])])


def winner() -> Study:
    """The best of these, with three seeds."""
    encodings = ["rope", "lerope", *(f"lerope,{SKIPPING},horizon_from={begin}" for begin in (0.9, 0.8))]
    runs = [run for seed in SEEDS for run in _runs(encodings, seed)]
    return _study("winner", "Does it hold for other seeds?", measured(runs, REACH))


def _learned_on(run: PlannedRun) -> PlannedRun:
    """The same run with its rotation learned on in rows of four windows: an extension that is learned."""
    longer = {"row_length": HORIZON, "steps": 120, "learn": "rotation"}
    rates = {"learning_rate": 0.01, "frequency_learning_rate": 0.04}
    far, near = ("--truncate", "--max-tokens", REACH_TOKENS), ("--length", str(WINDOW), "--max-tokens", EVAL_TOKENS)
    return PlannedRun(
        rung="demo",
        encoding="lerope",
        after=run.name,
        changes={**SETTING, **longer, **rates},
        measure=(("eval", *far), ("eval", *near)),
    )


def _study(name: str, sentence: str, runs: list[PlannedRun]) -> Study:
    """Every run with its profile, evaluated on whole documents of 600,000 tokens; the fall is analyzed in one seed."""
    falls = [run.encoding.startswith("lerope") and REACH in run.measure and run.seed == SEEDS[0] for run in runs]
    runs = [measured([run], FALL)[0] if fall else run for run, fall in zip(measured(runs, PROFILE), falls, strict=True)]
    return with_options(Study(name=name, sentence=sentence, runs=runs), "eval", "--max-tokens", EVAL_TOKENS)


def _runs(encodings: list[str], seed: int = 42) -> list[PlannedRun]:
    return grid(["demo"], encodings, (seed,), **SETTING)


def _longer(run: PlannedRun, length: int) -> PlannedRun:
    """With rows of another length; the window's own run is that of `effect`."""
    if length == WINDOW:
        return run
    return replace(run, suffix=f"length{length}", changes={**run.changes, "row_length": length})
