"""What figures and tables look for in a bundle: which runs belong together, and what they say."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lerope.report.collect import Bundle, RunFiles
from lerope.report.style import Floats, method_label, method_name, order, place
from lerope.results import Bands, Evaluation, LearnedFrequencies, Multipliers, Needle, Phasors, Result, Training
from lerope.scaling.multipliers import PIECEWISE
from lerope.scaling.study import Losses, study

Key = TypeVar("Key")
_CODE_WORDS = ("code", "python", "starcoder")


def method(files: RunFiles) -> str:
    """The run's method."""
    return method_name(str(files.run.recipe["encoding"]))


def rung(files: RunFiles) -> str:
    """The ladder's name of the run's size."""
    return str(files.run.recipe["rung"])


def seed(files: RunFiles) -> int:
    """The run's seed."""
    return int(files.run.recipe["seed"])


def train_length(files: RunFiles) -> int:
    """Tokens of a row in training."""
    return int(files.run.recipe.get("row_length", 0))


def compute(files: RunFiles) -> float:
    """FLOPs of the run: 6 times parameters without embeddings times tokens."""
    recipe = files.run.recipe
    model = recipe.get("model", {})
    width = model.get("num_heads", 0) * model.get("head_dim", 0)
    tokens = recipe.get("steps", 0) * recipe.get("batch_tokens", 0)
    return float(6 * 12 * width**2 * model.get("num_layers", 0) * tokens)


def loss(files: RunFiles) -> float | None:
    """The evaluated loss in nats per token, or else training's last validation."""
    evaluation = files.result(Evaluation, "eval")
    return validation_loss(files) if evaluation is None else evaluation.loss


def validation_loss(files: RunFiles) -> float | None:
    """Training's last validation, in nats per token."""
    training = files.result(Training)
    return None if training is None else training.validation_loss


def comparable_losses(runs: Iterable[RunFiles]) -> list[RunFiles]:
    """Runs whose losses are of the same documents: those of the commonest evaluation, or else of training's validation.

    Runs that were validated alone do not stand beside evaluated ones.
    """
    known = [files for files in runs if loss(files) is not None]
    evaluated = [files for files in known if files.result(Evaluation, "eval") is not None]
    groups = group(evaluated, lambda files: repr(getattr(files.result(Evaluation, "eval"), "settings", None)))
    return max(groups.values(), key=len, default=known)


def group(runs: Iterable[RunFiles], key: Callable[[RunFiles], Key]) -> dict[Key, list[RunFiles]]:
    """Runs by what they have in common, in the order of their first."""
    found: dict[Key, list[RunFiles]] = {}
    for files in runs:
        found.setdefault(key(files), []).append(files)
    return found


def by_rung(runs: Iterable[RunFiles]) -> dict[str, list[RunFiles]]:
    """Runs by rung, the smallest first; a rung that was trained for several numbers of steps is several."""
    some = sorted(runs, key=compute)
    steps = {name: {files.run.recipe.get("steps") for files in members} for name, members in group(some, rung).items()}

    def name(files: RunFiles) -> str:
        place = rung(files)
        return place if len(steps[place]) == 1 else f"{place}, {files.run.recipe.get('steps', 0):,} steps"

    return group(some, name)


def main_study(bundle: Bundle) -> list[RunFiles]:
    """The runs that are compared: of one corpus and train length, at each rung of one learning rate, each seed once.

    Those of which most were evaluated, or else of which there are most.
    """
    chosen = _largest(bundle.runs, lambda files: (files.run.identity["data"], train_length(files)))
    found: list[RunFiles] = []
    for runs in by_rung(chosen).values():
        alike = _largest(runs, lambda files: files.run.recipe.get("learning_rate"))
        for same in group(alike, lambda files: (method(files), seed(files))).values():
            found.append(max(same, key=lambda files: len(files.results)))
    return sorted(found, key=lambda files: (compute(files), place(method(files)), seed(files)))


def _largest(runs: list[RunFiles], key: Callable[[RunFiles], Any]) -> list[RunFiles]:
    groups = group(runs, key).values()
    return max(groups, key=lambda some: (sum("eval" in files.results for files in some), len(some)), default=[])


def code_runs(bundle: Bundle) -> list[RunFiles]:
    """Runs on code, by the name of their data's folder; those of `lerope demo` read Python."""

    def is_code(files: RunFiles) -> bool:
        start = files.run.starts[-1] if files.run.starts else {}
        folder = PurePath(str(start.get("data", ""))).name.lower()
        return any(word in folder for word in _CODE_WORDS) or "lerope demo" in str(start.get("command", ""))

    return [files for files in bundle.runs if is_code(files)]


