"""Which tokens make up which row: pure functions of the documents' lengths, the seed and the row's number.

Training rows: documents in shuffled order form one long stream, and row r is tokens [r L, r L + L) of it. A token's
target is the next token of its document, so that every token but BOS is a target once an epoch, except the last few of
the stream that fill no row. Validation rows: documents are cut into windows of at most L tokens, and windows share rows
without being cut again.
"""

import bisect
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a document, as inputs; a row is a list of them."""

    document: int
    start: int
    stop: int


class Packing:
    """Rows of a split for one seed: `pieces(row)` for any row number, through as many epochs as it takes."""

    def __init__(self, lengths: Lengths, row_length: int, seed: int) -> None:
        self.lengths, self.row_length, self.seed = lengths, row_length, seed
        self.num_tokens = int(lengths.sum(dtype=np.int64))
        self.rows_per_epoch = self.num_tokens // row_length
        if self.rows_per_epoch < 1:
            raise ValueError(
                f"row_length must be at most the {self.num_tokens:,} tokens of the training split; got "
                f"{row_length:,}, prepare more text or shorten the rows."
            )
        self._epoch = -1
        self._order: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._ends: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def pieces(self, row: int) -> list[Piece]:
        """The inputs of a row."""
        epoch, row = divmod(row, self.rows_per_epoch)
        self._load(epoch)
        start, stop = row * self.row_length, (row + 1) * self.row_length
        found = []
        index = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end, document = int(self._ends[index]), int(self._order[index])
            begin = end - int(self.lengths[document])
            found.append(Piece(document, start - begin, min(stop, end) - begin))
            start, index = end, index + 1
        return found

    def num_targets(self, row: int) -> int:
        """How many of a row's targets count: all but those of the last tokens of documents that end in it."""
        epoch, row = divmod(row, self.rows_per_epoch)
        self._load(epoch)
        start = row * self.row_length
        first, last = np.searchsorted(self._ends, (start, start + self.row_length), side="right")
        return self.row_length - int(last - first)

    def _load(self, epoch: int) -> None:
        """The order of documents in an epoch, and where each ends in that epoch's stream."""
        if epoch != self._epoch:
            self._order = shuffled(len(self.lengths), self.seed, epoch)
            self._ends = np.cumsum(self.lengths[self._order], dtype=np.int64)
            self._epoch = epoch


def shuffled(count: int, seed: int, epoch: int) -> npt.NDArray[np.uint32]:
    """An order of `count` documents: sorted by a hash (splitmix64) of (seed, epoch, index).

    Written out rather than taken from a library's generator, so that it is the same in every version of everything.
    """
    key = _mix(_mix(np.uint64(seed)) ^ np.uint64(epoch))
    with np.errstate(over="ignore"):
        keys = _mix(np.arange(count, dtype=np.uint64) + key)
    return np.argsort(keys, kind="stable").astype(np.uint32)


def _mix(x: Any) -> Any:
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def windows(lengths: Lengths, row_length: int, max_tokens: int | None = None) -> list[Piece]:
    """Documents cut into windows of at most row_length inputs, in order, up to the one that reaches `max_tokens`.

    A document's last token is a target only.
    """
    found: list[Piece] = []
    total = 0
    for document, length in enumerate(lengths.tolist()):
        if max_tokens is not None and total >= max_tokens:
            break
        inputs = length - 1
        starts = range(0, inputs, row_length)
        found += [Piece(document, start, min(start + row_length, inputs)) for start in starts]
        total += inputs
    return found


def fill_rows(pieces: list[Piece], row_length: int) -> list[list[Piece]]:
    """Puts windows into rows without cutting them: longest first, each where it leaves the least room."""
    rows: list[list[Piece]] = []
    room: list[tuple[int, int]] = []  # (inputs that still fit, row), sorted
    for piece in sorted(pieces, key=lambda p: p.start - p.stop):
        inputs = piece.stop - piece.start
        at = bisect.bisect_left(room, (inputs, -1))
        left, row = room.pop(at) if at < len(room) else (row_length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(piece)
        bisect.insort(room, (left - inputs, row))
    return rows
