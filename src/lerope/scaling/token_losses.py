"""Losses of single tokens of evaluated runs, summed over documents and positions."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lerope.scaling.evaluated import Evaluated, again
from lerope.scaling.multipliers import Floats

Integers = npt.NDArray[np.int64]

NUM_BINS = 8
_TOKENS_AT_ONCE = 1 << 22


def read_ends(items: Sequence[Evaluated]) -> Integers:
    """Where each document's losses end, after a check that all runs were scored on the same ones."""
    ends = [_open_ends(item) for item in items]
    for item, other in zip(items, ends, strict=True):
        if not np.array_equal(ends[0], other):
            raise ValueError(
                f"{items[0].tokens} and {item.tokens} cover different documents; run `lerope eval` on both again."
            )
    return ends[0]


def position_edges(length: int) -> Integers:
    """Ends of bins of positions in a window of `length` tokens: half of it, a quarter, an eighth and so on."""
    return np.array(sorted({0, *(length >> halvings for halvings in range(NUM_BINS))}), np.int64)


def count_tokens(ends: Integers, length: int) -> Floats:
    """Tokens of each document in each bin of positions: (documents, bins)."""
    return _binned(None, ends, length)


def sum_losses(item: Evaluated, ends: Integers) -> Floats:
    """Sums of token losses of each document in each bin of positions: (documents, bins)."""
    sums = _binned(item, ends, int(item.evaluation.settings["length"]))
    loss = float(sums.sum()) / int(ends[-1])
    if not abs(loss - item.evaluation.loss) <= 1e-6 * max(1.0, abs(loss)):
        raise ValueError(
            f"{item.tokens} has a mean loss of {loss:.4f} but its evaluation says {item.evaluation.loss:.4f}; "
            f"{again(item)}."
        )
    return sums


def _open_ends(item: Evaluated) -> Integers:
    with item.open_tokens() as file:
        ends: Integers = file.get_tensor("ends")
        num_losses = file.get_slice("losses").get_shape()
    result = item.evaluation
    lengths = np.diff(ends, prepend=0) if ends.ndim == 1 else np.array([-1])
    fits = (lengths >= 0).all() and num_losses == [int(lengths.sum())] == [result.num_tokens]
    if not fits or int((lengths > 0).sum()) != result.num_documents:
        raise ValueError(
            f"{item.tokens} does not hold the {result.num_tokens:,} tokens of {result.num_documents:,} documents that "
            f"its evaluation counts; {again(item)}."
        )
    return ends


def _binned(item: Evaluated | None, ends: Integers, length: int) -> Floats:
    """Losses, or ones if there is no run, summed over each document's tokens in each bin of positions."""
    edges = position_edges(length)
    num_bins = len(edges) - 1
    bins = np.searchsorted(edges, np.arange(length), side="right") - 1
    sums = np.zeros((len(ends), num_bins))
    for first, last, start, stop in _chunks(ends):
        lengths = np.diff(ends[first:last], prepend=start)
        documents = np.repeat(np.arange(last - first), lengths)
        positions = np.arange(start, stop) - np.repeat(ends[first:last] - lengths, lengths)
        keys = documents * num_bins + bins[positions % length]
        losses = None if item is None else _read_losses(item, start, stop)
        counts = np.bincount(keys, weights=losses, minlength=(last - first) * num_bins)
        sums[first:last] = counts.reshape(last - first, num_bins)
    return sums


def _chunks(ends: Integers) -> Iterator[tuple[int, int, int, int]]:
    """Whole documents, about four million tokens at a time: first and last document, first and last token."""
    first, start = 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, start + _TOKENS_AT_ONCE, side="right")))
        yield first, last, start, int(ends[last - 1])
        first, start = last, int(ends[last - 1])


def _read_losses(item: Evaluated, start: int, stop: int) -> Floats:
    with item.open_tokens() as file:
        losses: Floats = file.get_slice("losses")[start:stop].astype(np.float64)
    if not np.isfinite(losses).all():
        raise ValueError(f"{item.tokens} holds losses that are not finite; check how {item.run.path} was trained.")
    return losses