def text_runs(bundle: Bundle) -> list[RunFiles]:
    """All others; those on code where there are no others."""
    code = {files.run.path for files in code_runs(bundle)}
    return [files for files in bundle.runs if files.run.path not in code] or bundle.runs


def learning_rate_runs(bundle: Bundle) -> dict[str, list[RunFiles]]:
    """Runs that differ in learning rate alone, by rung: those of a sweep, whatever their folder."""
    found: dict[str, list[RunFiles]] = {}
    trained = [files for files in bundle.runs if validation_loss(files) is not None]

    def rest(files: RunFiles) -> str:
        recipe = {key: value for key, value in files.run.recipe.items() if "learning_rate" not in key}
        return repr((files.run.identity["data"], sorted(recipe.items())))

    for runs in group(trained, rest).values():
        if len({files.run.recipe.get("learning_rate") for files in runs}) > 1:
            found.setdefault(rung(runs[0]), []).extend(runs)
    return dict(sorted(found.items(), key=lambda pair: compute(pair[1][0])))


def largest(runs: Iterable[RunFiles]) -> RunFiles | None:
    """The run of most compute; of these the first seed."""
    return min(runs, key=lambda files: (-compute(files), seed(files)), default=None)


def alike(runs: Iterable[RunFiles], settings: Callable[[RunFiles], Any]) -> list[RunFiles]:
    """Runs of the largest rung that were measured alike: most of them, or else those with RoPE, or else the first."""
    rungs = list(by_rung(runs).values())
    groups = group(rungs[-1], lambda files: repr(settings(files))).values() if rungs else []
    return max(groups, key=lambda some: (len(some), any(method(files) == "rope" for files in some)), default=[])


def left_out(bundle: Bundle, kind: type[Result], shown: Iterable[str]) -> str | None:
    """A sentence for methods that have a result and are not shown, because they were measured otherwise."""
    measured = {method(files) for files in main_study(bundle) if files.result(kind) is not None}
    names = order(measured - set(shown))
    return f"left out, measured otherwise: {', '.join(map(method_label, names))}" if names else None


def matched(runs: Iterable[RunFiles], names: Sequence[str]) -> dict[str, RunFiles | None]:
    """One run of each of these methods, of the largest rung that has them all; without such a rung, of the largest."""
    some = [files for files in runs if method(files) in names]
    for members in reversed(by_rung(some).values()):
        if {method(files) for files in members} == set(names):
            return {name: largest(files for files in members if method(files) == name) for name in names}
    return {name: largest(files for files in some if method(files) == name) for name in names}


def wavelengths(files: RunFiles) -> tuple[Floats, Floats] | None:
    """RoPE's wavelengths and the run's own, band by band, in tokens; infinite for a band that does not turn.

    Of frequencies that layers or heads have for themselves, the geometric mean. Without the analysis' file, what
    training recorded last.
    """
    found = files.result(LearnedFrequencies)
    if found is not None and found.base is not None:
        own: dict[int, list[float]] = {}
        rope: dict[int, float] = {}
        for band in found.bands:
            own.setdefault(band["band"], []).append(math.inf if band["wavelength"] is None else band["wavelength"])
            rope[band["band"]] = math.inf if band["rope_wavelength"] is None else band["rope_wavelength"]
        means = [float(np.exp(np.mean(np.log(own[band])))) for band in sorted(own)]
        return np.array([rope[band] for band in sorted(own)]), np.array(means)
    history = frequency_history(files)
    if history is None:
        return None
    with np.errstate(divide="ignore"):
        return 2 * math.pi / rope_frequencies(files), 2 * math.pi / abs(history[1][-1])


def frequency_history(files: RunFiles) -> tuple[npt.NDArray[np.int64], Floats] | None:
    """Steps and the frequencies at them, (records, bands), the mean over layers and heads that have their own."""
    steps, rows = [], []
    for record in files.frequencies:
        values = record.get("frequencies")
        if values is None and record.get("log_scales") is not None:
            values = rope_frequencies(files) * np.exp(np.array(record["log_scales"], np.float64))
        if values is not None:
            array = np.array(values, np.float64)
            steps.append(int(record["step"]))
            rows.append(array.reshape(-1, array.shape[-1]).mean(0))
    return (np.array(steps), np.stack(rows)) if rows else None


