"""lerope multipliers: how much compute an encoding saves, by every estimator."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from lerope.cli.options import File, Json, Method
from lerope.cli.tables import new_table
from lerope.core.terminal import Console

if TYPE_CHECKING:
    from lerope.results import Multipliers


def multipliers(
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE|RUN...", help_behavior_hint="")] = (),
    *,
    paper: bool = False,
    baseline: Method = None,
    evaluation: str = "eval",
    out: File = None,
    json_: Json = False,
) -> None:
    """Compute multipliers and efficiency gains from evaluated runs or from a table of losses.

    Example: lerope multipliers runs/*

    From a table: lerope multipliers losses.csv --baseline rope

    Args:
        paths: run directories scored by `lerope eval`, of two or more rungs; or a CSV with a column rung
            (52M ... 2.52B) or compute (FLOPs), and a column of losses in nats per method.
        paper: Recompute the paper's tables from the numbers it prints and compare.
        baseline: The method to compare others with; by default rope, or the first.
        evaluation: Which evaluation of the runs to use: a file in their results folders, without .json.
        out: Also save the result as JSON here.
        json_: Print JSON.
    """
    from lerope.scaling.study import read_losses, read_runs, study

    if paper == bool(paths):
        raise ValueError("give exactly one of a FILE of losses, RUNS or --paper.")
    if paper:
        if baseline is not None or out is not None:
            raise ValueError("--paper takes neither --baseline nor --out; omit them, or redirect --json.")
        _paper(json_)
        return
    tables = [path for path in paths if not path.is_dir()]
    if tables and len(paths) > 1:
        raise ValueError(f"give either one FILE of losses or run directories; got {tables[0]} and others.")
    found = study(read_losses(paths[0]) if tables else read_runs(paths, baseline, evaluation), baseline)
    if out is not None:
        found.save(out)
    print(json.dumps(found.as_dict(), indent=1)) if json_ else _show(found)


def _show(found: "Multipliers") -> None:
    console = Console()
    points = dict.fromkeys((point["rung"], point["compute"]) for point in found.losses)
    headings = [rung or f"{compute:.2e}" for rung, compute in points]
    console.print(f"compute at which {found.baseline} reaches the same loss, as a multiple")
    table = new_table("method", "estimator", *headings, text=("method", "estimator"))
    last = ""
    for method, estimator in dict.fromkeys((point["method"], point["estimator"]) for point in found.multipliers):
        values = [p["multiplier"] for p in found.multipliers if (p["method"], p["estimator"]) == (method, estimator)]
        cells = ("never" if value is None else f"{value:.4f}" for value in values)
        table.add_row("" if method == last else method, estimator, *cells)
        last = method
    console.print(table)
    if found.fits:
        console.print("fits of L = E + A C^-alpha; a hinge is a broken power law with two exponents and no E")
        console.print(_fits(found))
    for note in found.notes:
        console.print(f"note: {note}")


def _fits(found: "Multipliers") -> Table:
    """One row per fit; the joint one has a row per method and one for its overall error."""
    table = new_table("method", "estimator", "E", "A", "alpha", "RMSE, nats", text=("method", "estimator"))
    for (estimator, method), values in found.parameters().items():
        exponents = [f"{values[name]:.5f}" for name in ("alpha", "c1", "c2") if name in values]
        scales = [f"{values[name]:.4g}" if name in values else "" for name in ("E", "A")]
        table.add_row(method or "all", estimator, *scales, " then ".join(exponents), f"{values['rmse']:.2e}")
    return table


def _paper(as_json: bool) -> None:
    from lerope.paper.recomputed import recomputed

    entries = recomputed()
    if as_json:
        print(json.dumps([{**vars(entry), "status": entry.status} for entry in entries], indent=1))
        return
    table = new_table("entry", "printed", "recomputed", "", text=("entry", ""))
    marks = {"reproduces": "", "within the rounding of its inputs": "within rounding", "differs": "differs"}
    for name in dict.fromkeys(entry.table for entry in entries):
        table.add_section()
        table.add_row(Text(name, "bold"))
        for entry in entries:
            if entry.table == name:
                value = f"{entry.value:.4e}" if "e" in entry.printed else f"{entry.value:.6g}"
                table.add_row(f"  {entry.name}", entry.printed, value, marks[entry.status])
    console = Console()
    console.print("the paper's tables, recomputed from the numbers it prints")
    console.print(table)
    number = Counter(entry.status for entry in entries)
    print(
        f"{number['reproduces']} of {len(entries)} entries reproduce to their last printed digit, "
        f"{number['within the rounding of its inputs']} lie within the rounding of their inputs, "
        f"{number['differs']} differ."
    )


COMMAND = multipliers
