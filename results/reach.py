"""docs/beyond-the-window.md: which LeRoPE keeps its gain inside the window, and is no worse than RoPE outside it."""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
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
from lerope.report.words import WAYS, extension
from lerope.results import Bands, Evaluation, Extrapolation, ExtrapolationBin, MethodEffect, Training
from lerope.results.token_losses import position_edges

TIMES = 4
"""Documents reach this many windows."""
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


SIDES = ("inside", "outside")
SPANS = ((1, 2), (2, TIMES), (1, TIMES))
"""In windows."""
Way = tuple[str, float]
"""A method of extension and its temperature."""
BY_POSITION: Way = ("logits", 0.2)
_LOGITS = "logits by position"
_KNOWN = ("rope", "lerope")


@dataclass(frozen=True)
class Row:
    """The runs of one encoding, over seeds: means of losses."""

    label: str
    num_seeds: int
    inside: str
    kept: float | None
    beyond: dict[tuple[int, int], float]
    """Perplexity as the model is, by windows."""
    extended: dict[Way, float]
    """With each extension, from one window to four."""
    wavelength: str
    """In windows, of each seed."""
    step: float | None
    """Its time by RoPE's."""


Runs = list[RunFiles]
"""Of one encoding."""


def rows(text: Archive, study: Study) -> list[Row]:
    """The encodings of a study whose runs are there and were scored beyond their window."""
    groups: dict[str, Runs] = {}
    for planned, files in text.of(study):
        groups.setdefault(_label(planned, study), []).append(files)
    comparison = text.compared(study)
    effects = {row["method"]: row for row in comparison.effects} if comparison is not None else {}
    gain = effects["lerope"]["difference"] if "lerope" in effects and interval(effects["lerope"])[1] < 0 else None
    usual = groups.get("rope", [])
    made = []
    for label, runs in groups.items():
        learned = _learned_on(label, runs, usual, gain)
        made += [learned] if learned is not None else _scored(label, runs, usual, effects, gain)
    return _with_common_ways(made)


def _with_common_ways(made: list[Row]) -> list[Row]:
    """Rows with the extensions that all of them were scored with: the best of more would be no fair best."""
    scored = [row.extended for row in made if row.extended]
    common = [way for way in (scored[0] if scored else ()) if all(way in each for each in scored)]
    return [replace(row, extended={way: row.extended[way] for way in common if way in row.extended}) for row in made]


def _scored(label: str, runs: Runs, usual: Runs, effects: dict[str, MethodEffect], gain: float | None) -> list[Row]:
    """The row of runs that were scored with each extension, as they are, and the row of their logits by position, with
    which they are the same inside the window; nothing if they were not scored."""
    scored = [result for files in runs if (result := files.result(Extrapolation)) is not None and _reaches(result)]
    if not scored:
        return []
    effect = effects.get(runs[0].run.recipe.spec.method)
    inside, kept = "", None
    if effect is not None:
        low, high, _ = interval(effect)
        inside = f"{effect['difference']:+.4f} ({low:+.4f} to {high:+.4f})"
        kept = None if gain is None else effect["difference"] / gain
    steps = [step for files in runs if (step := _step(files)) is not None]
    steps_of_rope = [step for files in usual if (step := _step(files)) is not None]
    as_it_is = Row(
        label=label,
        num_seeds=len(scored),
        inside=inside,
        kept=kept,
        beyond={windows: _perplexity(scored, windows, "none", 0.0) for windows in SPANS},
        extended={way: _perplexity(scored, (1, TIMES), *way) for way in _ways(scored)},
        wavelength=", ".join(filter(None, map(_wavelength, runs))),
        step=fmean(steps) / fmean(steps_of_rope) if steps and steps_of_rope else None,
    )
    if BY_POSITION not in as_it_is.extended:
        return [as_it_is]
    beyond = {windows: _perplexity(scored, windows, *BY_POSITION) for windows in SPANS}
    return [as_it_is, replace(as_it_is, label=f"{label}, {_LOGITS}", beyond=beyond, extended={})]


