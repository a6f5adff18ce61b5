"""Batches as pure functions of (corpus, seed, step), for any number of ranks, made ahead of the model."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lerope.data.packing import Packing, Piece, fill_rows, windows
from lerope.data.shards import Split
from lerope.data.skips import Skips

IGNORED = -1
"""The target of a document's last token and of padding; not counted in the loss."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows; every array is (rows, row_length) of int32."""

    tokens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    """The next token, IGNORED where the document has none."""
    positions: npt.NDArray[np.int32]
    """From 0 in every document of a row, one by one unless they skip."""
    document_ids: npt.NDArray[np.int32]
    centres: npt.NDArray[np.int32]
    """The middle position of the token's document in this row."""

    @property
    def num_targets(self) -> int:
        """Number of targets that count."""
        return int(np.count_nonzero(self.targets != IGNORED))


class Loader:
    """Training batches of `batch_rows` rows; each rank gets an equal, contiguous part.

    Args:
        skips: makes the positions of some rows skip.
    """

    def __init__(
        self,
        split: Split,
        row_length: int,
        batch_rows: int,
        seed: int,
        rank: int = 0,
        num_ranks: int = 1,
        skips: Skips | None = None,
    ) -> None:
        if batch_rows % num_ranks:
            raise ValueError(
                f"batch_tokens gives {batch_rows} rows of {row_length:,} tokens, which {num_ranks} ranks cannot share "
                f"evenly; use a number of ranks that divides {batch_rows}."
            )
        self.split, self.batch_rows, self.rank, self.num_ranks = split, batch_rows, rank, num_ranks
        self.packing, self.skips = Packing(split.lengths, row_length, seed), skips

    def load(self, step: int) -> tuple[Batch, int]:
        """This rank's rows of a step, and the number of targets that count over all ranks."""
        share = self.batch_rows // self.num_ranks
        mine: list[list[Piece]] = []
        num_targets = 0
        # In order, so that a batch spanning two epochs shuffles once.
        for number in range(self.batch_rows):
            row = step * self.batch_rows + number
            num_targets += self.packing.num_targets(row)
            if number // share == self.rank:
                mine.append(self.packing.pieces(row))
        batch = assemble(self.split, mine, self.packing.row_length)
        if self.skips is not None:
            first = step * self.batch_rows + self.rank * share
            for number, pieces in enumerate(mine):
                if self.skips.skips(first + number):
                    self._skip(batch, number, first + number, pieces)
        return batch, num_targets

    def _skip(self, batch: Batch, number: int, row: int, pieces: list[Piece]) -> None:
        """Gives row `number` of a batch positions that skip."""
        assert self.skips is not None
        at = 0
        for document, piece in enumerate(pieces):
            here = slice(at, at := at + piece.stop - piece.start)
            positions = self.skips.positions(row, document, piece.stop - piece.start)
            batch.positions[number, here], batch.centres[number, here] = positions, positions[-1] // 2

    def ahead(self, start: int, stop: int, depth: int = 2) -> Generator[tuple[Batch, int], None, None]:
        """What `load` gives for steps [start, stop), with up to `depth` made ahead by another thread."""
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
            made: deque[Future[tuple[Batch, int]]] = deque()
            try:
                for step in range(start, stop + depth):
                    if step < stop:
                        made.append(pool.submit(self.load, step))
                    if len(made) > depth or step >= stop:
                        yield made.popleft().result()
            finally:
                for future in made:
                    future.cancel()


def validation_batches(
    split: Split, row_length: int, batch_rows: int, max_tokens: int, rank: int = 0, num_ranks: int = 1
) -> list[list[list[Piece]]]:
    """This rank's share of rows of whole windows for `assemble`: equally many batches and rows on every rank."""
    rows = fill_rows(windows(split.lengths, row_length, max_tokens), row_length)
    rows += [[] for _ in range(-len(rows) % (batch_rows * num_ranks))]
    mine = rows[rank::num_ranks]
    return [mine[start : start + batch_rows] for start in range(0, len(mine), batch_rows)]


def assemble(split: Split, rows: list[list[Piece]], row_length: int) -> Batch:
    """Reads the pieces of some rows; the rest of a row is padding, as a separate document."""
    shape = (len(rows), row_length)
    tokens, positions, document_ids, centres = (np.zeros(shape, np.int32) for _ in range(4))
    targets = np.full(shape, IGNORED, np.int32)
    count = np.arange(row_length, dtype=np.int32)
    for r, pieces in enumerate(rows):
        at = 0
        for number, piece in enumerate(pieces, start=1):
            read = split.document(piece.document, piece.start, piece.stop + 1)
            inputs = piece.stop - piece.start
            here = slice(at, at + inputs)
            tokens[r, here] = read[:inputs]
            targets[r, at : at + len(read) - 1] = read[1:]  # one fewer than the inputs if they end with EOS
            positions[r, here] = count[:inputs]
            document_ids[r, here] = number
            centres[r, here] = inputs // 2
            at += inputs
    return Batch(tokens, targets, positions, document_ids, centres)
