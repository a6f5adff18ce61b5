"""Sizes for a laptop: what `lerope demo` trains, and a small version of any study."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from lerope.core.ladder import rung
from lerope.launch.study import Command, PlannedRun, Study, shortened

VOCAB_SIZE = 2_048
# What two cores can do in a few minutes. For so few steps, small batches, a low learning rate and little decay work
# best.
STEPS = 300
RECIPE: dict[str, Any] = {"row_length": 256, "batch_tokens": 2_048, "learning_rate": 2**-8, "weight_decay": 1.0}
# What a GPU can do in about the same time.
CUDA_STEPS = 600
CUDA_RECIPE: dict[str, Any] = {
    "row_length": 512,
    "batch_tokens": 32_768,
    "learning_rate": 2**-7,
    "weight_decay": 4.0,
    "vocab_size": VOCAB_SIZE,
}
STUDY_STEPS = 100
# Options of small measurements; short rows hold few needles.
_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "eval": {"--max-tokens": ("32768",)},
    "extrapolate": {"--max-tokens": ("32768",)},
    "needle": {"--samples": ("2",), "--distractors": ("1", "3")},
    "analyze": {"--rows": ("4",), "--phasor-rows": ("1",), "--max-tokens": ("2048",)},
}


def in_small(study: Study, steps: int = STUDY_STEPS) -> Study:
    """Any study at laptop size: the same runs, seeds and measurements with models of the rung `demo`.

    Every length is an eighth of the original and a batch has 2,048 tokens. The largest rung takes `steps` steps and
    the others in proportion to their layers, so that rungs differ in compute; rung names become part of run names.
    """
    names: dict[str, str] = {}
    runs = []
    for run in study.runs:
        small = _small_run(run, steps, names)
        names[run.name] = small.name
        runs.append(small)
    return replace(study, runs=runs)


def sized(study: Study, demo: bool, steps: int | None) -> Study:
    """A study as is, its small version, or with a different number of steps."""
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be a positive whole number; got {steps}.")
    if demo:
        return in_small(study, steps or STUDY_STEPS)
    return study if steps is None else shortened(study, steps)


def _small_run(run: PlannedRun, steps: int, names: dict[str, str]) -> PlannedRun:
    full = run.recipe(Path())
    count = max(1, math.ceil(steps * full.model.num_layers / rung("2.52B").num_layers))
    changes = {
        **RECIPE,
        "validation_tokens": 1 << 14,
        **{key: value for key, value in run.changes.items() if key != "vocab_size"},
        "row_length": full.row_length // 8,
        "batch_tokens": RECIPE["batch_tokens"],
        "steps": count,
    }
    changes["weight_decay"] = min(float(changes["weight_decay"]), count / 10)
    changes.pop("warmup_steps", None)
    after = None if run.after is None else names[run.after]
    suffix = "-".join(filter(None, (run.rung, run.suffix)))
    measure = tuple(_small_command(each) for each in run.measure)
    return replace(run, rung="demo", changes=changes, suffix=suffix, after=after, measure=measure)


def _small_command(measurement: Command) -> Command:
    """Numbers of 1,024 and more are lengths, also divided by 8; less is measured, unless the command says how much."""
    command, *words = [str(int(w) // 8) if w.isdecimal() and int(w) >= 1024 else w for w in measurement]
    options = _OPTIONS.get(command, {})
    if "--to" in words:
        options = {option: values for option, values in options.items() if option != "--distractors"}
    extra = [word for option, values in options.items() if option not in words for word in (option, *values)]
    return (command, *words, *extra)
