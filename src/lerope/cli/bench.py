"""lerope bench [SECTION...]: how fast this machine trains, against its own ceilings and against peers."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from lerope.cli.options import File, Folder, Json, Whole
from lerope.cli.tables import new_table
from lerope.core.grouping import grouped
from lerope.core.terminal import Console

if TYPE_CHECKING:
    from lerope.results import Benchmark


def bench(
    sections: Annotated[Positional[tuple[str, ...]], arg(metavar="SECTION...", help_behavior_hint="")] = (),
    *,
    quick: bool = False,
    rungs: Annotated[tuple[str, ...], arg(metavar="RUNG...", help_behavior_hint="")] = (),
    rounds: Whole = None,
    data: Folder = None,
    nanogpt: Folder = None,
    out: File = None,
    json_: Json = False,
) -> None:
    """Measure ceilings, rotary kernels, attention, the head and whole steps, with every figure against the ceilings.

    Example: lerope bench rotary step --data data/my-text --out bench.json

    Ctrl-C ends it early and keeps what was measured.

    Args:
        sections: ceilings, rotary, attention, head, step; all by default, and ceilings always.
        quick: Small sizes and few rounds, to check that everything runs; always on for a CPU.
        rungs: Whose attention, head and steps to measure; by default 52M and 217M, or demo if quick.
        rounds: Samples of each candidate; by default 30, or 3 if quick.
        data: A folder that `lerope data prepare` wrote, whose documents to pack; by default, made-up ones.
        nanogpt: A folder with nanoGPT's model.py, to train at equal size.
        out: Save the result as JSON here.
        json_: Print JSON.
    """
    from lerope.bench.run import run

    def report(section: str, found: "Benchmark") -> None:
        if out is not None:
            found.save(out)
        if not json_:
            _SHOWN[section](Console(), found)

    with redirect_stdout(sys.stderr if json_ else sys.stdout):
        found = run(sections, report, quick=quick, rungs=rungs, rounds=rounds, data=data, nanogpt=nanogpt)
    if json_:
        print(json.dumps(found.as_dict(), indent=1))
    if found.stopped:
        print("Stopped; measurements so far are above" + (f" and in {out}." if out else "."), file=sys.stderr)
        sys.exit(130)


def _ceilings(console: Console, found: "Benchmark") -> None:
    device = found.provenance["gpu"] or f"CPU, {found.provenance['num_threads']} threads"
    console.print(f"{device}, torch {found.provenance['torch']}, {found.settings['rounds']} rounds", end="")
    console.print("; quick: sizes too small to judge by" if found.settings["quick"] else "")
    table = new_table("", "ms", "reached", title="ceilings")
    for row in found.ceilings:
        unit = "TFLOP/s" if row["unit"] == "FLOP/s" else "TB/s"
        table.add_row(row["what"], _number(row["median_ms"]), f"{_number(row['rate'], 1e12)} {unit}")
    _print(console, table, found.ceilings)


def _rotary(console: Console, found: "Benchmark") -> None:
    headings = ("forward ms", "of copy", "backward ms", "of copy")
    for group in grouped(found.rotary, itemgetter("tensors", "num_heads")).values():
        first = group[0]
        each = "each " if first["tensors"] != "x" else ""
        size = f"{first['num_tokens']:,} tokens x {first['num_heads']} heads x {first['head_dim']}"
        table = new_table("", *headings, "learns", title=f"rotary of {first['tensors']}, {each}{size}")
        for rows in grouped(group, itemgetter("name")).values():
            table.add_row(rows[0]["name"], *_halves(rows), "yes" if rows[0]["learned"] else "no")
        _print(console, table, group)
    table = new_table("", "heads", *headings, title="layouts of q and k, ours, learned frequencies")
    for both in grouped(found.layouts, itemgetter("layout", "norm")).values():
        laid = both[0]
        name = f"{laid['layout']}{', QK-norm' if laid['norm'] else ''}"
        table.add_row(name, f"{laid['q_heads']}, {laid['k_heads']}", *_halves(both))
    _print(console, table, found.layouts, "layout")


def _attention(console: Console, found: "Benchmark") -> None:
    headings = ("forward ms", "TFLOP/s", "by cuDNN", "both ms", "TFLOP/s", "by cuDNN")
    for group in grouped(found.attention, itemgetter("rung")).values():
        first = group[0]
        size = f"{first['num_rows']} rows of {first['row_length']:,}, {first['num_heads']} heads"
        title = f"attention, {first['rung']}: {size}, {first['num_documents']:,} documents"
        table = new_table("", *headings, title=title)
        for rows in grouped(group, itemgetter("name")).values():
            cells = [
                cell
                for row in rows
                for cell in (
                    _number(row["median_ms"]),
                    _number(row["flops_per_second"], 1e12),
                    _number(row["over_cudnn"]),
                )
            ]
            table.add_row(
                rows[0]["name"]
                + (" (auto)" if rows[0]["chosen"] else "")
                + ("" if rows[0]["masked"] else ", no documents"),
                *cells,
            )
        _print(console, table, group)
    console.print(f"{found.settings['documents']}\n")


def _head(console: Console, found: "Benchmark") -> None:
    for group in grouped(found.head, itemgetter("rung")).values():
        first = group[0]
        size = f"{first['num_tokens']:,} tokens, {first['width']:,} to {first['vocab_size']:,}"
        title = f"head and loss, {first['rung']}: {size}, forward + backward"
        table = new_table("", "ms", "of matmul", "peak GiB", title=title)
        for row in group:
            cells = (_number(row["median_ms"]), _share(row["share_of_matmul"]), _number(row["peak_bytes"], 2**30))
            table.add_row(row["name"], *cells)
        _print(console, table, group)


def _steps(console: Console, found: "Benchmark") -> None:
    for group in grouped(found.steps, itemgetter("rung")).values():
        first = group[0]
        rows = first["batch_tokens"] // first["row_length"]
        some = f", {first['micro_batch_rows']} at a time" if first["micro_batch_rows"] < rows else ""
        title = f"step, {first['rung']}: {rows} rows of {first['row_length']:,}{some}"
        table = new_table("", "ms", "quartiles", "Mtok/s", "of matmul", "peak GiB", "loss", title=title)
        for row in group:
            table.add_row(
                row["name"],
                _number(row["median_ms"], digits=5),
                f"{_number(row['q1_ms'], digits=5)} to {_number(row['q3_ms'], digits=5)}" if row["q1_ms"] else "",
                _number(row["tokens_per_second"], 1e6),
                _share(row["share_of_matmul"]),
                _number(row["peak_bytes"], 2**30, digits=5),
                _number(row["loss"]),
            )
        _print(console, table, group)
        for kernels in dict.fromkeys(row["kernels"] for row in group if row["kernels"]):
            console.print(f"kernels: {kernels}")
        for ratio in found.step_ratios:
            if ratio["rung"] == first["rung"]:
                spread = f"{ratio['median']:.4f} (quartiles {ratio['q1']:.4f} to {ratio['q3']:.4f})"
                memory = "" if ratio["memory"] is None else f", peak memory {ratio['memory']:.4f}"
                console.print(f"{ratio['what']}: {spread} over {ratio['num_pairs']} pairs{memory}")
    console.print(f"{found.settings['documents']}\n")


_SHOWN = {"ceilings": _ceilings, "rotary": _rotary, "attention": _attention, "head": _head, "step": _steps}


def _print(console: Console, table: Table, rows: Iterable[Any], name: str = "name") -> None:
    """The table, and below it why some figures are missing."""
    if not table.rows:
        return
    console.print(table)
    for note in dict.fromkeys(f"{row[name]}: {row['note']}" for row in rows if row["note"]):
        console.print(note)


def _halves(rows: Sequence[Any]) -> list[str]:
    """Time and share of the copy's rate, forward, then backward."""
    return [cell for row in rows for cell in (_number(row["median_ms"]), _share(row["share_of_copy"]))]


def _number(value: float | None, unit: float = 1.0, digits: int = 3) -> str:
    return "-" if value is None else f"{value / unit:#.{digits}g}".rstrip(".")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


COMMAND = bench
