"""Runs without their weights: small enough for git, and all that comparisons, reports and presets read.

An archive is a run directory with less in it: no checkpoints, weights or tokenizer, no loss of single tokens, one
training step in ten, no losses by single positions beyond the train length, and arrays in float32 (curves of bands in
float16) but for the sums that differences are taken of.
"""

import json
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from lerope.core.files import read_lines, whole
from lerope.core.run import (
    CONFIG,
    FREQUENCIES,
    HISTORY,
    METRICS,
    MODEL,
    RESULTS,
    RUN,
    WEIGHTS,
    Run,
    finished_run,
    is_run,
    read_run,
)
from lerope.results import Bands, Evaluation, Extrapolation, RunResult, load_result
from lerope.results.base import Arrays
from lerope.results.token_losses import SUMS, TOKENS

STEPS_APART = 10
# Arrays that no command reads, or that say more exactly what is in the result itself.
_LEFT_OUT: dict[type[RunResult], tuple[str, ...]] = {
    Evaluation: TOKENS,
    Bands: ("contributions",),
    Extrapolation: ("*.sums", "*.counts"),
}


def archive(path: Path, out: Path) -> Path:
    """Writes the archive of a finished run into the folder `out`, whole or not at all; returns its folder.

    An earlier archive of the same training is replaced.
    """
    run = finished_run(path)
    target = out / run.path.resolve().name
    if is_run(target):
        if target.resolve() == run.path.resolve():
            raise ValueError(f"out must be another folder than that of {run.path}; got {out}.")
        if read_run(target).digest != run.digest:
            raise ValueError(f"{target} has a different run than {run.path}; rename one of them or use another --out.")
        if (target / MODEL / WEIGHTS).exists():
            raise ValueError(f"{target} is the run itself, with its weights; use another --out.")
    run.check_model(CONFIG, FREQUENCIES)
    out.mkdir(parents=True, exist_ok=True)
    with whole(target) as partial:
        (partial / MODEL).mkdir(parents=True)
        (partial / RESULTS).mkdir()
        for name in (RUN, HISTORY, f"{MODEL}/{CONFIG}", f"{MODEL}/{FREQUENCIES}"):
            if (run.path / name).is_file():
                shutil.copyfile(run.path / name, partial / name)
        _thin_metrics(run, partial / METRICS)
        for file in sorted(run.results.glob("*.json")):
            _copy_result(file, partial / RESULTS / file.name)
    return target


def _thin_metrics(run: Run, target: Path) -> None:
    """All validations, the first and last step, and one in ten between."""
    kept = []
    for record in filter(None, read_lines(run.path / METRICS)):
        step = record.get("step")
        at_end = step in (1, run.recipe.steps)
        if "validation_loss" in record or at_end or (isinstance(step, int) and step % STEPS_APART == 0):
            kept.append(json.dumps(record) + "\n")
    target.write_text("".join(kept), encoding="utf-8")


def _copy_result(file: Path, target: Path) -> None:
    """A result with smaller arrays; any other file, such as the note of what is measured, as it is."""
    result = None if file.name.startswith(".") else load_result(file)
    if not isinstance(result, RunResult) or result.arrays_sha256 is None:
        shutil.copyfile(file, target)
        return
    # An evaluation of an earlier version has only tokens, and nothing would be left of it.
    with result.open_arrays(file, *(SUMS if isinstance(result, Evaluation) else ())) as arrays:
        found = {name: arrays.get_tensor(name) for name in arrays.keys()}  # noqa: SIM118
    if smaller := _smaller(type(result), found):
        result.save_with(target, smaller)
    else:
        replace(result, arrays_sha256=None).save(target)


def _smaller(kind: type[RunResult], arrays: Arrays) -> Arrays:
    floats = np.float64 if kind is Evaluation else np.float16 if kind is Bands else np.float32
    left_out = _LEFT_OUT.get(kind, ())
    return {
        name: array.astype(floats) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in arrays.items()
        if not any(fnmatchcase(name, pattern) for pattern in left_out)
    }