def _learned_on(label: str, runs: Runs, usual: Runs, gain: float | None) -> Row | None:
    """The row of a run whose rotation learned on in rows of four windows: as it is, for texts of any length; None for
    other runs."""
    files = runs[0]
    arrays = files.arrays(Evaluation, "eval-truncated")
    if files.run.recipe.start_from is None or not arrays or not usual:
        return None
    length = files.run.recipe.row_length
    train = usual[0].run.recipe.row_length
    near, rope = files.result(Evaluation, f"eval-{train}"), usual[0].result(Evaluation, "eval")
    if near is None or rope is None:
        return None
    edges, reaches = position_edges(length), arrays["document_counts"].sum(1) == length

    def perplexity(first: int, last: int) -> float:
        some = (edges[:-1] >= first * train) & (edges[1:] <= last * train)
        sums, counts = (arrays[name][reaches][:, some].sum() for name in ("document_sums", "document_counts"))
        return math.exp(float(sums) / float(counts))

    difference = near.loss - rope.loss
    return Row(
        label=label,
        num_seeds=1,
        inside=f"{difference:+.4f}",
        kept=None if gain is None else difference / gain,
        beyond={windows: perplexity(*windows) for windows in SPANS},
        extended={},
        wavelength="",
        step=None,
    )


def waiting(study: Study, made: list[Row]) -> list[str]:
    """Encodings of the study that have no row yet."""
    labels = dict.fromkeys(_label(planned, study) for planned in study.runs)
    return [label for label in labels if label not in {row.label for row in made}]


def best(row: Row, *methods: str) -> tuple[Way, float]:
    """A row's best extension, of these methods or all, and the perplexity with it."""
    return min(((way, value) for way, value in row.extended.items() if not methods or way[0] in methods),
               key=lambda pair: pair[1])  # fmt: skip


def aims(made: list[Row]) -> str:
    """What the goal beyond the window comes to, and by which extensions, in sentences; nothing without RoPE."""
    rope = _of_rope(made)
    if rope is None:
        return ""
    (way, least), (yarn, usual) = best(rope), best(rope, "yarn")
    text = f"RoPE at its best, with {extension(*way)}, comes to {least:.2f} from one window to four: "
    text += f"the goal is {(1 + WORSE) * least:.2f}."
    if way != yarn:
        text += f" With {extension(*yarn)}, it comes to {usual:.2f}: the goal by YaRN is {(1 + WORSE) * usual:.2f}."
    tried = list(dict.fromkeys(method for method, _ in rope.extended if method != "none"))
    return f"{text} Extensions tried: {', '.join(WAYS[method] for method in tried)}."


def _of_rope(made: list[Row]) -> Row | None:
    return next((row for row in made if row.label == "rope"), None)


def met(row: Row, made: list[Row]) -> list[str]:
    """Which of the two conditions a row meets."""
    rope = _of_rope(made)
    found = ["inside"] * (row.kept is not None and row.kept >= KEPT)
    if rope is not None:
        outside, by_yarn = (row.beyond[1, TIMES] <= (1 + WORSE) * best(rope, *of)[1] for of in ((), ("yarn",)))
        found += ["outside"] * outside + ["outside, by YaRN"] * (by_yarn and not outside)
    return found


def verdict(made: list[Row]) -> str:
    """Which candidates come how far, in sentences; nothing without any."""
    others = [row for row in made if row.label not in ("rope", "lerope")]
    if not others:
        return ""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in others:
        groups.setdefault(tuple(met(row, made)), []).append(f"`{row.label}`")
    order = sorted(groups.items(), key=lambda pair: (-len(pair[0]), pair[0]))
    parts = [f"{' and '.join(words) or 'neither'}: {', '.join(labels)}" for words, labels in order]
    if SIDES not in groups:
        parts.insert(0, "both: none")
    seeds = "one seed" if max(row.num_seeds for row in made) == 1 else "over seeds"
    text = f"**Which conditions candidates meet** (by means, without intervals, {seeds}): {'; '.join(parts)}."
    if all(row.kept is None for row in made):
        text += " LeRoPE's own gain inside is not told from noise here, so that no share of it can be met."
    return text


def table(made: list[Row]) -> str:
    """The encodings, one a line."""
    lines = [HEAD]
    for row in made:
        kept = "" if row.kept is None else f"{row.kept:.0%}"
        step = "" if row.step is None else f"{row.step:.2f}"
        extended = ""
        if row.extended:
            way, least = best(row)
            extended = f"{least:.2f}: {extension(*way)}"
        cells = [f"`{row.label}`", row.inside, kept, *(f"{row.beyond[windows]:.2f}" for windows in SPANS), extended]
        goals = met(row, made)
        words = f"**{'; '.join(goals)}**" if len(goals) > 1 else "".join(goals)
        lines.append("| " + " | ".join([*cells, row.wavelength, step, words]) + " |")
    return "\n".join(lines)


