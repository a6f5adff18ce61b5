"""What a comparison says: differences, the gain that methods capture, and the gap by position."""

import math

from lerope.core.grouping import grouped
from lerope.paper import numbers as paper
from lerope.report.collect import Bundle
from lerope.report.measured import effects, interval
from lerope.report.style import method_label, place
from lerope.report.tables.table import OURS, PAPER, Cell, Column, Table
from lerope.results import CapturedGain, Comparison


def gain(bundle: Bundle) -> Table:
    """The share of LeRoPE's gain that methods have, between RoPE's 0 % and LeRoPE's own 100 %."""
    rows: list[list[Cell]] = []
    if bundle.comparison is not None:
        for gains in _between_same_ends(bundle.comparison):
            rows += _gain_rows(bundle.comparison, gains)
    for name in ("RoPE", *paper.GAIN_CAPTURED, "LeRoPE"):
        share = {"RoPE": "0", "LeRoPE": "100"}.get(name) or paper.GAIN_CAPTURED[name][0]
        perplexity = paper.SEED_42_PERPLEXITY["217M", name]
        rows.append([method_label(paper.METHODS[name]), PAPER, "217M", 1, perplexity, share, None, None, None])
    columns = [Column("method"), Column("source"), Column("rung"), Column("seeds", "d"), Column("perplexity", ".4f")]
    columns += [Column("gain in perplexity, %", ".1f"), Column("95 % from", ".1f"), Column("to", ".1f")]
    columns += [Column("gain in loss, %", ".1f")]
    ours = bundle.comparison if bundle.comparison is not None and bundle.comparison.gains else None
    base, all_of_it = ("rope", "lerope") if ours is None else (ours.baseline, str(ours.reference))
    caption = (
        f"Share of the gain that {method_label(all_of_it)} has over {method_label(base)}, over the seeds that all "
        "three have; intervals over documents."
    )
    return Table("gain-captured", caption, columns, rows)


def _between_same_ends(comparison: Comparison) -> list[list[CapturedGain]]:
    """Gains of one rung over the same seeds, in the order of methods."""
    by_method = sorted(comparison.gains, key=lambda item: place(item["method"]))
    found = grouped(by_method, lambda item: (item["rung"], item["baseline_loss"], item["reference_loss"]))
    rungs = list(dict.fromkeys(item["rung"] for item in comparison.gains))
    return sorted(found.values(), key=lambda gains: rungs.index(gains[0]["rung"]))


def _gain_rows(comparison: Comparison, gains: list[CapturedGain]) -> list[list[Cell]]:
    first = gains[0]

    def row(method: str, loss: float, *shares: Cell) -> list[Cell]:
        return [method_label(method), OURS, first["rung"], first["num_seeds"], math.exp(loss), *shares]

    between = [
        row(
            item["method"],
            item["method_loss"],
            *(100 * item[name] for name in ("perplexity", "perplexity_low", "perplexity_high", "loss")),
        )
        for item in gains
    ]
    return [
        row(comparison.baseline, first["baseline_loss"], 0.0, None, None, 0.0),
        *between,
        row(str(comparison.reference), first["reference_loss"], 100.0, None, None, 100.0),
    ]


def differences(bundle: Bundle) -> Table:
    """Every method's loss less the baseline's, with what a verdict stands on."""
    rows: list[list[Cell]] = []
    comparison = bundle.comparison
    for effect in effects(comparison) if comparison is not None else ():
        counts: list[Cell] = [effect["num_seeds"], effect["num_documents"], effect["num_tokens"]]
        noise = {True: "yes", False: "no", None: "one seed"}[effect["beyond_noise"]]
        values: list[Cell] = [effect["loss"], effect["baseline_loss"], effect["difference"], *interval(effect)]
        rows.append([effect["rung"], method_label(effect["method"]), *counts, *values, effect["seed_deviation"], noise])
    baseline = method_label("rope" if comparison is None else comparison.baseline)
    columns = [
        Column("rung"),
        Column("method"),
        Column("seeds", "d"),
        Column("documents", ",d"),
        Column("tokens", ",d"),
    ]
    columns += [Column("loss", ".4f"), Column(f"{baseline}'s", ".4f"), Column("difference", "+.4f")]
    columns += [Column("95 % from", "+.4f"), Column("to", "+.4f"), Column("deviation between seeds", ".4f")]
    columns += [Column("more than noise")]
    caption = (
        f"Evaluated loss in nats per token less that of {baseline}, paired by seed and document; intervals over both, "
        "or over documents alone where there is one seed, which says nothing about others."
    )
    return Table("differences", caption, columns, rows)


def gap_by_position(bundle: Bundle) -> Table:
    """Every method's loss less the baseline's, by position in the window."""
    rows: list[list[Cell]] = []
    comparison = bundle.comparison
    for gap in comparison.by_position if comparison is not None else ():
        cells: list[Cell] = [gap["rung"], method_label(gap["method"]), gap["start"], gap["stop"] - 1]
        rows.append([*cells, gap["num_tokens"], gap["difference"], gap["standard_error"]])
    baseline = "the baseline" if comparison is None else method_label(comparison.baseline)
    columns = [Column("rung"), Column("method"), Column("from position", ",d"), Column("to", ",d")]
    columns += [Column("tokens", ",d"), Column("difference", "+.4f"), Column("standard error", ".4f")]
    caption = f"Loss less that of {baseline} in nats per token by position in the window; errors over documents."
    return Table("gap-by-position", caption, columns, rows)
