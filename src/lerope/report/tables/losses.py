"""Losses and perplexities: by rung, variant and seed, on code and on other documents."""

import math
from collections.abc import Sequence

import numpy as np

from lerope.core.grouping import grouped
from lerope.paper import numbers as paper
from lerope.report.collect import Bundle
from lerope.report.groups import (
    by_rung,
    code_runs,
    main_study,
    method,
    rung,
    rungs_beside_paper,
    same_seeds,
    seed,
    train_length,
)
from lerope.report.measured import beside_rope, comparable_losses, loss, loss_words, mean_loss
from lerope.report.style import method_label, order
from lerope.report.tables.table import NO_VALUE, OURS, PAPER, Cell, Column, Table
from lerope.report.words import scored_on
from lerope.results import Bands, Evaluation


def perplexity(bundle: Bundle) -> Table:
    """The main table: validation perplexity by method and rung."""
    study = main_study(bundle)
    ours = {
        (name, place): math.exp(mean_loss(some))
        for place, runs in by_rung(comparable_losses(study)).items()
        for name, some in grouped(same_seeds(runs), method).items()
    }
    rungs = rungs_beside_paper(study)
    rows: list[list[Cell]] = []
    for name in order([*paper.PERPLEXITY, *(key[0] for key in ours)]):
        if any(key[0] == name for key in ours):
            rows.append([method_label(name), OURS, *(ours.get((name, place)) for place in rungs)])
        if name in paper.PERPLEXITY:
            printed = dict(zip(paper.RUNGS, paper.PERPLEXITY[name], strict=True))
            rows.append([method_label(name), PAPER, *(_fixed(printed.get(place)) for place in rungs)])
    columns = [Column("method"), Column("source"), *(Column(place, ".4f") for place in rungs)]
    caption = (
        f"Validation perplexity by rung; ours is from the {loss_words(study)}, the mean over the seeds that all "
        "methods of a rung have."
    )
    return Table("perplexity", caption, columns, rows)


def ablations(bundle: Bundle) -> Table:
    """Variants against RoPE, at our rung with the most methods and at the paper's 217M."""
    rungs = by_rung(comparable_losses(main_study(bundle)))
    runs = same_seeds(max(rungs.values(), key=lambda some: len({method(files) for files in some}), default=[]))
    where = rung(runs[0]) if runs else NO_VALUE
    losses: dict[str, tuple[float | None, float | None]] = {
        name: beside_rope(some, runs) for name, some in grouped(runs, method).items()
    }
    printed: dict[str, tuple[str, str | None]] = {
        paper.METHODS[name]: values for name, values in paper.ABLATIONS.items()
    }
    printed["rope"] = (paper.LOSS["RoPE"], None)
    rows: list[list[Cell]] = []
    for name in order([*printed, *losses]):
        own, base = losses.get(name, (None, None))
        difference = None if own is None or base is None or name == "rope" else own - base
        rows.append([method_label(name), own, difference, *printed.get(name, (None, None))])
    columns = [Column("variant"), Column(f"{where}, loss", ".4f"), Column("less RoPE's", "+.4f")]
    columns += [Column("paper, 217M, loss", ".4f"), Column("paper, less RoPE's", "+.4f")]
    caption = (
        f"Variants, by validation loss in nats per token; ours is the {loss_words(runs)}, the mean over the seeds that "
        "all variants have."
    )
    return Table("ablations", caption, columns, rows)


def seeds(bundle: Bundle) -> Table:
    """Losses seed by seed, and how far each method is behind LeRoPE on the same seeds."""
    study = comparable_losses(main_study(bundle))
    numbers = sorted({seed(files) for files in study} | {42, 43, 44})
    rows: list[list[Cell]] = []
    for place, runs in by_rung(study).items():
        methods = grouped(runs, method)
        if max(len(some) for some in methods.values()) < 2:
            continue
        best = {seed(files): loss(files) for files in methods.get("lerope", [])}
        for name in order(methods):
            own = {seed(files): loss(files) or math.nan for files in methods[name]}
            gaps = [own[at] - (best[at] or math.nan) for at in own if at in best and name != "lerope"]
            cells: list[Cell] = [place, method_label(name), OURS, *(own.get(number) for number in numbers)]
            values = list(own.values())
            margin = float(np.mean(gaps)) if gaps else None
            rows.append([*cells, float(np.mean(values)), _deviation(values), margin, _deviation(gaps)])
    for place, printed in paper.SEEDS.items():
        for label, (texts, mean, spread, behind) in printed.items():
            known = dict(zip((42, 43, 44), texts, strict=True))
            cells = [place, method_label(paper.METHODS[label]), PAPER, *(known.get(number) for number in numbers)]
            rows.append([*cells, mean, spread, behind, paper.PAIRED_DEVIATIONS.get((place, label))])
    columns = [Column("rung"), Column("method"), Column("source"), *(Column(f"seed {n}", ".4f") for n in numbers)]
    columns += [Column("mean", ".4f"), Column("deviation", ".4f"), Column("behind LeRoPE", "+.4f")]
    columns += [Column("its deviation", ".4f")]
    caption = (
        f"Validation loss in nats per token by seed; ours is the {loss_words(study)}. The last two columns are the "
        "mean of paired differences and their standard deviation."
    )
    return Table("seeds", caption, columns, rows)


def code(bundle: Bundle) -> Table:
    """Losses on code."""
    runs = comparable_losses(code_runs(bundle))
    shortest = min((train_length(files) for files in runs), default=0)
    runs = [files for files in runs if train_length(files) == shortest]
    rows: list[list[Cell]] = []
    for place, some in by_rung(runs).items():
        some = same_seeds(some)
        methods = grouped(some, method)
        for name in order(methods):
            own, base = beside_rope(methods[name], some)
            difference = None if name == "rope" or base is None else own - base
            bands = [found.dominant_wavelength for files in methods[name] if (found := files.result(Bands)) is not None]
            rows.append([method_label(name), f"ours, {place}", shortest, own, difference, bands[0] if bands else None])
    rows.append([method_label("rope"), "paper, 217M", 2048, paper.CODE_ROPE, None, None])
    rows += [
        [
            method_label(paper.METHODS[name]),
            "paper, 217M",
            2048,
            *values,
            f"{paper.CODE_WAVELENGTHS[2048]:,.0f}" if name == "LeRoPE" else None,
        ]
        for name, values in paper.CODE.items()
    ]
    columns = [Column("method"), Column("source"), Column("L", ",d"), Column("loss", ".4f")]
    columns += [Column("less RoPE's", "+.4f"), Column("dominant wavelength, tokens", ",.0f")]
    caption = f"Loss on code in nats per token; ours is the {loss_words(runs)}, the paper's is on StarCoder-Python."
    return Table("code", caption, columns, rows)


def documents(bundle: Bundle) -> Table:
    """Every evaluation of every run: its validation documents, and texts from outside."""
    rows: list[list[Cell]] = []
    for files in bundle.runs:
        for found in files.results.values():
            if isinstance(found, Evaluation):
                counts: list[Cell] = [found.num_documents, found.num_tokens]
                losses: list[Cell] = [found.loss, found.perplexity, found.bits_per_byte]
                rows.append([scored_on(found), files.run.name, *counts, *losses])
    rows.sort(key=lambda row: str(row[0]))
    columns = [Column("documents"), Column("run"), Column("number", ",d"), Column("tokens", ",d")]
    columns += [Column("loss", ".4f"), Column("perplexity", ",.4f"), Column("bits per byte", ".4f")]
    return Table("documents", "Evaluated losses in nats per token, on all documents that were scored.", columns, rows)


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _fixed(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"
