"""docs/beyond-the-window.md: which LeRoPE keeps its gain inside the window, and is no worse than RoPE outside it."""

import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from claims import Archive, interval

from lerope.launch.study import PlannedRun, Study
from lerope.report.collect import RunFiles
from lerope.report.style import (
    BLACK,
    GREEN,
    GUIDE,
    ORANGE,
    PAGE,
    PURPLE,
    SKY,
    Missing,
    look,
    new_figure,
    styled,
)
from lerope.report.words import extension
from lerope.results import Bands, Evaluation, Extrapolation, ExtrapolationBin, Training
from lerope.results.token_losses import position_edges

KEPT, WORSE = 0.8, 0.02
"""What counts as reached: this share of LeRoPE's gain inside, and beyond at most this much more than RoPE's best."""
WORDS = Path(__file__).resolve().parent / "beyond.md"
"""The page but for its tables and figures, which stand where it says RUNS."""
RUNS = "<!-- runs -->"
HEAD = (
    "| encoding | inside: loss less RoPE's | of LeRoPE's gain | perplexity, 1 to 2 windows | 2 to 4 | 1 to 4 "
    "| 1 to 4, extended | wavelength / window | step | goal |\n|---|---|---|---|---|---|---|---|---|---|"
)
TITLE = "Loss beyond the window, less RoPE's best"
CAPTION = (
    "Loss by position, as the model is, less that of RoPE at its best: as it is inside the window, beyond it with the "
    "extension that suits it best. In the grey the goal beyond the window is met. Documents that reach four windows."
)


Way = tuple[str, float]
"""A method of extension and its temperature."""


@dataclass(frozen=True)
class Row:
    """One run of the study."""

    method: str
    label: str
    inside: str
    kept: float | None
    beyond: dict[tuple[int, int], float]
    """Perplexity as the model is, by windows."""
    extended: dict[Way, float]
    """With each extension, from one window to four."""
    wavelength: float | None
    """In windows."""
    step: float | None
    """Its time by RoPE's."""


def rows(text: Archive) -> list[Row]:
    """The runs of the study that are there and were scored beyond their window."""
    study = text.studies.horizon()
    found = text.of(study)
    comparison = text.compared(study)
    effects = {row["method"]: row for row in comparison.effects} if comparison is not None else {}
    gain = effects["lerope"]["difference"] if "lerope" in effects and interval(effects["lerope"])[1] < 0 else None
    usual = next((_step(files) for planned, files in found if planned.encoding == "rope"), None)
    made = []
    for planned, files in found:
        if planned.after is not None:
            made += _learned_on(planned, study, {each[0].name: each for each in found}, gain)
            continue
        result = files.result(Extrapolation)
        if result is None:
            continue
        spec, effect = files.run.recipe.spec, effects.get(files.run.recipe.spec.method)
        inside, kept = "", None
        if effect is not None:
            low, high, _ = interval(effect)
            inside = f"{effect['difference']:+.4f} ({low:+.4f} to {high:+.4f})"
            kept = None if gain is None else effect["difference"] / gain
        step = _step(files)
        made.append(
            Row(
                method=spec.method,
                label=_label(planned, study),
                inside=inside,
                kept=kept,
                beyond={windows: _perplexity(result, windows, "none", 0.0) for windows in ((1, 2), (2, 4), (1, 4))},
                extended={way: _perplexity(result, (1, 4), *way) for way in _ways(result)},
                wavelength=_wavelength(files),
                step=None if step is None or usual is None else step / usual,
            )
        )
    return made


def _learned_on(
    planned: PlannedRun, study: Study, found: dict[str, tuple[PlannedRun, RunFiles]], gain: float | None
) -> list[Row]:
    """The row of a run whose rotation learned on in rows of four windows, if it was scored: as it is, at any length."""
    files, source = found[planned.name][1], found.get(planned.after or "")
    if source is None:
        return []
    train = source[1].run.recipe.row_length
    far, near = files.result(Evaluation, "eval-truncated"), files.result(Evaluation, f"eval-{train}")
    usual = [each.result(Evaluation, "eval") for other, each in found.values() if other.encoding == "rope"]
    if far is None or near is None or not usual or usual[0] is None:
        return []
    difference = near.loss - usual[0].loss
    arrays = files.arrays(Evaluation, "eval-truncated")
    length = int(far.settings["length"])
    reaches = arrays["document_counts"].sum(1) == length
    edges = position_edges(length)

    def perplexity(first: int, last: int) -> float:
        some = (edges[:-1] >= first * train) & (edges[1:] <= last * train)
        sums, counts = (arrays[name][reaches][:, some].sum() for name in ("document_sums", "document_counts"))
        return math.exp(float(sums) / float(counts))

    return [
        Row(
            method=files.run.recipe.spec.method,
            label=_label(planned, study),
            inside=f"{difference:+.4f}",
            kept=None if gain is None else difference / gain,
            beyond={windows: perplexity(*windows) for windows in ((1, 2), (2, 4), (1, 4))},
            extended={},
            wavelength=None,
            step=None,
        )
    ]


def waiting(text: Archive, made: list[Row]) -> list[str]:
    """Encodings of the study that have no row yet."""
    study = text.studies.horizon()
    labels = [_label(planned, study) for planned in study.runs]
    return [label for label in labels if label not in {row.label for row in made}]


def best(row: Row, *methods: str) -> tuple[Way, float]:
    """A run's best extension, of these methods or all, and the perplexity with it."""
    return min(((way, value) for way, value in row.extended.items() if not methods or way[0] in methods),
               key=lambda pair: pair[1])  # fmt: skip


