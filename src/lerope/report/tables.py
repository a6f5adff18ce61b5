"""Every table of the paper as data, with our values beside the paper's: as CSV, Markdown and LaTeX.

Numbers stay numbers until they are written; what the paper prints stays as it is printed. CSV has all digits, the other
two have as many as a column asks for.
"""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lerope.report.collect import Bundle, RunFiles
from lerope.report.figures.extrapolation import scored
from lerope.report.figures.inputs import (
    by_rung,
    code_runs,
    comparable_losses,
    group,
    ladder,
    learning_rate_runs,
    loss,
    main_study,
    method,
    rung,
    seed,
    text_runs,
    train_length,
    validation_loss,
    wavelengths,
)
from lerope.report.figures.learning_rates import PAPER_INDICES
from lerope.report.style import method_label, order
from lerope.results import Bands, Extrapolation, Multipliers
from lerope.scaling import paper
from lerope.scaling.compute import LAYERS, ladder_compute
from lerope.scaling.multipliers import PIECEWISE
from lerope.scaling.paper_runs import ABLATIONS, CODE, CODE_ROPE, DOMINANT_BANDS, GAIN_CAPTURED, LOSS, SEEDS
from lerope.scaling.wavelengths import wavelength_ratio

Cell = str | int | float | None
"""None is a value that does not exist."""

NO_VALUE = "—"
_OURS, _PAPER = "ours", "paper"
# The paper's names of methods as ours.
_METHODS = {
    "RoPE": "rope",
    "b = 2048": "rope,base=2048",
    "b = 500k": "rope,base=500000",
    "p-RoPE": "prope",
    "p-RoPE, p = 0.25": "prope,p=0.25",
    "p-RoPE, p = 0.5": "prope,p=0.5",
    "p-RoPE, p = 0.75": "prope",
    "LeRoPE": "lerope",
    "LeRoPE, linear": "lerope,parametrization=linear",
    "LeRoPE, direct": "lerope,parametrization=direct",
    "LeRoPE, per layer and head": "lerope,sharing=layer_head",
    "Fixed LeRoPE": "frozen",
}
_PRINTED_RATES = {"52M": "1.10e-2", "217M": "2.76e-3", "608M": "9.77e-4", "1.34B": "4.88e-4", "2.52B": "3.45e-4"}
# Of LeRoPE, rung by rung.
_PRINTED_MULTIPLIERS = {
    PIECEWISE: ("1.071", "1.048", "1.047", "1.032", "1.034"),
    "fitted": ("1.064", "1.047", "1.039", "1.039", "1.031"),
}
# Parameters without embeddings and all, as printed.
_PRINTED_SIZES = {
    "52M": ("18.87M", "51.64M"),
    "217M": ("150.99M", "216.53M"),
    "608M": ("509.61M", "607.91M"),
    "1.34B": ("1.21B", "1.34B"),
    "2.52B": ("2.36B", "2.52B"),
}
# Perplexity at 2.52B within the train length, beyond it, and over both; YaRN unless said.
_PRINTED_EXTRAPOLATION = {
    ("rope", "YaRN"): ("10.138", "8.861", "10.042"),
    ("prope", "YaRN"): ("10.133", "8.838", "10.035"),
    ("lerope", "dominant band only"): ("10.112", "8.965", "10.026"),
    ("lerope", "YaRN"): ("10.106", "8.776", "10.005"),
}
_PRINTED_RECIPE = {
    "row_length": "2048",
    "batch_tokens": "131,072",
    "vocab_size": "32,000",
    "betas": "0.9, 0.95",
    "eps": "1e-8",
    "warmup_steps": "1000",
    "schedule": "cosine",
    "precision": "bf16",
    "max_norm": "1.0",
    "weight_decay": "8 (independent, by steps)",
}


@dataclass(frozen=True)
class Column:
    """A column's heading, and how its numbers are written for people: a format such as `.4f`."""

    title: str
    numbers: str = ""


