"""Run directories with evaluations, written as files: nothing is trained."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from lerope.results import Evaluation
from lerope.results.token_losses import loss_arrays
from tests.made_runs import made_recipe, make_run

HEADS = {"19M": 4, "52M": 8, "217M": 16}
LENGTH = 64
SETTINGS = {"documents": "validation", "fingerprint": "f" * 64, "length": LENGTH, "truncate": False}


def lengths(num_documents: int = 60) -> np.ndarray:
    """Tokens of each document; some take several windows, the fourth has none."""
    found = np.ceil(np.random.default_rng(0).lognormal(3.5, 0.8, num_documents)).astype(np.int64)
    found[3] = 0
    return found


def token_losses(seed: int, loss: float, num_tokens: int) -> np.ndarray:
    """Losses whose noise is the same for all methods of a seed, and whose mean is exactly what is asked for."""
    noise = np.random.default_rng(seed).standard_normal(num_tokens)
    return loss + noise - noise.mean()


def write_run(
    path: Path,
    encoding: str = "rope",
    seed: int = 42,
    losses: np.ndarray | float = 3.0,
    *,
    rung: str = "52M",
    data: str = "d" * 64,
    finished: bool = True,
    recipe: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    documents: np.ndarray | None = None,
) -> Path:
    """Writes run.json, results/eval.json and results/eval.safetensors; `losses` are of tokens, or their mean."""
    documents = lengths() if documents is None else documents
    num_tokens = int(documents.sum())
    values = token_losses(seed, losses, num_tokens) if isinstance(losses, float) else losses
    heads = HEADS[rung]
    changes = {"steps": 100 * heads, "batch_tokens": 1000, "row_length": 1000, "learning_rate": 0.01 / heads}
    made = made_recipe(rung, encoding, seed, **{**changes, **(recipe or {})})
    run = make_run(path, made, data, finished)
    ends = np.cumsum(documents)
    loss = float(values.mean())
    settings = {**SETTINGS, **(settings or {})}
    Evaluation(
        run=run.label,
        settings=settings,
        provenance={},
        num_documents=int((documents > 0).sum()),
        num_tokens=num_tokens,
        loss=loss,
        perplexity=math.exp(loss),
        document_mean_loss=loss,
        bits_per_byte=None,
        by_position=[],
    ).save_with(path / "results" / "eval.json", loss_arrays(values.astype(np.float32), ends, int(settings["length"])))
    return path


def write_study(folder: Path, losses: dict[tuple[str, str, int], float]) -> list[Path]:
    """Runs of (rung, method, seed) with the mean losses given."""
    return [
        write_run(folder / f"{rung}-{Path(method).stem}-{seed}", method, seed, loss, rung=rung)
        for (rung, method, seed), loss in losses.items()
    ]
