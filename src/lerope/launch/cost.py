"""What a study costs before any of it is spent; its measurements, a small part, are not counted."""

from dataclasses import dataclass
from pathlib import Path

from lerope.launch.study import Study
from lerope.model.accounting import block_parameters, flops_per_token


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of training one run."""

    run: str
    rung: str
    row_length: int
    steps: int
    tokens: int
    compute: int
    """6 N_ne D, the paper's C."""
    flops: int
    """What the hardware really has to do."""


def run_costs(study: Study) -> list[RunCost]:
    """The cost of each run of a study."""
    costs = []
    for run in study.runs:
        recipe = run.recipe(Path())
        tokens = recipe.steps * recipe.batch_tokens
        costs.append(
            RunCost(
                run=run.name,
                rung=run.rung,
                row_length=recipe.row_length,
                steps=recipe.steps,
                tokens=tokens,
                compute=6 * block_parameters(recipe.model) * tokens,
                flops=flops_per_token(recipe.model, recipe.row_length) * tokens,
            )
        )
    return costs
