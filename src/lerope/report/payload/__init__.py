"""What the page shows, as plain JSON values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lerope.core.run import METRICS
from lerope.core.run import provenance as made_now
from lerope.report.collect import Bundle, RunFiles
from lerope.report.groups import main_study
from lerope.report.measured import training_losses
from lerope.report.payload.bands import ablation, bands, frequencies, phasors, slowest
from lerope.report.payload.evaluation import evaluations, extrapolation, needle
from lerope.report.payload.study import comparison, gaps, methods, multipliers, notes, stopped, verdict
from lerope.report.payload.training import last_loss, progress, provenance
from lerope.report.payload.values import Json, curve
from lerope.results import Needle

MAX_TICKED = 12
"""Runs that are compared at a time."""
_DEFAULT_TICKED = 6


@dataclass(frozen=True)
class OneRun:
    """What the page shows of a run."""

    shown: Json
    """All but the `id` that tells it from others of the same name, the gap to another run, and whether it stopped."""
    losses: dict[int, float]
    """Training loss by step."""


def payload(bundle: Bundle, runs: Sequence[OneRun] | None = None, made: Json | None = None) -> Json:
    """Everything the page needs.

    Args:
        runs: what `run_payload` gave for the bundle's runs, where that is known already.
        made: when and with what the page is made; now unless given.
    """
    given = [run_payload(files) for files in bundle.runs] if runs is None else runs
    names = _names([files.run.path for files in bundle.runs])
    between = gaps(bundle, [run.losses for run in given])
    whole = [
        {**run.shown, "id": name, "gap": gap, "stopped": stopped(files.run)}
        for files, run, name, gap in zip(bundle.runs, given, names, between, strict=True)
    ]
    said, study = verdict(bundle), [files.run.path for files in main_study(bundle)]
    places = {path: place for place, path in enumerate(study)}
    # The study by size, encoding and seed, then all others as they were found.
    order = sorted(range(len(whole)), key=lambda at: places.get(bundle.runs[at].run.path, len(places)))
    shown = [whole[at] for at in order]
    found: Json = {
        "title": _title([run["id"] for run in shown]),
        "made": made or made_now(),
        "maxTicked": MAX_TICKED,
        "ticked": [names[at] for at in _ticked(bundle.runs, order, places, said.get("rung"))],
        "runs": shown,
        "methods": methods(bundle),
        "verdict": said,
        "comparison": comparison(bundle.comparison),
        "multipliers": multipliers(bundle),
        "notes": notes(bundle, [note for run in shown for note in run["notes"]]),
        "files": [],
        "missing": [],
    }
    return found


def run_payload(files: RunFiles) -> OneRun:
    """One run on its own."""
    run, recipe, metrics = files.run, files.run.recipe, files.metrics
    losses = training_losses(files)
    shown = {
        "name": run.name,
        "path": str(run.path),
        "method": recipe.spec.method,
        "rung": recipe.rung,
        "rungs": _rungs(files),
        "seed": recipe.seed,
        "trainLength": recipe.row_length,
        "finished": run.finished,
        "progress": progress(files),
        "loss": last_loss(files),
        "training": curve(losses),
        "validation": curve({record.step: record.validation_loss for record in metrics.validations}),
        "validationTokens": metrics.validations[-1].validation_tokens if metrics.validations else None,
        "evaluations": evaluations(files),
        "frequencies": frequencies(files),
        "bands": bands(files),
        "phasors": phasors(files),
        "ablation": ablation(files),
        "slowest": slowest(files),
        "needles": [needle(stem, found) for stem, found in files.results.items() if isinstance(found, Needle)],
        "extrapolation": extrapolation(files),
        "provenance": provenance(files),
        "notes": [f"{run.path / METRICS} has {metrics.num_damaged:,} damaged lines."] if metrics.num_damaged else [],
    }
    return OneRun(shown, losses)


def _rungs(files: RunFiles) -> list[str]:
    """What a comparison may call the run's rung."""
    recipe = files.run.recipe
    return [recipe.rung, f"{recipe.rung}, {recipe.steps:,} steps"]


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names; of those alike, all but the topmost with as many folders above as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    found = []
    for own in parts:
        depths = sorted(len(other) for other in parts if other[-1] == own[-1])
        highest = len(own) == depths[0] and depths.count(len(own)) == 1
        length = 1
        while not highest and length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        found.append("/".join(own[-length:]))
    return found


def _title(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _ticked(runs: Sequence[RunFiles], order: Sequence[int], study: Collection[Path], rung: str | None) -> list[int]:
    """Runs being watched, then those of the verdict's rung, then others of the study: those with the most to show."""

    def place(at: int) -> tuple[bool, bool, bool, int]:
        files = runs[at]
        aside = files.run.path not in study
        return files.run.finished, aside, rung not in _rungs(files), -len(files.results)

    chosen = sorted(order, key=place)[:_DEFAULT_TICKED]
    return [at for at in order if at in chosen]
