"""Which runs of a bundle belong together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from lerope.core.grouping import grouped
from lerope.core.ladder import LADDER
from lerope.paper.numbers import RUNGS
from lerope.report.collect import Bundle, RunFiles, recipe_key, setting
from lerope.report.style import method_label, order, place
from lerope.results import Result, Training


def method(files: RunFiles) -> str:
    """The run's method."""
    return files.run.recipe.spec.method


def rung(files: RunFiles) -> str:
    """The ladder's name for the run's size."""
    return files.run.recipe.rung


def seed(files: RunFiles) -> int:
    """The run's seed."""
    return files.run.recipe.seed


def train_length(files: RunFiles) -> int:
    """Tokens of a row in training."""
    return files.run.recipe.row_length


def compute(files: RunFiles) -> float:
    """FLOPs of the run: 6 times parameters without embeddings times tokens."""
    return files.run.recipe.compute


def by_rung(runs: Iterable[RunFiles]) -> dict[str, list[RunFiles]]:
    """Runs by rung, the smallest first; a rung that was trained for several numbers of steps is several."""
    some = sorted(runs, key=compute)
    steps = {name: {files.run.recipe.steps for files in members} for name, members in grouped(some, rung).items()}

    def name(files: RunFiles) -> str:
        place = rung(files)
        return place if len(steps[place]) == 1 else f"{place}, {files.run.recipe.steps:,} steps"

    return grouped(some, name)


def rungs_beside_paper(runs: Iterable[RunFiles]) -> list[str]:
    """The paper's rungs and ours, the smallest first; those that the ladder does not know come first."""
    ours = list(by_rung(runs))
    known = [place for place in LADDER if place in ours or place in RUNGS]
    return [*(place for place in ours if place not in LADDER), *known]


def main_study(bundle: Bundle) -> list[RunFiles]:
    """The runs that figures and tables are about, each method and seed of a recipe once.

    Those that are compared, and with them runs that differ from these in no more than a pair may and were not
    evaluated. Where nothing is compared: the runs of one corpus and train length, and of one learning rate per rung,
    of which most are finished.
    """
    found: list[RunFiles] = []
    for runs in by_rung(_compared(bundle) or _most_finished(bundle.runs)).values():
        for same in grouped(runs, lambda files: (method(files), seed(files))).values():
            found.append(max(same, key=lambda files: (files.can_be_compared, len(files.results))))
    return sorted(found, key=lambda files: (compute(files), place(method(files)), seed(files)))


def _compared(bundle: Bundle) -> list[RunFiles]:
    known = {(*setting(files), recipe_key(files)) for files in bundle.compared}
    beside = [files for files in bundle.runs if not files.can_be_compared]
    return bundle.compared + [files for files in beside if (*setting(files), recipe_key(files)) in known]


def _most_finished(runs: list[RunFiles]) -> list[RunFiles]:
    rungs = by_rung(_largest(runs, setting)).values()
    return [files for some in rungs for files in _largest(some, lambda files: files.run.recipe.learning_rate)]


def _largest(runs: list[RunFiles], key: Callable[[RunFiles], Any]) -> list[RunFiles]:
    """The group with the most finished runs, or else the most runs."""
    groups = grouped(runs, key).values()
    return max(groups, key=lambda some: (sum(files.run.finished for files in some), len(some)), default=[])


def same_corpus(bundle: Bundle) -> list[RunFiles]:
    """All runs on the corpus of the main study, whatever their train length and recipe."""
    corpora = {files.run.identity.data for files in main_study(bundle)}
    return [files for files in bundle.runs if files.run.identity.data in corpora]


def code_runs(bundle: Bundle) -> list[RunFiles]:
    """Runs whose training text is mostly code."""
    return [files for files in bundle.runs if files.run.starts and files.run.starts[-1].code_share > 0.5]


def learning_rate_runs(bundle: Bundle) -> dict[str, list[RunFiles]]:
    """Trained runs on the study's corpus that differ only in learning rate, by rung: a sweep, whatever their folder."""
    found: dict[str, list[RunFiles]] = {}
    trained = [
        files for files in same_corpus(bundle) if (end := files.result(Training)) and end.validation_loss is not None
    ]

    def rest(files: RunFiles) -> str:
        recipe = {key: value for key, value in asdict(files.run.recipe).items() if "learning_rate" not in key}
        return repr(sorted(recipe.items()))

    for runs in grouped(trained, rest).values():
        if len({files.run.recipe.learning_rate for files in runs}) > 1:
            found.setdefault(rung(runs[0]), []).extend(runs)
    return dict(sorted(found.items(), key=lambda pair: compute(pair[1][0])))


def same_seeds(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Runs of the seeds that every method has, so that means can be compared; all runs if there are none."""
    methods = grouped(runs, method).values()
    shared = set.intersection(*({seed(files) for files in some} for some in methods)) if methods else set()
    return [files for files in runs if seed(files) in shared] or list(runs)


def same_batches(files: RunFiles) -> tuple[Any, ...]:
    """What runs that read the same batches at the same steps have in common."""
    recipe = files.run.recipe
    rows = (recipe.row_length, recipe.batch_tokens, recipe.row_order)
    return files.run.identity.data, recipe.rung, recipe.seed, recipe.steps, *rows


def largest(runs: Iterable[RunFiles]) -> RunFiles | None:
    """The run with the most compute; of these the first seed."""
    return min(runs, key=lambda files: (-compute(files), seed(files)), default=None)


def alike(runs: Iterable[RunFiles], settings: Callable[[RunFiles], Any]) -> list[RunFiles]:
    """Runs of the largest rung that were measured alike: most of them, or else those with RoPE, or else the first."""
    rungs = list(by_rung(runs).values())
    groups = grouped(rungs[-1], lambda files: repr(settings(files))).values() if rungs else []
    return max(groups, key=lambda some: (len(some), any(method(files) == "rope" for files in some)), default=[])


def left_out(bundle: Bundle, kind: type[Result], shown: Iterable[str]) -> str | None:
    """A sentence for methods that have a result and are not shown, because they were measured differently."""
    measured = {method(files) for files in main_study(bundle) if files.result(kind) is not None}
    names = order(measured - set(shown))
    return f"left out, measured differently: {', '.join(map(method_label, names))}" if names else None


def matched(runs: Sequence[RunFiles], names: Sequence[str]) -> list[RunFiles]:
    """A run of each of these methods, of the largest rung that has them all; without such a rung, of the largest.

    Where there is none of these methods, the largest run of another.
    """
    some = [files for files in runs if method(files) in names]
    whole = [members for members in by_rung(some).values() if len(grouped(members, method)) == len(names)]
    methods = grouped(whole[-1] if whole else some, method)
    found = [largest(methods.get(name, [])) for name in names] if some else [largest(runs)]
    return [files for files in found if files is not None]
