"""What benchmarks share: the conditions of a measurement, calls that take turns, tables, result files."""

import json
import os
import platform
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import lerope


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def conditions(*packages: str) -> dict[str, Any]:
    import torch  # here, because workers of a benchmark import its modules and need no torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],  # above zero, other processes slow what uses the cores best the most
        "versions": {
            "python": platform.python_version(),
            "lerope": lerope.__version__,
            **{name: version(name) for name in packages},
        },
    }


def take_turns(what: str, calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call on the CPU, round by round, by the clock of `lerope bench`."""
    import torch

    from lerope.bench.timing import Candidate, Stopwatch
    from lerope.core.signals import Signals
    from lerope.core.terminal import Display

    candidates = [Candidate(name, lambda call=call: {what: [call]}) for name, call in calls.items()]  # type: ignore[misc]
    with Signals() as signals, Display() as display:
        found = Stopwatch(torch.device("cpu"), rounds, signals, display).measure(what, candidates, [what])
        signals.check()
    for name in calls:
        if note := found[name, what].note:
            raise RuntimeError(f"{name}: {note}")
    return {name: list(found[name, what].samples) for name in calls}


def ratio(times: list[float], others: list[float]) -> float:
    """The median over rounds of one time by another."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def save(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def show(title: str, rows: list[dict[str, Any]], digits: str) -> None:
    table = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right" if isinstance(rows[0][column], float) else "left")
    for row in rows:
        cells = (row.get(column, "") for column in columns)
        table.add_row(*(f"{cell:{digits}}" if isinstance(cell, float) else cell for cell in cells))
    Console(width=120).print(table)
