"""What benchmarks share: the conditions of a measurement, tables, result files."""

import json
import os
import platform
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
