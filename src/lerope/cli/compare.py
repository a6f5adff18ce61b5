"""lerope compare: whether encodings differ by more than noise."""

import json
from typing import TYPE_CHECKING

from lerope.cli.options import File, Json, Method, Runs
from lerope.cli.tables import new_table
from lerope.core.terminal import Console

if TYPE_CHECKING:
    from lerope.results import Comparison


def compare(
    runs: Runs,
    *,
    baseline: Method = None,
    reference: Method = None,
    evaluation: str = "eval",
    out: File = None,
    json_: Json = False,
) -> None:
    """Compare evaluated runs, paired by seed and document, with intervals that show how much is noise.

    Example: lerope compare runs/52M-rope-4* runs/52M-lerope-4*

    Args:
        runs: finished run directories scored by `lerope eval`, of one or more rungs.
        baseline: The method to compare others with; by default rope, or the first.
        reference: The method whose gain counts as 100 %; by default lerope, where it was run.
        evaluation: Which evaluation to compare: a file in each run's results folder, without .json.
        out: Also save the comparison as JSON here.
        json_: Print JSON.
    """
    from lerope.scaling.compare import compare as carry_out

    found = carry_out(runs, baseline, reference, evaluation)
    if out is not None:
        found.save(out)
    print(json.dumps(found.as_dict(), indent=1)) if json_ else _show(found)


def _show(found: "Comparison") -> None:
    console = Console()
    for rung in dict.fromkeys(effect["rung"] for effect in found.effects):
        _show_losses(console, found, rung)
        _show_effects(console, found, rung)
        if any(gain["rung"] == rung for gain in found.gains):
            _show_gains(console, found, rung)
        _show_positions(console, found, rung)
    if found.multipliers:
        _show_multipliers(console, found)
    for note in found.notes:
        console.print(f"note: {note}")
    for effect in found.effects:
        console.print(f"{effect['rung']}: {effect['verdict']}")


def _show_losses(console: Console, found: "Comparison", rung: str) -> None:
    losses = [loss for loss in found.losses if loss["rung"] == rung]
    seeds = sorted({loss["seed"] for loss in losses})
    first = next(effect for effect in found.effects if effect["rung"] == rung)
    size = f"{first['num_documents']:,} documents, {first['num_tokens']:,} tokens"
    console.print(f"{rung}: nats per token over {size}")
    table = new_table("method", *(f"seed {seed}" for seed in seeds), "mean")
    for method in dict.fromkeys([found.baseline, *(loss["method"] for loss in losses)]):
        own = {loss["seed"]: loss["loss"] for loss in losses if loss["method"] == method}
        cells = [f"{own[seed]:.4f}" if seed in own else "" for seed in seeds]
        table.add_row(method, *cells, f"{sum(own.values()) / len(own):.4f}")
    console.print(table)


def _show_effects(console: Console, found: "Comparison", rung: str) -> None:
    over = "over the seeds that both have, and its standard deviation between seeds"
    console.print(f"{rung}: difference from {found.baseline}, {over}")
    headings = ("method", "seeds", "difference", "deviation", "95 % interval over", "low", "high")
    table = new_table(*headings, text=("method", "95 % interval over"))
    for effect in found.effects:
        if effect["rung"] == rung:
            intervals = [
                ("documents", effect["documents_low"], effect["documents_high"]),
                ("seeds", effect["seeds_low"], effect["seeds_high"]),
                ("both", effect["both_low"], effect["both_high"]),
            ]
            deviation = "" if effect["seed_deviation"] is None else f"{effect['seed_deviation']:.4f}"
            cells = [effect["method"], str(effect["num_seeds"]), f"{effect['difference']:+.4f}", deviation]
            for over, low, high in intervals:
                if low is not None and high is not None:
                    table.add_row(*cells, over, f"{low:+.4f}", f"{high:+.4f}")
                    cells = [""] * len(cells)
    console.print(table)


def _show_gains(console: Console, found: "Comparison", rung: str) -> None:
    what = f"share of the gain of {found.reference} over {found.baseline}"
    console.print(f"{rung}: {what}, with 95 % intervals over documents")
    table = new_table("method", "seeds", "in loss", "interval", "in perplexity", "interval")
    for gain in found.gains:
        if gain["rung"] == rung:
            table.add_row(
                gain["method"],
                str(gain["num_seeds"]),
                f"{gain['loss']:.1%}",
                f"{gain['loss_low']:.1%} to {gain['loss_high']:.1%}",
                f"{gain['perplexity']:.1%}",
                f"{gain['perplexity_low']:.1%} to {gain['perplexity_high']:.1%}",
            )
    console.print(table)


def _show_positions(console: Console, found: "Comparison", rung: str) -> None:
    gaps = [gap for gap in found.by_position if gap["rung"] == rung]
    methods = list(dict.fromkeys(gap["method"] for gap in gaps))
    console.print(f"{rung}: difference from {found.baseline} by position, with standard errors over documents")
    table = new_table("positions", "tokens", *methods)
    for start in dict.fromkeys(gap["start"] for gap in gaps):
        row = [gap for gap in gaps if gap["start"] == start]
        cells = [
            f"{gap['difference']:+.4f}" + ("" if (error := gap["standard_error"]) is None else f"±{error:.4f}")
            for gap in row
        ]
        table.add_row(f"{start:,} to {row[0]['stop'] - 1:,}", f"{row[0]['num_tokens']:,}", *cells)
    console.print(table)


def _show_multipliers(console: Console, found: "Comparison") -> None:
    rungs = list(dict.fromkeys(point["rung"] or "" for point in found.multipliers))
    console.print(f"compute at which {found.baseline} reaches the same loss, as a multiple (piecewise in ln C)")
    table = new_table("method", *rungs)
    for method in dict.fromkeys(point["method"] for point in found.multipliers):
        own = [point["multiplier"] for point in found.multipliers if point["method"] == method]
        table.add_row(method, *("never" if value is None else f"{value:.4f}" for value in own))
    console.print(table)


COMMAND = compare
