"""What a study costs before any of it is spent: training and `lerope eval`, but not needles and extrapolation."""

from dataclasses import dataclass
from pathlib import Path

from lerope.launch.study import PlannedRun, Study
from lerope.model.accounting import block_parameters, flops_per_token

# About what C4's validation split has with a vocabulary of 32,000; `lerope eval` reads all of it.
VALIDATION_TOKENS = 160_000_000
# `lerope eval` computes in float32, for which A100, H100 and H200 have a fifteenth of their bfloat16 peak: 19.5 of 312
# and 67 of 989 TFLOP/s in NVIDIA's data sheets.
FLOAT32_SLOWDOWN = 15


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
    """What the hardware really has to do in training."""
    eval_tokens: int
    """Tokens that `lerope eval` scores."""
    eval_flops: int
    """The same in FLOPs, a third of those of training for each token. In float32."""


def run_costs(study: Study) -> list[RunCost]:
    """The cost of each run of a study."""
    costs = []
    for run in study.runs:
        recipe = run.recipe(Path())
        tokens = recipe.steps * recipe.batch_tokens
        each = flops_per_token(recipe.model, recipe.row_length)
        eval_tokens = _eval_tokens(run)
        costs.append(
            RunCost(
                run=run.name,
                rung=run.rung,
                row_length=recipe.row_length,
                steps=recipe.steps,
                tokens=tokens,
                compute=6 * block_parameters(recipe.model) * tokens,
                flops=each * tokens,
                eval_tokens=eval_tokens,
                eval_flops=each * eval_tokens // 3,
            )
        )
    return costs


def _eval_tokens(run: PlannedRun) -> int:
    """All validation tokens for each `eval` of a run, or as many as it is told to take."""
    total = 0
    for command, *words in run.measure:
        if command == "eval":
            limit = int(words[words.index("--max-tokens") + 1]) if "--max-tokens" in words else VALIDATION_TOKENS
            total += min(limit, VALIDATION_TOKENS)
    return total
