"""How a run was trained and how far it got: curves, progress, provenance."""

from dataclasses import asdict

from lerope.report.collect import RunFiles
from lerope.report.measured import loss
from lerope.report.payload.values import Json, number, plain
from lerope.report.words import title
from lerope.results import RunResult

_RATE_STEPS = 50


def progress(files: RunFiles) -> Json:
    """Where training is; the time left from the speed of the last steps."""
    recipe, last = files.run.recipe, files.metrics.steps[-_RATE_STEPS:]
    step = last[-1].step if last else 0
    each = sum(record.seconds for record in last) / len(last) if last else None
    tokens = files.run.starts[-1].num_data_tokens if files.run.starts else None
    return {
        "step": step,
        "steps": recipe.steps,
        "epochs": number(recipe.num_tokens / tokens, 3) if tokens else None,
        "loss": number(last[-1].loss) if last else None,
        "validationLoss": number(files.metrics.validation_loss),
        "tokensPerSecond": number(last[-1].tokens_per_second, 3) if last else None,
        "secondsLeft": None if each is None else number(each * (recipe.steps - step), 3),
    }


def last_loss(files: RunFiles) -> Json:
    """The one loss that a run is known by, and what it is of: whole documents, or validation while it trained."""
    evaluated = files.evaluation is not None
    value = loss(files)
    return {
        "value": number(files.metrics.validation_loss if value is None else value, 7),
        "of": "evaluation" if evaluated else "validation",
    }


def provenance(files: RunFiles) -> Json:
    """Where a run and its results come from."""
    run = files.run
    start = asdict(run.starts[-1]) if run.starts else {}
    recipe = asdict(run.recipe)
    model = recipe.pop("model")
    return {
        "created": run.created,
        "numStarts": len(run.starts),
        "command": start.get("command"),
        "start": plain({key: value for key, value in start.items() if key not in ("command", "setup")}),
        "data": run.identity.data,
        "initialFrequencies": run.identity.initial_frequencies,
        "recipe": plain(recipe),
        "model": plain(model),
        "results": [_source(stem, found) for stem, found in files.results.items() if isinstance(found, RunResult)],
    }


def _source(stem: str, found: RunResult) -> Json:
    keys = ("date", "lerope", "commit", "torch", "gpu")
    return {"title": title(found), "file": f"{stem}.json", **{key: plain(found.provenance.get(key)) for key in keys}}
