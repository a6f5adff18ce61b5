"""What bands are worth."""

from lerope.report.bands import num_suppressed
from lerope.report.collect import Bundle
from lerope.report.groups import rung
from lerope.report.tables.table import Cell, Column, Table
from lerope.results import SlowestRemovals

_NATS = (0.001, 0.01, 0.1, 1.0)
_MEANINGS = {"contribution": "their terms of the logits", "frequency": "their turning"}


def slowest_bands(bundle: Bundle) -> Table:
    """How many of the slowest bands can go together at a cost."""
    rows: list[list[Cell]] = []
    for files in bundle.runs:
        found = files.result(SlowestRemovals)
        if found is None:
            continue
        for meaning, words in _MEANINGS.items():
            removals = found.rows(meaning)
            counts: list[Cell] = [found.most(meaning, nats) for nats in _NATS]
            whole = [len(removals), num_suppressed(files), words]
            rows.append([files.run.name, rung(files), *whole, *counts, removals[-1]["increase"] if removals else None])
    columns = [Column("run"), Column("rung"), Column("bands", "d"), Column("suppressed", "d"), Column("without")]
    columns += [*(Column(f"up to {nats:g} nats", "d") for nats in _NATS), Column("without all, nats", "+.4f")]
    caption = (
        "How many of the slowest bands can be taken away together before the loss grows by more than this; suppressed "
        "are those that the run has slowed by itself, to less than half of RoPE's frequency and a quarter turn a row."
    )
    return Table("slowest-bands", caption, columns, rows)