def aims(made: list[Row]) -> str:
    """What the goal beyond the window comes to, in a sentence; nothing without RoPE."""
    rope = next((row for row in made if row.method == "rope"), None)
    if rope is None:
        return ""
    (way, least), (yarn, usual) = best(rope), best(rope, "yarn")
    text = f"RoPE at its best, with {extension(*way)}, comes to {least:.2f} from one window to four: "
    text += f"the goal is {(1 + WORSE) * least:.2f}."
    if way != yarn:
        text += f" With {extension(*yarn)}, it comes to {usual:.2f}: the goal by YaRN is {(1 + WORSE) * usual:.2f}."
    return text


def goal(row: Row, made: list[Row]) -> str:
    """Which of the two conditions a run meets."""
    rope = next((each for each in made if each.method == "rope"), None)
    inside = row.kept is not None and row.kept >= KEPT
    outside = rope is not None and row.beyond[1, 4] <= (1 + WORSE) * best(rope)[1]
    if inside and outside:
        return "**both**"
    of_yarn = not outside and rope is not None and row.beyond[1, 4] <= (1 + WORSE) * best(rope, "yarn")[1]
    met = ["inside"] * inside + ["outside"] * outside + ["outside, by YaRN"] * of_yarn
    return "; ".join(met)


def table(made: list[Row]) -> str:
    """The runs, one a line."""
    lines = [HEAD]
    for row in made:
        near, far, all_of_it = (f"{row.beyond[windows]:.2f}" for windows in ((1, 2), (2, 4), (1, 4)))
        kept = "" if row.kept is None else f"{row.kept:.0%}"
        wavelength = "" if row.wavelength is None else f"{row.wavelength:.1f}"
        step = "" if row.step is None else f"{row.step:.2f}"
        extended = ""
        if row.extended:
            way, least = best(row)
            extended = f"{least:.2f}: {extension(*way)}"
        cells = [f"`{row.label}`", row.inside, kept, near, far, all_of_it, extended]
        cells += [wavelength, step]
        lines.append("| " + " | ".join([*cells, goal(row, made)]) + " |")
    return "\n".join(lines)


def _label(planned: PlannedRun, study: Study) -> str:
    if planned.after is not None:
        source = next(run for run in study.runs if run.name == planned.after)
        return f"{_label(source, study)}, extension learned"
    name = planned.encoding.rpartition(":")[2] if ":" in planned.encoding else planned.encoding
    return name.partition(",")[0] if ":" in planned.encoding else name


def _ways(result: Extrapolation) -> list[Way]:
    return list(dict.fromkeys((row["method"], row["temperature"]) for row in result.ways))


def curve(result: Extrapolation, method: str, temperature: float) -> list[ExtrapolationBin]:
    """Losses by position, over documents that reach the end."""
    return [
        row
        for row in result.by_position
        if row["selection"] == "long" and (row["method"], row["temperature"]) == (method, temperature)
    ]


def _perplexity(result: Extrapolation, windows: tuple[int, int], method: str, temperature: float) -> float:
    """Of tokens between two multiples of the window."""
    first, last = (number * result.settings["train_length"] for number in windows)
    some = [row for row in curve(result, method, temperature) if first <= row["start"] and row["stop"] <= last]
    return math.exp(sum(row["loss"] * row["num_tokens"] for row in some) / sum(row["num_tokens"] for row in some))


def _wavelength(files: RunFiles) -> float | None:
    """Of the band that varies most, in windows."""
    found = files.result(Bands)
    return None if found is None or not found.dominant_wavelength else found.dominant_wavelength / found.train_length


def _step(files: RunFiles) -> float | None:
    """Of a GPU; on a CPU other work is in the way."""
    found = files.result(Training)
    return None if found is None or files.run.starts[-1].gpu is None else found.last_start["median_step_seconds"]


@styled
def draw(text: Archive) -> Any:
    """Losses by position, less those of RoPE at its best: as it is inside the window, beyond it extended."""
    study = text.studies.horizon()
    found = [(planned, files.result(Extrapolation)) for planned, files in text.of(study)]
    scored = {_label(planned, study): result for planned, result in found if result is not None}
    others = product(("-", ":"), (BLACK, GREEN, PURPLE, SKY, ORANGE))
    if "rope" not in scored or len(scored) < 2:
        raise Missing("RoPE and another are needed", "lerope ladder results/laptop.py:horizon")
    rope, train = scored["rope"], scored["rope"].settings["train_length"]
    least = min(_ways(rope), key=lambda way: _perplexity(rope, (1, 4), *way))
    own = {row["start"]: row["loss"] for row in curve(rope, "none", 0.0)}
    target = {row["start"]: row["loss"] if row["start"] >= train else own[row["start"]] for row in curve(rope, *least)}
    figure = new_figure(PAGE, 3.0)
    axes = figure.subplots()
    for label, result in scored.items():
        bins = curve(result, "none", 0.0)
        x = [(row["start"] + row["stop"]) / 2 / train for row in bins]
        y = [row["loss"] - target[row["start"]] for row in bins]
        if label in ("rope", "lerope"):
            axes.plot(x, y, **look(label).stroke, label=look(label).label)
        else:
            line, colour = next(others)
            axes.plot(x, y, color=colour, ls=line, lw=0.9, label=label)
    bottom = axes.get_ylim()[0]
    axes.axhspan(bottom, math.log1p(WORSE), color="0.92", zorder=0)
    axes.set_ylim(bottom)
    axes.axvline(1, color=GUIDE, ls=":", lw=0.9)
    axes.set(xlabel="position (windows)", ylabel="loss less that of RoPE at its best (nats)")
    figure.legend(loc="outside upper center", ncols=3)
    return figure
