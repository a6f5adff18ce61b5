"""What runs come to together: the verdict, the comparison, compute, gaps through training."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from lerope.core.locks import is_locked
from lerope.core.run import Run
from lerope.report.collect import NOT_COMPARED, Bundle
from lerope.report.curves import trailing
from lerope.report.groups import method, same_batches
from lerope.report.measured import GAP_SHARE, effects, gap, interval
from lerope.report.payload.values import Json, curve, number, plain
from lerope.results import Comparison

_FEW_STEPS = 20


def verdict(bundle: Bundle) -> Json:
    """The sentence at the top and what it rests on, or what has to be done for one."""
    if bundle.comparison is None or not bundle.comparison.effects:
        return {"text": None, "missing": _missing(bundle)}
    found = effects(bundle.comparison)
    wanted = bundle.comparison.reference or ("lerope" if any(e["method"] == "lerope" for e in found) else None)
    of_wanted = [effect for effect in found if effect["method"] == wanted] or found
    # Rungs come in order of size: the largest that has several seeds says most, else the largest.
    main = max(enumerate(of_wanted), key=lambda item: (item[1]["num_seeds"] > 1, item[0]))[1]
    return {"text": main["verdict"], "rung": main["rung"], "method": main["method"], "missing": None}


def stopped(run: Run) -> bool:
    """Whether a run is not finished and no process trains it."""
    return not run.finished and not is_locked(run.path)


def _missing(bundle: Bundle) -> Json:
    """A sentence, and commands that would give a verdict."""
    runs = [files.run for files in bundle.runs]
    unfinished = [run for run in runs if not run.finished]
    methods = {run.recipe.spec.method for run in runs}
    if len(methods) < 2:
        run = runs[0]
        other = "lerope" if "rope" in methods else "rope"
        return {
            "text": f"There is no verdict, because {run.recipe.spec.label} is the only encoding: train another.",
            "command": _command_of_pair(run, other),
        }
    unscored = [files.run for files in bundle.runs if files.run.finished and "eval" not in files.results]
    if unscored:
        return {
            "text": "There is no verdict yet: score the finished runs on the validation documents.",
            "command": f"lerope eval {shlex.join(str(run.path) for run in unscored)}",
        }
    if unfinished and all(map(stopped, unfinished)):
        command = unfinished[0].starts[-1].command if unfinished[0].starts else None
        return {
            "text": "There is no verdict yet: runs stopped before their end; the same command goes on.",
            "command": command,
        }
    if unfinished:
        return {"text": "There is no verdict yet: runs are still training.", "command": None}
    why = next((note for note in bundle.notes if note.startswith(NOT_COMPARED)), "The notes at the end say why.")
    return {"text": f"There is no verdict. {why}", "command": None}


def _command_of_pair(run: Run, encoding: str) -> str:
    """The command that trained a run with another encoding, into the same folder; all else must stay for a pair."""
    words = shlex.split(run.starts[-1].command) if run.starts else []
    at = next((at for at, word in enumerate(words) if Path(word).name == "lerope"), len(words)) + 1
    if words[at : at + 1] in (["demo"], ["ladder"]):
        return shlex.join(words)  # which trains the others too
    if words[at : at + 1] != ["train"]:
        data = shlex.quote(run.starts[-1].data) if run.starts else "DATA"
        return f"lerope train {run.recipe.rung} --encoding {encoding} --seed {run.recipe.seed} --data {data}"
    changed = {
        "--encoding": encoding,
        "--out": str(run.path.parent / f"{run.recipe.rung}-{encoding}-{run.recipe.seed}"),
    }
    given = [part for word in words[at + 1 :] for part in (word.split("=", 1) if _is_of(word, changed) else [word])]
    for option, value in changed.items():
        if option in given:
            given[given.index(option) + 1] = value
        elif option == "--encoding":
            given += [option, value]
    return shlex.join([*words[: at + 1], *given])


def _is_of(word: str, options: Collection[str]) -> bool:
    """Whether a word is one of these options with its value, as in `--out=DIR`."""
    return word.partition("=")[0] in options and "=" in word


def comparison(found: Comparison | None) -> Json | None:
    """Effects with the interval that the verdict states, gains, and the gap by position."""
    if found is None:
        return None
    listed = []
    for effect in effects(found):
        low, high = interval(effect)
        listed.append({**plain(effect), "low": number(low), "high": number(high)})
    return {
        "baseline": found.baseline,
        "reference": found.reference,
        "effects": listed,
        "gains": plain(found.gains),
        "byPosition": plain(found.by_position),
    }


def multipliers(bundle: Bundle) -> Json | None:
    """By every estimator where all methods are at all rungs, else the comparison's own for those that are."""
    found = bundle.multipliers or bundle.comparison
    if found is None or not found.multipliers:
        return None
    return {"baseline": found.baseline, "multipliers": plain(found.multipliers)}


def gaps(bundle: Bundle, losses: Sequence[Mapping[int, float]]) -> list[Json | None]:
    """Each run's training loss less that of the baseline on the same batches, smoothed; None without such a run.

    Args:
        losses: each run's training loss by step.
    """
    baseline = bundle.comparison.baseline if bundle.comparison is not None else "rope"
    runs = list(zip(bundle.runs, losses, strict=True))
    # Of several that read the same batches the first.
    baselines = {same_batches(files): own for files, own in reversed(runs) if method(files) == baseline}
    found: list[Json | None] = []
    for files, own in runs:
        base = baselines.get(same_batches(files), {}) if method(files) != baseline else {}
        between = gap(own, base)
        if len(between) < _FEW_STEPS:
            found.append(None)
            continue
        steps, means = trailing(between, GAP_SHARE)
        found.append({"baseline": baseline, **curve(dict(zip(steps.tolist(), means.tolist(), strict=True)))})
    return found


def methods(bundle: Bundle) -> Json:
    """Label and family of every method that runs have."""
    specs = {method(files): files.run.recipe.spec for files in bundle.runs}
    return {name: {"label": spec.label, "family": spec.family} for name, spec in specs.items()}


def notes(bundle: Bundle, of_runs: Sequence[str]) -> list[str]:
    """What could not be read or compared, each once."""
    found = [*bundle.notes, *of_runs]
    for result in (bundle.comparison, bundle.multipliers):
        found += result.notes if result is not None else []
    return list(dict.fromkeys(found))
