"""What a study costs before any of it is spent: training, `lerope eval` and `lerope analyze`.

Not needles, extrapolation and phasors.
"""

from dataclasses import dataclass
from pathlib import Path

from lerope.core.ladder import compute, flops_per_token
from lerope.data.hub import VALIDATION_TOKENS
from lerope.launch.study import Command, PlannedRun, Study

# `lerope eval` and `lerope analyze` compute in float32, for which A100, H100 and H200 have a fifteenth of their
# bfloat16 peak: 19.5 of 312 and 67 of 989 TFLOP/s in NVIDIA's data sheets.
FLOAT32_SLOWDOWN = 15
ANALYZE_ROWS, ANALYZE_TOKENS = 64, 32_768
"""What `lerope analyze` reads for bands, and for each removal of some, unless told otherwise; more for removals where
32 documents have more."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of one run."""

    run: str
    rung: str
    row_length: int
    steps: int
    tokens: int
    compute: int
    """6 N_ne D, the paper's C."""
    flops: int
    """What the hardware actually computes in training."""
    eval_tokens: int
    """Tokens that `lerope eval` scores."""
    eval_flops: int
    """The same in FLOPs, a third of training's per token. In float32."""
    analyze_tokens: int
    """Tokens that `lerope analyze` reads, over all removals of bands."""
    analyze_flops: int
    """The same in FLOPs, in float32."""


def run_costs(study: Study, validation_tokens: int = VALIDATION_TOKENS) -> list[RunCost]:
    """The cost of each run of a study, with a validation split of this many tokens."""
    costs = []
    for run in study.runs:
        recipe = run.recipe(Path())
        tokens = recipe.num_tokens
        each = flops_per_token(recipe.model, recipe.row_length)
        eval_tokens = _eval_tokens(run, validation_tokens)
        analyze_tokens = sum(
            _analyze_tokens(command, recipe.row_length, recipe.model.head_dim // 2)
            for command in run.measure
            if command[0] == "analyze"
        )
        costs.append(
            RunCost(
                run=run.name,
                rung=run.rung,
                row_length=recipe.row_length,
                steps=recipe.steps,
                tokens=tokens,
                compute=compute(recipe.model, tokens),
                flops=each * tokens,
                eval_tokens=eval_tokens,
                eval_flops=each * eval_tokens // 3,
                analyze_tokens=analyze_tokens,
                analyze_flops=each * analyze_tokens // 3,
            )
        )
    return costs


def _eval_tokens(run: PlannedRun, validation_tokens: int) -> int:
    """All validation tokens for each `eval` of a run, up to its --max-tokens."""
    evals = (command for command in run.measure if command[0] == "eval")
    return sum(min(_option(command, "--max-tokens", validation_tokens), validation_tokens) for command in evals)


def _analyze_tokens(command: Command, row_length: int, num_bands: int) -> int:
    """Rows for bands; for each kind of removals the whole model, and two ways to be without for each band."""
    removals = (1 + 2 * num_bands) * _option(command, "--max-tokens", ANALYZE_TOKENS)
    parts = {
        "bands": _option(command, "--rows", ANALYZE_ROWS) * row_length,
        "ablation": removals,
        "slowest": removals,
    }
    asked = set(command) & parts.keys() if "--parts" in command else {"bands"}
    return sum(parts[part] for part in asked)


def _option(command: Command, name: str, default: int) -> int:
    return int(command[command.index(name) + 1]) if name in command else default
