"""What a study will cost: training and `lerope eval`, but not needles and extrapolation."""

from dataclasses import dataclass
from pathlib import Path

from lerope.core.ladder import block_parameters, flops_per_token
from lerope.data.hub import VALIDATION_TOKENS
from lerope.launch.study import PlannedRun, Study

# `lerope eval` computes in float32, where A100, H100 and H200 reach a fifteenth of their bfloat16 peak: 19.5 of 312
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
    """What the hardware actually computes in training."""
    eval_tokens: int
    """Tokens that `lerope eval` scores."""
    eval_flops: int
    """The same in FLOPs, a third of training's per token. In float32."""


def run_costs(study: Study, validation_tokens: int = VALIDATION_TOKENS) -> list[RunCost]:
    """The cost of each run of a study, with a validation split of this many tokens."""
    costs = []
    for run in study.runs:
        recipe = run.recipe(Path())
        tokens = recipe.steps * recipe.batch_tokens
        each = flops_per_token(recipe.model, recipe.row_length)
        eval_tokens = _eval_tokens(run, validation_tokens)
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


def _eval_tokens(run: PlannedRun, validation_tokens: int) -> int:
    """All validation tokens for each `eval` of a run, up to its --max-tokens."""
    total = 0
    for command, *words in run.measure:
        if command == "eval":
            limit = int(words[words.index("--max-tokens") + 1]) if "--max-tokens" in words else validation_tokens
            total += min(limit, validation_tokens)
    return total
