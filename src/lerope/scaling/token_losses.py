"""Sums of token losses of evaluated runs, by document and position."""

from collections.abc import Sequence

import numpy as np

from lerope.scaling.evaluated import Evaluated, again
from lerope.scaling.multipliers import Floats


def read_counts(items: Sequence[Evaluated]) -> Floats:
    """Tokens of each document in each bin of positions, after a check that all runs were scored on the same ones."""
    counts = [_read(item, "document_counts") for item in items]
    for item, found in zip(items, counts, strict=True):
        result = item.evaluation
        if int(found.sum()) != result.num_tokens or int((found.sum(1) > 0).sum()) != result.num_documents:
            raise ValueError(
                f"{item.tokens} does not hold the {result.num_tokens:,} tokens of {result.num_documents:,} documents "
                f"that its evaluation counts; {again(item)}."
            )
        if not np.array_equal(counts[0], found):
            raise ValueError(
                f"{items[0].tokens} and {item.tokens} cover different documents; run `lerope eval` on both again."
            )
    return counts[0]


def read_sums(item: Evaluated, counts: Floats) -> Floats:
    """Sums of token losses of each document in each bin of positions: (documents, bins)."""
    sums = _read(item, "document_sums")
    if not np.isfinite(sums).all():
        raise ValueError(f"{item.tokens} holds losses that are not finite; check how {item.run.path} was trained.")
    loss = float(sums.sum()) / counts.sum()
    if sums.shape != counts.shape or not abs(loss - item.evaluation.loss) <= 1e-6 * max(1.0, abs(loss)):
        raise ValueError(
            f"{item.tokens} has a mean loss of {loss:.4f} but its evaluation says {item.evaluation.loss:.4f}; "
            f"{again(item)}."
        )
    return sums


def _read(item: Evaluated, name: str) -> Floats:
    with item.open_sums() as file:
        found: Floats = file.get_tensor(name).astype(np.float64)
    return found if found.ndim == 2 else np.zeros((0, 0))
