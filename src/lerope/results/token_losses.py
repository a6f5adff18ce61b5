"""The arrays beside an evaluation: the loss of every token, and the sums that comparisons and figures read."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lerope.results.base import Arrays

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TOKENS = ("losses", "ends")
"""One entry per token, and where each document's tokens end: large, and read by nothing but your own analysis."""
SUMS = ("document_sums", "document_counts", "position_sums", "position_counts")
NUM_BINS = 8
_TOKENS_AT_ONCE = 1 << 22


def position_edges(length: int) -> Integers:
    """Ends of bins of positions in a window of `length` tokens: half of it, a quarter, an eighth and so on."""
    return np.array(sorted({0, *(length >> halvings for halvings in range(NUM_BINS))}), np.int64)


def loss_arrays(losses: npt.NDArray[np.float32], ends: Integers, length: int) -> Arrays:
    """Everything that `Evaluation` lists.

    Args:
        losses: of all tokens, in order of documents.
        ends: where each document's losses end.
        length: tokens of a window; a token's position is counted from the start of its window.
    """
    edges = position_edges(length)
    bins = np.searchsorted(edges, np.arange(length), side="right") - 1
    sums, counts = np.zeros((2, len(ends), len(edges) - 1))
    position_sums, position_counts = np.zeros((2, length))
    for first, last, start, stop in _chunks(ends):
        values = losses[start:stop].astype(np.float64)
        lengths = np.diff(ends[first:last], prepend=start)
        documents = np.repeat(np.arange(last - first), lengths)
        positions = (np.arange(start, stop) - np.repeat(ends[first:last] - lengths, lengths)) % length
        keys, shape = documents * sums.shape[1] + bins[positions], sums[first:last].shape
        sums[first:last] = np.bincount(keys, values, minlength=shape[0] * shape[1]).reshape(shape)
        counts[first:last] = np.bincount(keys, minlength=shape[0] * shape[1]).reshape(shape)
        position_sums += np.bincount(positions, values, minlength=length)
        position_counts += np.bincount(positions, minlength=length)
    return {
        "losses": losses,
        "ends": ends,
        "document_sums": sums,
        "document_counts": counts.astype(np.int64),
        "position_sums": position_sums,
        "position_counts": position_counts.astype(np.int64),
    }


def _chunks(ends: Integers) -> Iterator[tuple[int, int, int, int]]:
    """Whole documents, about four million tokens at a time: first and last document, first and last token."""
    first, start = 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, start + _TOKENS_AT_ONCE, side="right")))
        yield first, last, start, int(ends[last - 1])
        first, start = last, int(ends[last - 1])
