"""lerope bench [SECTION...]: how fast this machine trains, against its own ceilings and against peers."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from tyro.conf import Positional, arg

from lerope.core.terminal import Console

if TYPE_CHECKING:
    from lerope.results import Benchmark


def bench(
    sections: Annotated[Positional[tuple[str, ...]], arg(metavar="SECTION...", help_behavior_hint="")] = (),
    *,
    quick: bool = False,
    rungs: Annotated[tuple[str, ...], arg(metavar="RUNG...", help_behavior_hint="")] = (),
    rounds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    data: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    nanogpt: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    json_: Annotated[bool, arg(name="json")] = False,
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
    table = _table("ceilings", "", "ms", "reached")
    for row in found.ceilings:
        unit = "TFLOP/s" if row["unit"] == "FLOP/s" else "TB/s"
        table.add_row(row["what"], _number(row["median_ms"]), f"{_number(row['rate'], 1e12)} {unit}")
    _print(console, table, found.ceilings)


def _rotary(console: Console, found: "Benchmark") -> None:
    headings = ("forward ms", "of copy", "backward ms", "of copy")
    for group in _groups(found.rotary, "tensors", "num_heads"):
        first = group[0]
        each = "each " if first["tensors"] != "x" else ""
        size = f"{first['num_tokens']:,} tokens x {first['num_heads']} heads x {first['head_dim']}"
        table = _table(f"rotary of {first['tensors']}, {each}{size}", "", *headings, "learns")
        for rows in _groups(group, "name"):
            table.add_row(rows[0]["name"], *_halves(rows, "share_of_copy"), "yes" if rows[0]["learned"] else "no")
        _print(console, table, group)
    table = _table("layouts of q and k, ours, learned frequencies", "", "heads", *headings)
    for rows in _groups(found.layouts, "layout", "norm"):
        first = rows[0]
        name = f"{first['layout']}{', QK-norm' if first['norm'] else ''}"
        table.add_row(name, f"{first['q_heads']}, {first['k_heads']}", *_halves(rows, "share_of_copy"))
    _print(console, table, found.layouts, "layout")


def _attention(console: Console, found: "Benchmark") -> None:
    headings = ("forward ms", "TFLOP/s", "by cuDNN", "both ms", "TFLOP/s", "by cuDNN")
    for group in _groups(found.attention, "rung"):
        first = group[0]
        size = f"{first['num_rows']} rows of {first['row_length']:,}, {first['num_heads']} heads"
        table = _table(f"attention, {first['rung']}: {size}, {first['num_documents']:,} documents", "", *headings)
        for rows in _groups(group, "name"):
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
    for group in _groups(found.head, "rung"):
        first = group[0]
        size = f"{first['num_tokens']:,} tokens, {first['width']:,} to {first['vocab_size']:,}"
        table = _table(f"head and loss, {first['rung']}: {size}, forward + backward", "", "ms", "of matmul", "peak GiB")
        for row in group:
            cells = (_number(row["median_ms"]), _share(row["share_of_matmul"]), _number(row["peak_bytes"], 2**30))
            table.add_row(row["name"], *cells)
        _print(console, table, group)


def _steps(console: Console, found: "Benchmark") -> None:
    for group in _groups(found.steps, "rung"):
        first = group[0]
        rows = first["batch_tokens"] // first["row_length"]
        some = f", {first['micro_batch_rows']} at a time" if first["micro_batch_rows"] < rows else ""
        title = f"step, {first['rung']}: {rows} rows of {first['row_length']:,}{some}"
        table = _table(title, "", "ms", "quartiles", "Mtok/s", "of matmul", "peak GiB", "loss")
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


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _print(console: Console, table: Table, rows: Iterable[Any], name: str = "name") -> None:
    """The table, and below it why some figures are missing."""
    if not table.rows:
        return
    console.print(table)
    for note in dict.fromkeys(f"{row[name]}: {row['note']}" for row in rows if row["note"]):
        console.print(note)


def _groups(rows: Sequence[Any], *fields: str) -> list[list[Any]]:
    """Rows grouped by some fields, in order of appearance."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        found.setdefault(tuple(row[field] for field in fields), []).append(row)
    return list(found.values())


def _halves(rows: Sequence[Any], share: str) -> list[str]:
    """Time and share of forward, then of backward."""
    return [cell for row in rows for cell in (_number(row["median_ms"]), _share(row[share]))]


def _number(value: float | None, unit: float = 1.0, digits: int = 3) -> str:
    return "-" if value is None else f"{value / unit:#.{digits}g}".rstrip(".")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


COMMAND = bench
