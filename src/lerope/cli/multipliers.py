"""lerope multipliers: how much compute an encoding saves, by every estimator."""

import json
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg


def multipliers(
    file: Annotated[Positional[Path | None], arg(metavar="FILE", help_behavior_hint="")] = None,
    paper: bool = False,
    baseline: str = "rope",
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Compute multipliers and efficiency gains from a table of losses.

    Example: lerope multipliers losses.csv --baseline rope

    Args:
        file: CSV with a column rung (52M ... 2.52B) or compute (FLOPs), and a column of losses in nats a method.
        paper: Recompute the paper's scaling tables from its printed perplexities and compare.
        baseline: The method that others are measured against.
        json_: Print JSON.
    """
    from lerope.scaling.study import read_losses, study

    if paper == (file is not None):
        raise ValueError("give either a FILE of losses or --paper.")
    if file is None:
        _paper(json_)
        return
    found = study(*read_losses(file), baseline)
    print(json.dumps(found, indent=1)) if json_ else _show(found)


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    headings = [f"{c:.2e}" for c in found["compute"]]
    table = Table(
        title=f"Compute at which {found['baseline']} reaches the same loss, as a multiple", title_justify="left"
    )
    for heading in ("method", "estimator", *headings):
        table.add_column(heading, justify="left" if heading in ("method", "estimator") else "right")
    for method, values in found["multipliers"].items():
        table.add_row(method, "piecewise in ln C", *(f"{v:.4f}" for v in values))
        for name, fit in found["fits"].items():
            values = fit["gains"][method]
            table.add_row(
                "", f"{name}, RMSE {fit['rmse']:.1e}", *("never" if v is None else f"{v:.4f}" for v in values)
            )
    console.print(table)


def _paper(as_json: bool) -> None:
    from lerope.scaling.paper import recomputed

    entries = recomputed()
    if as_json:
        rows = [{**vars(entry), "reproduces": entry.reproduces} for entry in entries]
        print(json.dumps(rows, indent=1))
        return
    table = Table(title="The paper's scaling tables, recomputed from its perplexities", title_justify="left")
    for heading in ("table", "entry", "printed", "recomputed", ""):
        table.add_column(heading, justify="right" if heading in ("printed", "recomputed") else "left")
    last = ""
    for entry in entries:
        value = f"{entry.value:.4e}" if "e" in entry.printed else f"{entry.value:.6g}"
        mark = "" if entry.reproduces else "differs"
        table.add_row(entry.table if entry.table != last else "", entry.name, entry.printed, value, mark)
        last = entry.table
    Console(highlight=False).print(table)
    good = sum(entry.reproduces for entry in entries)
    print(f"{good} of {len(entries)} entries reproduce to their last printed digit.")


COMMAND = multipliers