def rope_frequencies(files: RunFiles) -> Floats:
    """RoPE's at the base of the run's encoding."""
    head_dim = int(files.run.recipe["model"]["head_dim"])
    _, *options = str(files.run.recipe["encoding"]).split(",")
    given = dict(option.partition("=")[::2] for option in options)
    base = float(given.get("base", 10_000))
    frequencies: Floats = base ** (-2 * np.arange(head_dim // 2) / head_dim)
    return frequencies


def shown_bands(num_bands: int, count: int, dominant: int | None) -> list[int]:
    """Some bands, evenly spread; the dominant one takes the place of its nearest."""
    count = min(count, num_bands)
    chosen = np.linspace(0, num_bands - 1, count).round().astype(int).tolist()
    if dominant is not None and dominant not in chosen:
        nearest = min(range(count), key=lambda index: abs(chosen[index] - dominant))
        chosen[nearest] = dominant
    return sorted(chosen)


def plain_methods(methods: Iterable[str], most: int = 4) -> list[str]:
    """Methods in order, some at most; their variants only where there is room."""
    names = order(methods)
    return sorted(sorted(names, key=lambda name: "," in name)[:most], key=names.index)


def dominant_band(files: RunFiles) -> int | None:
    """The dominant band, where bands were measured and one stands out."""
    bands = files.result(Bands)
    return None if bands is None or not bands.stands_out else bands.dominant_band


def needle(files: RunFiles, long: bool) -> Needle | None:
    """The test within the train length, or the one beyond it; with YaRN rather than another way."""
    found = [
        result for result in files.results.values() if isinstance(result, Needle) and ("to" in result.settings) is long
    ]
    return min(found, key=lambda result: result.settings.get("method", "yarn") != "yarn", default=None)


def phasor_pair(bundle: Bundle) -> list[RunFiles]:
    """The largest RoPE run and the largest LeRoPE run whose phasors were measured, or which of them there is."""
    measured = [files for files in bundle.runs if files.result(Phasors) and "phasors_real" in files.arrays("phasors")]
    found = [files for files in matched(measured, ("rope", "lerope")).values() if files is not None]
    if found:
        return found
    other = largest(measured)
    return [other] if other else []


def ladder(bundle: Bundle) -> Multipliers | None:
    """Compute multipliers: the bundle's own, or those of methods that are at every rung."""
    if bundle.multipliers is not None or bundle.comparison is None:
        return bundle.multipliers
    comparison = bundle.comparison
    computes = {item["rung"]: item["compute"] for item in comparison.multipliers if item["rung"] is not None}
    rungs = sorted(computes, key=lambda name: computes[name])
    paired = {(item["rung"], item["method"]): item for item in comparison.effects}
    whole = [name for name in {key[1]: 0 for key in paired} if all((at, name) in paired for at in rungs)]
    if len(rungs) < 2 or not whole:
        return None
    # Every method is held against the baseline of its own seeds; the first seeds' losses stand for the baseline.
    methods = {comparison.baseline: [paired[at, whole[0]]["baseline_loss"] for at in rungs]}
    for name in whole:
        shifts = [paired[at, name]["difference"] for at in rungs]
        methods[name] = [base + shift for base, shift in zip(methods[comparison.baseline], shifts, strict=True)]
    losses = Losses(
        rungs=list(rungs),
        compute=[computes[at] for at in rungs],
        methods=methods,
        settings=comparison.settings,
    )
    try:
        return study(losses, comparison.baseline)
    except ValueError:
        return None


def piecewise(bundle: Bundle) -> dict[str, list[tuple[str, float, float]]]:
    """Rung, compute and piecewise multiplier of each method that has them."""
    source = bundle.multipliers or bundle.comparison
    rows = source.multipliers if source is not None else []
    points: dict[str, list[tuple[str, float, float]]] = {}
    for row in rows:
        if row["estimator"] == PIECEWISE and row["multiplier"] is not None:
            points.setdefault(row["method"], []).append((row["rung"] or "", row["compute"], row["multiplier"]))
    return points


def position_losses(files: RunFiles) -> tuple[Floats, Floats] | None:
    """Sums of evaluated token losses and their number at each position of a window; None without the tokens' file."""
    evaluation, arrays = files.result(Evaluation, "eval"), files.arrays("eval")
    if evaluation is None or not {"losses", "ends"} <= arrays.keys():
        return None
    length, ends = int(evaluation.settings["length"]), arrays["ends"].astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    positions = (np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)) % length
    losses = arrays["losses"].astype(np.float64)
    sums = np.bincount(positions, weights=losses, minlength=length).astype(np.float64)
    return sums, np.bincount(positions, minlength=length).astype(np.float64)