@dataclass(frozen=True)
class Table:
    """A table as data."""

    name: str
    """Of its files."""
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]

    def text(self) -> list[list[str]]:
        """The cells as people read them."""
        return [
            [_text(cell, column.numbers) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows
        ]

    def csv(self) -> str:
        """With all digits; a value that does not exist is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(column.title for column in self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """A pipe table under its caption."""
        lines = [
            [_markdown(column.title) for column in self.columns],
            ["---:" if column.numbers else "---" for column in self.columns],
            *([_markdown(cell) for cell in row] for row in self.text()),
        ]
        return "\n".join([_markdown(self.caption), "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    def latex(self) -> str:
        """A table environment for the package booktabs."""
        head = " & ".join(_latex(column.title) for column in self.columns)
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(self.caption)}}}",
            rf"  \label{{tab:{self.name}}}",
            rf"  \begin{{tabular}}{{{''.join('r' if column.numbers else 'l' for column in self.columns)}}}",
            r"    \toprule",
            rf"    {head} \\",
            r"    \midrule",
            *(rf"    {' & '.join(map(_latex, row))} \\" for row in self.text()),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def tables(bundle: Bundle) -> list[Table]:
    """All tables; where a bundle has nothing of ours, the paper's values stand alone."""
    return [make(bundle) for make in MAKERS]


def write_tables(bundle: Bundle, folder: Path) -> list[Path]:
    """Writes every table as NAME.csv, NAME.md and NAME.tex."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for table in tables(bundle):
        for ending, content in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
            files.append(folder / f"{table.name}.{ending}")
            files[-1].write_text(content, encoding="utf-8", newline="")
    return files


def perplexity(bundle: Bundle) -> Table:
    """The main table: validation perplexity by method and rung."""
    study = main_study(bundle)
    ours = {
        (name, place): math.exp(_mean_loss(some))
        for place, runs in by_rung(comparable_losses(study)).items()
        for name, some in group(_same_seeds(runs), method).items()
    }
    rungs = _rungs(study)
    rows: list[list[Cell]] = []
    for name in order([*paper.PERPLEXITY, *(key[0] for key in ours)]):
        if any(key[0] == name for key in ours):
            rows.append([method_label(name), _OURS, *(ours.get((name, place)) for place in rungs)])
        if name in paper.PERPLEXITY:
            printed = dict(zip(paper.RUNGS, paper.PERPLEXITY[name], strict=True))
            rows.append([method_label(name), _PAPER, *(_fixed(printed.get(place), 4) for place in rungs)])
    columns = [Column("method"), Column("source"), *(Column(place, ".4f") for place in rungs)]
    caption = "Validation perplexity by rung; ours is of the mean loss over the seeds that all methods of a rung have."
    return Table("perplexity", caption, columns, rows)


def gain(bundle: Bundle) -> Table:
    """The share of LeRoPE's gain that methods have."""
    rows: list[list[Cell]] = []
    comparison = bundle.comparison
    if comparison is not None:
        for item in comparison.gains:
            label = method_label(item["method"])
            shares = [100 * item["perplexity"], 100 * item["perplexity_low"], 100 * item["perplexity_high"]]
            rows.append([label, _OURS, item["rung"], *shares, 100 * item["loss"], item["num_seeds"]])
    rows += [
        [method_label(_METHODS[name]), _PAPER, "217M", printed[0], None, None, None, 1]
        for name, printed in GAIN_CAPTURED.items()
    ]
    columns = [Column("method"), Column("source"), Column("rung"), Column("gain in perplexity, %", ".1f")]
    columns += [Column("95 % from", ".1f"), Column("to", ".1f"), Column("gain in loss, %", ".1f"), Column("seeds", "d")]
    caption = "Share of the reference method's gain over the baseline; intervals over documents."
    return Table("gain-captured", caption, columns, rows)


def learning_rates(bundle: Bundle) -> Table:
    """The best learning rate by rung."""
    rows: list[list[Cell]] = []
    swept = learning_rate_runs(bundle)
    for place in [name for name in _rungs(bundle.runs) if name in swept or name in _PRINTED_RATES]:
        for name, runs in group(swept.get(place, []), method).items():
            best = min(runs, key=lambda files: validation_loss(files) or math.inf)
            rate = float(best.run.recipe["learning_rate"])
            rates = sorted({float(files.run.recipe["learning_rate"]) for files in runs})
            between = rates[0] < rate < rates[-1]
            found = "swept, best between worse" if between else "swept, best at an end"
            rows.append([place, method_label(name), _OURS, rate, -2 * math.log2(rate), len(rates), found])
        if place in _PRINTED_RATES:
            how = "swept" if place in ("52M", "217M", "608M") else "extrapolated"
            rows.append([place, "all", _PAPER, _PRINTED_RATES[place], PAPER_INDICES[place], None, how])
    columns = [Column("rung"), Column("method"), Column("source"), Column("learning rate", ".2e")]
    columns += [Column("index i of 2^(-i/2)", ".4g"), Column("rates tried", "d"), Column("determination")]
    return Table("learning-rates", "Best peak learning rates.", columns, rows)


def ladder_sizes(bundle: Bundle) -> Table:
    """Shapes and sizes of the ladder's rungs, by its rule."""
    rows: list[list[Cell]] = []
    for place, layers in LAYERS.items():
        heads = 4 * layers // 3
        width = 64 * heads
        blocks = 12 * width**2 * layers
        total = blocks + 2 * 32_000 * width
        printed = _PRINTED_SIZES.get(place, (None, None))
        flops = ladder_compute(place)
        rows.append([place, layers, heads, width, 4 * width, blocks / 1e6, printed[0], total / 1e6, printed[1]])
        rows[-1] += [flops / (6 * blocks) / 1e9, flops]
    columns = [Column("rung"), *(Column(title, ",d") for title in ("layers", "heads", "width", "MLP width"))]
    columns += [Column("parameters without embeddings, M", ",.2f"), Column("paper's")]
    columns += [Column("all parameters, M", ",.2f"), Column("paper's"), Column("tokens, billions", ".2f")]
    columns += [Column("compute, FLOPs", ".3e")]
    caption = "The ladder with the vocabulary of 32,000 tokens; head dimension 64, 20 tokens a parameter."
    return Table("ladder", caption, columns, rows)


def recipe(bundle: Bundle) -> Table:
    """How runs were trained, beside the paper's hyperparameters."""
    study = main_study(bundle)
    largest = list(by_rung(study).values())[-1] if study else []
    rows: list[list[Cell]] = []
    for field, printed in _PRINTED_RECIPE.items():
        values = {_short(_recipe_field(files, field)) for files in largest}
        rows.append([field, " or ".join(sorted(values)) or None, printed])
    where = f" of our largest rung, {rung(largest[0])}," if largest else ""
    columns = [Column("field"), Column(_OURS), Column(_PAPER)]
    return Table("recipe", f"Recipe{where} beside the paper's.", columns, rows)


def multipliers(bundle: Bundle) -> Table:
    """Compute multipliers under both estimators."""
    rungs = _rungs(main_study(bundle))
    found = ladder(bundle)
    rows: list[list[Cell]] = []
    for name in [] if found is None else order(row["method"] for row in found.multipliers):
        assert found is not None
        for estimator in (PIECEWISE, "fitted"):
            values = _of(found, name, estimator)
            if values:
                rows.append([method_label(name), estimator, _OURS, *(values.get(place) for place in rungs)])
    for estimator, texts in _PRINTED_MULTIPLIERS.items():
        printed = dict(zip(paper.RUNGS, texts, strict=True))
        rows.append([method_label("lerope"), estimator, _PAPER, *(printed.get(place) for place in rungs)])
    columns = [Column("method"), Column("estimator"), Column("source"), *(Column(place, ".3f") for place in rungs)]
    caption = "Compute multipliers against RoPE: piecewise in ln C, and the efficiency gain of a fitted power law."
    return Table("compute-multipliers", caption, columns, rows)


def floors(bundle: Bundle) -> Table:
    """How far the fitted gain depends on the assumed floor E."""
    rungs = _rungs(main_study(bundle))
    found = ladder(bundle)
    rows: list[list[Cell]] = []
    if found is not None:
        fits: dict[str, dict[str, float]] = {}
        for item in found.fits:
            fits.setdefault(item["estimator"], {})[item["parameter"]] = item["value"]
        names = [name for name in order(row["method"] for row in found.multipliers) if name.startswith("lerope")]
        for estimator, parameters in sorted(fits.items(), key=lambda pair: pair[1].get("E", math.inf)):
            if estimator == "fitted" or estimator.startswith("E = "):
                for name in names:
                    values = _of(found, name, estimator)
                    floor = f"{parameters['E']:.3f}, fitted" if estimator == "fitted" else f"{parameters['E']:g}"
                    cells: list[Cell] = [floor, method_label(name), _OURS]
                    cells += [parameters["alpha"], parameters["rmse"], *(values.get(place) for place in rungs)]
                    rows.append(cells)
    for held, (alpha, rmse, gains) in paper.SENSITIVITY.items():
        printed = dict(zip(paper.RUNGS, gains, strict=True))
        rows.append([f"{held:g}", "LeRoPE", _PAPER, alpha, rmse, *(printed.get(place) for place in rungs)])
    columns = [Column("E"), Column("method"), Column("source"), Column("alpha", ".3f")]
    columns += [Column("RMSE, nats", ".1e"), *(Column(place, ".3f") for place in rungs)]
    caption = "Efficiency gain by rung under an assumed irreducible loss E."
    return Table("sensitivity-to-floor", caption, columns, rows)


def ablations(bundle: Bundle) -> Table:
    """Variants against RoPE, at our rung with most methods and at the paper's 217M."""
    rungs = by_rung(comparable_losses(main_study(bundle)))
    runs = _same_seeds(max(rungs.values(), key=lambda some: len({method(files) for files in some}), default=[]))
    where = rung(runs[0]) if runs else NO_VALUE
    losses: dict[str, tuple[float | None, float | None]] = {
        name: _beside_rope(some, runs) for name, some in group(runs, method).items()
    }
    printed: dict[str, tuple[str, str | None]] = {_METHODS[name]: values for name, values in ABLATIONS.items()}
    printed["rope"] = (LOSS["RoPE"], None)
    rows: list[list[Cell]] = []
    for name in order([*printed, *losses]):
        own, base = losses.get(name, (None, None))
        difference = None if own is None or base is None or name == "rope" else own - base
        rows.append([method_label(name), own, difference, *printed.get(name, (None, None))])
    columns = [Column("variant"), Column(f"{where}, loss", ".4f"), Column("less RoPE's", "+.4f")]
    columns += [Column("paper, 217M, loss", ".4f"), Column("paper, less RoPE's", "+.4f")]
    caption = "Variants, by validation loss in nats per token; ours is the mean over the seeds that all variants have."
    return Table("ablations", caption, columns, rows)


def seeds(bundle: Bundle) -> Table:
    """Losses seed by seed, and how far each method is behind LeRoPE on the same seeds."""
    study = comparable_losses(main_study(bundle))
    numbers = sorted({seed(files) for files in study} | {42, 43, 44})
    rows: list[list[Cell]] = []
    for place, runs in by_rung(study).items():
        methods = group(runs, method)
        if max(len(some) for some in methods.values()) < 2:
            continue
        best = {seed(files): loss(files) for files in methods.get("lerope", [])}
        for name in order(methods):
            own = {seed(files): loss(files) or math.nan for files in methods[name]}
            gaps = [own[number] - (best[number] or math.nan) for number in own if number in best]
            cells: list[Cell] = [place, method_label(name), _OURS, *(own.get(number) for number in numbers)]
            values = list(own.values())
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
            margin = float(np.mean(gaps)) if gaps and name != "lerope" else None
            rows.append([*cells, float(np.mean(values)), deviation, margin])
    for place, printed in SEEDS.items():
        for label, (texts, mean, spread, behind) in printed.items():
            known = dict(zip((42, 43, 44), texts, strict=True))
            own_label = method_label(_METHODS[label])
            rows.append([place, own_label, _PAPER, *(known.get(number) for number in numbers), mean, spread, behind])
    columns = [Column("rung"), Column("method"), Column("source"), *(Column(f"seed {n}", ".4f") for n in numbers)]
    columns += [Column("mean", ".4f"), Column("deviation", ".4f"), Column("behind LeRoPE", "+.4f")]
    caption = "Validation loss in nats per token by seed; the last column is the mean of paired differences."
    return Table("seeds", caption, columns, rows)


def dominant_bands(bundle: Bundle) -> Table:
    """The dominant band of runs with learned frequencies, and wavelength / train length under both estimators."""
    rows: list[list[Cell]] = []
    lengths, found = [], []
    for files in text_runs(bundle):
        bands, profile = files.result(Bands), wavelengths(files)
        band, family = None if bands is None else bands.dominant_band, method(files).partition(",")[0]
        if family not in ("lerope", "frozen") or bands is None or band is None or profile is None:
            continue
        rope, own = profile[0][band], profile[1][band]
        if family == "lerope":
            lengths.append(bands.train_length)
            found.append(float(own))
        theta = 2 * math.pi / own
        cells: list[Cell] = [files.run.name, rung(files), bands.train_length, band, rope / own, theta, float(own)]
        rows.append([*cells, theta * bands.train_length, own / bands.train_length, bands.dominance])
    if found:
        rows += _ratios("ours", lengths, found)
    printed_lengths = [row[0] for row in DOMINANT_BANDS.values()]
    printed_wavelengths = [float(row[4]) for row in DOMINANT_BANDS.values()]
    for name, (length, band, scale, frequency, wavelength, turn) in DOMINANT_BANDS.items():
        place = name.partition(",")[0]
        ratio = float(wavelength) / length
        rows.append([f"paper, {place}", place, length, band, scale, frequency, wavelength, turn, ratio, None])
    rows += _ratios("paper", printed_lengths, printed_wavelengths)
    columns = [Column("run"), Column("rung"), Column("L", ",d"), Column("band", "d"), Column("exp(alpha)", ".4f")]
    columns += [Column("frequency", ".6f"), Column("wavelength, tokens", ",.1f"), Column("frequency L", ".3f")]
    columns += [Column("wavelength / L", ".3f"), Column("dominance", ".1f")]
    caption = (
        "Dominant bands. Dominance is the band's variation by the next largest. The mean of runs counts every run "
        "alike; the slope through the origin counts a run with the square of its train length."
    )
    return Table("dominant-bands", caption, columns, rows)


def extrapolation(bundle: Bundle) -> Table:
    """Perplexity within and beyond the train length, for each way of stretching."""
    rows: list[list[Cell]] = []
    for name, files in scored(bundle).items():
        result = files.result(Extrapolation)
        assert result is not None
        selection = "long" if any(way["selection"] == "long" for way in result.ways) else "all"
        for way in result.ways:
            if way["selection"] == selection:
                parts: list[Cell] = [way["in_distribution_perplexity"], way["extrapolated_perplexity"]]
                label = method_label(name)
                rows.append([label, way["label"], f"ours, {rung(files)}", *parts, way["full_perplexity"]])
    for (name, words), printed in _PRINTED_EXTRAPOLATION.items():
        rows.append([method_label(name), words, "paper, 2.52B", *printed])
    columns = [Column("method"), Column("way"), Column("source")]
    columns += [Column(title, ",.3f") for title in ("within", "beyond", "full")]
    caption = "Perplexity at positions within and beyond the train length, over documents that reach the end."
    return Table("extrapolation", caption, columns, rows)


def code(bundle: Bundle) -> Table:
    """Losses on code."""
    runs = comparable_losses(code_runs(bundle))
    shortest = min((train_length(files) for files in runs), default=0)
    runs = [files for files in runs if train_length(files) == shortest]
    rows: list[list[Cell]] = []
    for place, some in by_rung(runs).items():
        some = _same_seeds(some)
        methods = group(some, method)
        for name in order(methods):
            own, base = _beside_rope(methods[name], some)
            difference = None if name == "rope" or base is None else own - base
            bands = [found.dominant_wavelength for files in methods[name] if (found := files.result(Bands)) is not None]
            rows.append([method_label(name), f"ours, {place}", shortest, own, difference, bands[0] if bands else None])
    rows.append([method_label("rope"), "paper, 217M", 2048, CODE_ROPE, None, None])
    rows += [
        [method_label(_METHODS[name]), "paper, 217M", 2048, *values, "5,250" if name == "LeRoPE" else None]
        for name, values in CODE.items()
    ]
    columns = [Column("method"), Column("source"), Column("L", ",d"), Column("loss", ".4f")]
    columns += [Column("less RoPE's", "+.4f"), Column("dominant wavelength, tokens", ",.0f")]
    return Table("code", "Validation loss on code in nats per token; the paper's is StarCoder-Python.", columns, rows)


MAKERS: list[Callable[[Bundle], Table]] = [
    perplexity,
    gain,
    learning_rates,
    ladder_sizes,
    recipe,
    multipliers,
    floors,
    ablations,
    seeds,
    dominant_bands,
    extrapolation,
    code,
]
"""One function a table."""


def _of(found: Multipliers, name: str, estimator: str) -> dict[str | None, float | None]:
    """A method's multipliers by rung."""
    rows = [row for row in found.multipliers if (row["method"], row["estimator"]) == (name, estimator)]
    return {row["rung"]: row["multiplier"] for row in rows}


def _rungs(runs: Sequence[RunFiles]) -> list[str]:
    """The paper's rungs and ours, the smallest first; those that the ladder does not know come first."""
    ours = list(by_rung(runs))
    known = [place for place in LAYERS if place in ours or place in paper.RUNGS]
    return [*(place for place in ours if place not in LAYERS), *known]


def _same_seeds(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Runs of the seeds that every method has, so that means can be compared; all runs if there are none."""
    methods = group(runs, method).values()
    shared = set.intersection(*({seed(files) for files in some} for some in methods)) if methods else set()
    return [files for files in runs if seed(files) in shared] or list(runs)


def _mean_loss(runs: Sequence[RunFiles]) -> float:
    return float(np.mean([loss(files) for files in runs]))


def _beside_rope(runs: Sequence[RunFiles], every: Sequence[RunFiles]) -> tuple[float, float | None]:
    """The mean loss of some runs and of RoPE over the seeds that both have; over all seeds if there are none."""
    rope = {seed(files): files for files in every if method(files) == "rope"}
    paired = [files for files in runs if seed(files) in rope]
    if not paired:
        return _mean_loss(runs), None
    return _mean_loss(paired), _mean_loss([rope[seed(files)] for files in paired])


def _ratios(source: str, lengths: Sequence[int], found: Sequence[float]) -> list[list[Cell]]:
    """Both estimators of wavelength / L, as rows of the table of dominant bands."""
    ratio = wavelength_ratio([float(length) for length in lengths], found)
    blank: list[Cell] = [None] * 7
    return [
        [f"{source}, mean of {len(found)} runs", *blank, ratio.mean, None],
        [f"{source}, slope through the origin", *blank, ratio.slope, None],
    ]


def _recipe_field(files: RunFiles, field: str) -> object:
    fields = files.run.recipe
    return fields.get("model", {}).get(field) if field == "vocab_size" else fields.get(field)


def _short(value: object) -> str:
    if value is None:
        return NO_VALUE
    if isinstance(value, list):
        return ", ".join(f"{item:g}" for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fixed(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _text(cell: Cell, numbers: str) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return NO_VALUE
    return cell if isinstance(cell, str) else format(cell, numbers)


def _markdown(text: str) -> str:
    """Text that stays text: nothing in it is markup, a link or HTML."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "|`*_[]$~#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "—": "---",
    "\n": " ",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