def _label(planned: PlannedRun, study: Study) -> str:
    if planned.after is not None:
        source = next(run for run in study.runs if run.name == planned.after)
        return f"{_label(source, study)}, extension learned"
    name = planned.encoding.rpartition(":")[2] if ":" in planned.encoding else planned.encoding
    return name.partition(",")[0] if ":" in planned.encoding else name


def _reaches(result: Extrapolation) -> bool:
    """Whether documents were cut where the table ends."""
    return bool(result.settings["to"] == TIMES * result.settings["train_length"])


def _ways(results: list[Extrapolation]) -> list[Way]:
    """Those that all have."""
    found = [dict.fromkeys((row["method"], row["temperature"]) for row in result.ways) for result in results]
    return [way for way in found[0] if all(way in each for each in found)]


def curve(result: Extrapolation, method: str, temperature: float) -> list[ExtrapolationBin]:
    """Losses by position, over documents that reach the end."""
    return [
        row
        for row in result.by_position
        if row["selection"] == "long" and (row["method"], row["temperature"]) == (method, temperature)
    ]


def _perplexity(results: list[Extrapolation], windows: tuple[int, int], method: str, temperature: float) -> float:
    """Of tokens between two multiples of the window, by the mean loss over seeds."""
    losses = []
    for result in results:
        first, last = (number * result.settings["train_length"] for number in windows)
        some = [row for row in curve(result, method, temperature) if first <= row["start"] and row["stop"] <= last]
        losses.append(sum(row["loss"] * row["num_tokens"] for row in some) / sum(row["num_tokens"] for row in some))
    return math.exp(fmean(losses))


def _wavelength(files: RunFiles) -> str:
    """Of the band that varies most, in windows; in parentheses where it does not stand out."""
    found = files.result(Bands)
    if found is None or not found.dominant_wavelength:
        return ""
    words = f"{found.dominant_wavelength / found.train_length:.1f}"
    return words if found.stands_out else f"({words})"


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
    others = product(("-", ":", "--"), (BLACK, GREEN, PURPLE, SKY, ORANGE))
    if "rope" not in scored or len(scored) < 2:
        raise Missing("RoPE and another are needed", "lerope ladder results/laptop.py:horizon")
    rope, train = scored["rope"], scored["rope"].settings["train_length"]
    least = min(_ways([rope]), key=lambda way: _perplexity([rope], (1, TIMES), *way))
    own = {row["start"]: row["loss"] for row in curve(rope, "none", 0.0)}
    target = {row["start"]: row["loss"] if row["start"] >= train else own[row["start"]] for row in curve(rope, *least)}
    figure = new_figure(PAGE, 3.8)
    axes = figure.subplots()
    drawn = [(label, result, ("none", 0.0)) for label, result in scored.items()]
    by_position = {label: _perplexity([result], (1, TIMES), *BY_POSITION) for label, result in scored.items()
                   if BY_POSITION in _ways([result])}  # fmt: skip
    # Of RoPE, and of the other encoding that is best with it.
    chosen = sorted(by_position, key=lambda label: (label != "rope", by_position[label]))[:2]
    drawn += [(f"{look(label).label if label in _KNOWN else label}, {_LOGITS}", scored[label], BY_POSITION)
              for label in chosen]  # fmt: skip
    for label, result, way in drawn:
        bins = curve(result, *way)
        x = [(row["start"] + row["stop"]) / 2 / train for row in bins]
        y = [row["loss"] - target[row["start"]] for row in bins]
        if label in _KNOWN:
            axes.plot(x, y, **look(label).stroke, label=look(label).label)
        else:
            line, colour = next(others)
            axes.plot(x, y, color=colour, ls=line, lw=0.9, label=label)
    bottom = axes.get_ylim()[0]
    axes.axhspan(bottom, math.log1p(WORSE), color="0.92", zorder=0)
    axes.set_ylim(bottom)
    axes.axvline(1, color=GUIDE, ls=":", lw=0.9)
    axes.set(xlabel="position (windows)", ylabel="loss less that of RoPE at its best (nats)")
    figure.legend(loc="outside upper center", ncols=2)
    return figure
