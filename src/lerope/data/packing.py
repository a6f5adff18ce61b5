"""Which tokens make up which row: pure functions of the documents' lengths, the seed and the row's number.

Training rows: documents in shuffled order form one long stream, which is cut into rows of L tokens. An epoch's rows
are then shuffled too: neighbours in the stream often come from one long document, and a batch of them is a poor sample
of the text. A token's target is the next token of its document, so every token but BOS is a target once per epoch,
except the last few of the stream, which fill no row. Validation rows: documents are cut into windows of at most L
tokens, and windows share rows without being cut again.
"""

import bisect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.integer[Any]]

_64_BITS = (1 << 64) - 1
_ROUNDS = 8
_ROWS = 0x726F7773
"""Makes the order of rows differ from that of documents, which has the same seed and epoch."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a document, as inputs; a row is a list of pieces."""

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
        start, stop = self._find(row)
        found = []
        index = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end, document = int(self._ends[index]), int(self._order[index])
            begin = end - int(self.lengths[document])
            found.append(Piece(document, start - begin, min(stop, end) - begin))
            start, index = end, index + 1
        return found

    def num_targets(self, row: int) -> int:
        """How many of a row's targets count: all but those of final tokens of documents."""
        bounds = self._find(row)
        first, last = np.searchsorted(self._ends, bounds, side="right")
        return self.row_length - int(last - first)

    def _find(self, row: int) -> tuple[int, int]:
        """A row's start and stop in its epoch's stream; loads that stream."""
        epoch, number = divmod(row, self.rows_per_epoch)
        self._load(epoch)
        start = place(number, self.rows_per_epoch, self.seed, epoch) * self.row_length
        return start, start + self.row_length

    def _load(self, epoch: int) -> None:
        """The order of documents in an epoch, and where each ends in that epoch's stream."""
        if epoch != self._epoch:
            self._order = shuffled(len(self.lengths), self.seed, epoch)
            self._ends = np.cumsum(self.lengths[self._order], dtype=np.int64)
            self._epoch = epoch


def place(number: int, count: int, seed: int, epoch: int) -> int:
    """Where row `number` of `count` goes in an epoch: a permutation computed one row at a time.

    A table would grow with the corpus: C4 has 10^8 rows. This is a Feistel network over pairs (left, right) of digits,
    number = left * base + right, whose rounds add to one digit a hash of the other, which is invertible for any hash.
    Pairs reach slightly beyond `count`; one that lands there is followed until it comes back.
    """
    base = math.isqrt(count - 1) + 1
    bases = (-(-count // base), base)
    key = _key(seed, epoch) ^ _ROWS
    while True:
        digits = list(divmod(number, base))
        for turn in range(_ROUNDS):
            side = turn % 2
            digits[side] = (digits[side] + mix(mix(key + turn) ^ digits[1 - side])) % bases[side]
        number = digits[0] * base + digits[1]
        if number < count:
            return number


def shuffled(count: int, seed: int, epoch: int) -> npt.NDArray[np.uint32]:
    """An order of `count` documents: sorted by a hash (splitmix64) of (seed, epoch, index).

    Implemented here rather than by a library's generator, so that no version changes it.
    """
    with np.errstate(over="ignore"):
        keys = mix(np.arange(count, dtype=np.uint64) + np.uint64(_key(seed, epoch)))
    return np.argsort(keys, kind="stable").astype(np.uint32)


def _key(seed: int, epoch: int) -> int:
    return int(mix(mix(seed) ^ epoch))


def mix(x: Any) -> Any:
    """splitmix64's hash of a whole number, or of each element of a uint64 array."""
    x = (x + 0x9E3779B97F4A7C15) & _64_BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return x ^ (x >> 31)


def windows(lengths: Lengths, row_length: int, max_tokens: int | None = None) -> list[Piece]:
    """Documents cut into windows of at most row_length inputs, in order, up to the one that reaches `max_tokens`.

    A document's last token is only a target.
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
    """Packs windows into rows without cutting them: longest first, each where it leaves the least room."""
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
