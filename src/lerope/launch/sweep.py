"""A learning-rate search as a folder of runs, OUT/ENCODING/lr-INDEX, and sweep.json with their losses."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lerope.core.encoding import EncodingSpec
from lerope.core.files import as_type, differences
from lerope.core.ladder import ModelConfig, rung, total_parameters
from lerope.core.locks import locked
from lerope.core.recipe import Setup, recipe
from lerope.core.run import DIVERGED, is_run, provenance, read_metrics, read_run
from lerope.core.signals import Stopped
from lerope.data.shards import Corpus
from lerope.launch.launcher import Launcher
from lerope.launch.study import PlannedRun, Study
from lerope.results import LearningRateOptimum, LearningRatePrediction, Sweep, Trial
from lerope.scaling.lr_search import fit_grid, learning_rate, next_index, optimum, upcoming

SWEEP = "sweep.json"
# Runs at once where there is a cluster: a guess and its two neighbours, with which a right guess is known to be one.
_AT_ONCE = 3

Objective = Callable[[str, int, Path], float]
"""Loss of an encoding at an index, given the folder for its run; inf if it diverged. Raises Stopped on request."""


Ahead = Callable[[str, Mapping[int, Path]], None]
"""Is told of an encoding's indices and folders before the first of them is asked for; the others may be, next."""


def sweep(
    out: Path,
    settings: dict[str, Any],
    encodings: Sequence[str],
    start: int | None,
    objective: Objective,
    say: Callable[[str], None] = print,
    ahead: Ahead | None = None,
) -> Sweep:
    """Searches for each encoding's best learning rate, one run at a time; known results are not run again.

    Args:
        out: the sweep's folder; a folder of another sweep is refused.
        settings: what determines the losses besides encoding and learning rate.
        encodings: each is searched separately, all but the first from the previous one's best index.
        start: a guess for the first encoding's index; None if there is none.
        objective: trains.
        say: prints a line for each run.
        ahead: trains several at once. What is found does not depend on it: a run that was not asked for in the end
            does not count.
    """
    encodings = [EncodingSpec.parse(encoding).text for encoding in encodings]
    if len(set(encodings)) < len(encodings) or not encodings:
        raise ValueError(f"encodings must be one or more distinct ones; got {encodings}.")
    with locked(out):
        state = _open(out, settings)
        state.save(out / SWEEP)  # before the first run is there, so that no other sweep takes it for its own
        for encoding in encodings:
            losses = losses_of(state, encoding)
            while (index := next_index(losses, start)) is not None:
                if ahead is not None:
                    indices = upcoming(losses, start, _AT_ONCE)
                    ahead(encoding, {each: out / _folder(encoding, each) for each in indices})
                folder = _folder(encoding, index)
                losses[index] = objective(encoding, index, out / folder)
                trial = _trial(encoding, index, losses[index], folder)
                state = replace(state, trials=[*state.trials, trial], provenance=provenance())
                state.save(out / SWEEP)
                say(_line(trial))
            start = optimum(losses)
            others = [found for found in state.optima if found["encoding"] != encoding]
            state = replace(state, optima=[*others, _optimum(encoding, losses)])
            state.save(out / SWEEP)
    return state


def _folder(encoding: str, index: int) -> Path:
    return Path(EncodingSpec.parse(encoding).name, f"lr-{index}")


def training(
    name: str, data: Path, seed: int, changes: Mapping[str, Any], setup: Setup
) -> tuple[dict[str, Any], Objective]:
    """The settings of a rung's sweep, and the objective that trains: the final validation loss of a run.

    Args:
        name: the rung.
        data: a folder that `lerope data prepare` wrote.
        seed: of every run.
        changes: fields of the recipe that differ from the paper's; not the learning rate.
        setup: how this machine trains; its device decides the precision, as in `lerope train`, unless given.
    """
    import torch

    from lerope.train.job import train
    from lerope.train.parallel import usual_precision
    from lerope.train.trainer import Diverged

    changes = {"precision": usual_precision(setup.device), **changes}
    settings = _settings(name, data, seed, changes)

    def objective(encoding: str, index: int, folder: Path) -> float:
        torch.compiler.reset()  # or many models' blocks would count as one that is recompiled too often
        chosen = recipe(name, encoding, seed, learning_rate=learning_rate(index), **changes)
        try:
            outcome = train(chosen, data, folder, setup)
        except Diverged:
            return math.inf
        if outcome.stopped_by is not None:
            raise Stopped(outcome.stopped_by)
        assert outcome.validation_loss is not None
        return outcome.validation_loss

    return settings, objective


