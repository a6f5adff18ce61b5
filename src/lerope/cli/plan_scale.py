"""The part of `lerope plan` about many GPUs: steps on paper, checkpoints, what is read, and where it stops."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table

from lerope.cli.plan_table import new_table, way_in_words
from lerope.core.ladder import ModelConfig
from lerope.launch.machine import Machine
from lerope.launch.steptime import StepTime, best_step, checkpoint_bytes


def step_content(model: ModelConfig, steps: Sequence[StepTime | None], disk: float) -> dict[str, Any]:
    """Steps by GPU and the checkpoint, as plain JSON values."""
    size = checkpoint_bytes(model)
    return {
        "steps_on_paper": [
            {
                **asdict(step),
                "shortest_seconds": step.shortest_seconds,
                "longest_seconds": step.longest_seconds,
                "read_bytes_per_second": step.read_bytes_per_second,
            }
            for step in steps
            if step is not None
        ],
        "checkpoint": {"bytes": size, "write_seconds": size / disk},
    }


def scale_table(
    model: ModelConfig,
    machine: Machine,
    steps: Sequence[StepTime | None],
    num_steps: int,
    network: float,
    disk: float,
) -> tuple[Table, str]:
    """A line for each kind of GPU, and what it rests on.

    Args:
        model: what is trained.
        machine: the GPUs and the batch.
        steps: the best step on each kind, None where nothing fits.
        num_steps: of the run.
        network, disk: bytes per second.
    """
    headings = ("", "best way", "rows", "compute", "talk", "step", "days", "MB/s")
    table = new_table(*headings, text=("", "best way"))
    for gpu, step in zip(machine.gpus, steps, strict=True):
        if step is None:
            table.add_row(gpu.name, "no row fits")
            continue
        shortest, longest = step.shortest_seconds, step.longest_seconds
        days = (seconds * num_steps / 86_400 for seconds in (shortest, longest))
        table.add_row(
            gpu.name,
            way_in_words(step.way, machine.num_gpus),
            str(step.micro_batch_rows),
            f"{1e3 * step.compute_seconds:,.0f}",
            f"{1e3 * step.communication_seconds:,.0f}",
            f"{1e3 * shortest:,.0f}-{1e3 * longest:,.0f}",
            "-".join(f"{each:.{1 if each >= 1 else 2}f}" for each in days),
            f"{step.read_bytes_per_second / 1e6:,.1f}",
        )
    size = checkpoint_bytes(model)
    note = (
        f"Computed, not measured: {100 * machine.utilisation:g} % of the peak, links by their data sheets, "
        f"{network / 1e9:g} GB/s a GPU between nodes, no latencies. Times of a step in ms: it "
        "computes and communicates at once, or one after the other, or in between. MB/s are tokens read by all. A "
        "checkpoint has "
        f"{size / 1e9:,.1f} GB and takes {size / disk:,.1f} s at {disk / 1e9:g} GB/s. {_limit(model, machine, network)}"
    )
    return table, note


def _limit(model: ModelConfig, machine: Machine, network: float) -> str:
    """Where it stops, and why, in words."""
    rows = machine.batch_tokens // machine.row_length
    text = f"It stops at {rows} GPUs, a row of the batch for each; beyond, the batch would have to grow."
    over = []
    for gpu in machine.gpus:
        for number in (1 << power for power in range(1, rows.bit_length())):
            if rows % number or (number > machine.gpus_per_node and number % machine.gpus_per_node):
                continue
            step = best_step(model, replace(machine, num_gpus=number), gpu, network)
            if step is not None and step.communication_seconds > step.compute_seconds:
                over.append(f"{number} {gpu.name}")
                break
    return f"{text} Talking takes longer than computing from {', '.join(over)} on." if over else text
