"""The learning rates of a study's rungs: the paper's, or found by a search before anything else is trained."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lerope.core.ladder import LEARNING_RATE_INDEX, rung, total_parameters
from lerope.core.recipe import Setup
from lerope.launch.launcher import Launcher
from lerope.launch.study import PlannedRun, Study
from lerope.launch.sweep import SWEEP, Ahead, predict, sweep, training, training_by
from lerope.paper.numbers import SWEPT
from lerope.results import Sweep
from lerope.scaling.lr_search import learning_rate

METHOD = "rope"
"""The encoding used to search rates: all encodings of a rung share one rate, or runs would not be pairs."""
SWEEPS = "sweeps"
_LARGEST_SWEPT = total_parameters(rung(SWEPT[-1]))


def paper_rates(study: Study) -> str:
    """The indices a study uses where none were searched, as text."""
    names = dict.fromkeys(run.rung for run in study.runs if "learning_rate" not in run.changes)
    shown = ", ".join(f"{name} {LEARNING_RATE_INDEX[name]}" for name in names)
    return (
        f"learning rates 2^(-index/2), by index: {shown} (the paper's; search your own with --sweep)" if shown else ""
    )


def search_rates(
    study: Study, data: Path, out: Path, say: Callable[[str], None], launch: Launcher | None = None
) -> dict[str, float]:
    """The best learning rate of each rung of a study, from OUT/sweeps; trains what is missing.

    As in the paper, rungs up to 608M are swept, and larger ones follow from the line through those.

    Args:
        study: whose rungs.
        data: a folder that `lerope data prepare` wrote.
        out: the study's folder.
        say: prints a line for each run.
        launch: trains several at once; by default, this process does, one at a time.
    """
    found: list[Sweep] = []
    for name, first in _smallest_first(study):
        if total_parameters(rung(name)) > _LARGEST_SWEPT:
            continue
        changes = {field: value for field, value in first.changes.items() if field != "learning_rate"}
        ahead: Ahead | None = None
        if launch is None:
            settings, objective = training(name, data, first.seed, changes, Setup())
        else:
            settings, objective, ahead = training_by(launch, name, data, first.seed, changes)
        predicted = predict(found, [name])
        guess = predicted[0]["index"] if predicted else LEARNING_RATE_INDEX[name]
        say(f"{name}: searching for the learning rate, from index {guess}")
        found.append(sweep(out / SWEEPS / name, settings, [METHOD], guess, objective, say, ahead))
    return _rates(study, found)


def known_rates(study: Study, out: Path) -> dict[str, float]:
    """The same for finished searches; raises if one is unfinished."""
    names = [name for name, _ in _smallest_first(study) if total_parameters(rung(name)) <= _LARGEST_SWEPT]
    found = [Sweep.load(out / SWEEPS / name / SWEEP) for name in names]
    for name, each in zip(names, found, strict=True):
        if not each.optima:
            raise ValueError(f"{out / SWEEPS / name} is not finished; continue with `lerope ladder ... --sweep`.")
    return _rates(study, found)


def _smallest_first(study: Study) -> list[tuple[str, PlannedRun]]:
    """Rungs, each with the run to search with: the longest, and of equal ones that with the shortest rows.

    Those are the usual rows; a study of longer ones takes the rate of the usual ones, as the paper does.
    """
    first: dict[str, PlannedRun] = {}
    for run in sorted(study.runs, key=_longest_with_shortest_rows):
        first.setdefault(run.rung, run)
    return sorted(first.items(), key=lambda pair: total_parameters(rung(pair[0])))


def _longest_with_shortest_rows(run: PlannedRun) -> tuple[int, int]:
    recipe = run.recipe(Path())
    return -recipe.steps, recipe.row_length


def _rates(study: Study, found: Sequence[Sweep]) -> dict[str, float]:
    best = {each.settings.get("rung"): each.optima[0]["index"] for each in found}
    for name in best:
        if name not in LEARNING_RATE_INDEX:
            raise ValueError(f"{SWEEP}: settings.rung must be one of {', '.join(LEARNING_RATE_INDEX)}; got {name!r}.")
    rest = [name for name, _ in _smallest_first(study) if name not in best]
    best |= {each["rung"]: each["index"] for each in predict(found, rest)}
    return {name: learning_rate(best.get(name, LEARNING_RATE_INDEX[name])) for name, _ in _smallest_first(study)}
