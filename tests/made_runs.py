"""Run directories as files, without training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lerope.core.ladder import ModelConfig
from lerope.core.recipe import Recipe, recipe
from lerope.core.run import Identity, Run, Start

START = Start(
    date="2026-01-02T03:04:05+00:00",
    lerope="0.1.0",
    commit="a" * 40,
    python="3.12.0",
    platform="Linux",
    torch="2.13.0",
    gpu=None,
    num_threads=2,
    command="lerope train 52M",
    data="data/my-text",
    sources=["my-text/"],
    code_share=0.0,
    setup={},
    num_ranks=1,
    device="cpu",
    micro_batch_rows=1,
    num_data_tokens=100_000_000,
)


def made_recipe(rung: str, encoding: str, seed: int, model: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """A rung's recipe with any fields changed, the model's too."""
    found = recipe(rung, encoding, seed, **changes)
    return replace(found, model=ModelConfig(**{**vars(found.model), **(model or {})}))


def make_run(path: Path, made: Recipe, data: str, finished: bool = True, **start: Any) -> Run:
    """Writes run.json; `start` are fields of the only start that differ from START."""
    identity = Identity(recipe=made, data=data, initial_frequencies=made.encoding)
    run = Run(path, identity, finished, f"created {path.name}", [replace(START, **start)])
    (path / "results").mkdir(parents=True, exist_ok=True)
    run.save()
    return run