def training_by(
    launch: Launcher, name: str, data: Path, seed: int, changes: Mapping[str, Any]
) -> tuple[dict[str, Any], Objective, Ahead]:
    """The same for a launcher that trains runs at once: settings, objective, and what trains ahead of it.

    Args:
        launch: trains.
        name: the rung.
        data: a folder that `lerope data prepare` wrote.
        seed: of every run.
        changes: fields of the recipe that differ from the paper's, the precision among them; not the learning rate.
    """
    failed: dict[Path, str] = {}

    def ahead(encoding: str, folders: Mapping[int, Path]) -> None:
        first, *_ = folders.values()
        if _outcome(first) is not None:
            return
        runs = [
            PlannedRun(
                rung=name,
                encoding=encoding,
                seed=seed,
                changes={**changes, "learning_rate": learning_rate(index)},
                measure=(),
                called=folder.name,
            )
            for index, folder in folders.items()
            if _outcome(folder) is None
        ]
        problems = launch(Study(name=f"sweep-{name}", sentence="", runs=runs), data, first.parent)
        failed.update({first.parent / run: why for run, why in problems.items()})

    def objective(encoding: str, index: int, folder: Path) -> float:
        loss = _outcome(folder)
        if loss is None:
            raise ValueError(f"{folder} failed, and a sweep needs its loss: {failed.get(folder, 'nobody knows why')}")
        return loss

    return _settings(name, data, seed, changes), objective, ahead


def _settings(name: str, data: Path, seed: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the losses of a rung's sweep besides encoding and learning rate."""
    if "learning_rate" in changes:
        raise ValueError("learning_rate is what a sweep searches for; omit it, or give --start.")
    searched = {"encoding", "learning_rate", "frequency_learning_rate"} - changes.keys()
    fixed = asdict(recipe(name, seed=seed, **changes))
    return {
        "rung": name,
        "recipe": {field: value for field, value in fixed.items() if field not in searched},
        "data": Corpus(data, verify="sizes").manifest.fingerprint(),
    }


def _outcome(folder: Path) -> float | None:
    """The loss of a run that is finished, inf for one that diverged, None for any other."""
    if (folder / DIVERGED).exists():
        return math.inf
    if not is_run(folder) or not read_run(folder).finished:
        return None
    return read_metrics(folder).validation_loss


def losses_of(found: Sweep, encoding: str) -> dict[int, float]:
    """A sweep's losses of an encoding by index; inf where a run diverged."""
    return {
        trial["index"]: math.inf if trial["loss"] is None else trial["loss"]
        for trial in found.trials
        if trial["encoding"] == encoding
    }


def predict(sweeps: Sequence[Sweep], rungs: Sequence[str]) -> list[LearningRatePrediction]:
    """The indices to expect at other rungs, for each encoding swept at two or more sizes."""
    predictions: list[LearningRatePrediction] = []
    for encoding in dict.fromkeys(found["encoding"] for each in sweeps for found in each.optima):
        points = {
            parameters(each): found["index"]
            for each in sweeps
            for found in each.optima
            if found["encoding"] == encoding
        }
        if len(points) < 2:
            continue
        fit = fit_grid(list(points), list(points.values()))
        for name in rungs:
            index = fit.index(total_parameters(rung(name)))
            rate = learning_rate(index)
            predictions.append(
                {"encoding": encoding, "rung": name, "index": index, "learning_rate": rate, "slope": fit.slope}
            )
    return predictions


def parameters(found: Sweep) -> int:
    """N_tot of a sweep's model."""
    recipe = found.settings.get("recipe")
    model = recipe.get("model") if isinstance(recipe, dict) else None
    return total_parameters(as_type(model, ModelConfig, f"{SWEEP}: settings.recipe.model", "sweep again"))


def _open(out: Path, settings: dict[str, Any]) -> Sweep:
    """The sweep so far, or an empty one."""
    if not (out / SWEEP).exists():
        return Sweep(settings=settings, provenance=provenance(), trials=[], optima=[], predictions=[])
    found = Sweep.load(out / SWEEP)
    for field, old, new in differences(found.settings, settings):
        raise ValueError(f"{out} is a different sweep: its {field} is {old!r}, not {new!r}; use another --out.")
    return found


def _trial(encoding: str, index: int, loss: float, folder: Path) -> Trial:
    finite = loss if math.isfinite(loss) else None
    return Trial(encoding=encoding, index=index, learning_rate=learning_rate(index), loss=finite, run=str(folder))


def _line(trial: Trial) -> str:
    loss = "diverged" if trial["loss"] is None else f"loss {trial['loss']:.4f}"
    return f"{trial['encoding']}  index {trial['index']}  learning rate {trial['learning_rate']:.3e}  {loss}"


def _optimum(encoding: str, losses: dict[int, float]) -> LearningRateOptimum:
    best = optimum(losses)
    larger, smaller = (losses[index] if math.isfinite(losses[index]) else None for index in (best - 1, best + 1))
    return LearningRateOptimum(
        encoding=encoding,
        index=best,
        learning_rate=learning_rate(best),
        loss=losses[best],
        loss_at_larger_rate=larger,
        loss_at_smaller_rate=smaller,
        num_runs=len(losses),
    )
