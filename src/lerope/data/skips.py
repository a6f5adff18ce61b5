"""Positions that skip: a row of L tokens meets distances of up to a horizon beyond L.

A document's tokens stay as they are, but their positions are cut in a few places, and everything behind a cut moves on
by a random number (Zhu et al., 2023, do this to extend trained models). A pure function of the seed and the row's
number, like everything about batches.
"""

import numpy as np
import numpy.typing as npt

from lerope.data.packing import mix

_CUTS = 3
"""At most; one to three are equally likely."""
_SKIPS = 0x736B6970
"""Sets these random numbers apart from the orders of documents and rows, which have the same seed."""
_64_BITS = 1 << 64


class Skips:
    """Which rows skip, and where.

    Args:
        horizon: positions stay below this.
        share: of the rows; the others count from 0 as usual.
        first: the first row that may skip.
    """

    def __init__(self, horizon: int, share: float, seed: int, first: int = 0) -> None:
        self.horizon, self.share, self.first, self._key = horizon, share, first, mix(mix(seed) ^ _SKIPS)

    def skips(self, row: int) -> bool:
        """Whether the documents of a row skip."""
        return row >= self.first and bool(self._random(row, 0, 1)[0] < self.share)

    def positions(self, row: int, document: int, count: int) -> npt.NDArray[np.int32]:
        """Of the tokens of a row's document, by its number in the row: from 0, rising, below the horizon."""
        number, reach, *draws = self._random(row, document + 1, 1 + 2 * _CUTS)
        cuts = 1 + int(number * _CUTS)
        total = int(reach * (self.horizon - count + 1))
        # Behind its last cut a document has moved on by `total`, behind earlier ones by a random part of that.
        moved = np.array([0, *sorted(int(draw * (total + 1)) for draw in draws[: cuts - 1]), total])
        places = sorted(1 + int(draw * (count - 1)) for draw in draws[_CUTS - 1 :][:cuts])
        index = np.arange(count)
        found: npt.NDArray[np.int32] = (index + moved[np.searchsorted(places, index, side="right")]).astype(np.int32)
        return found

    def _random(self, row: int, document: int, count: int) -> list[float]:
        """Numbers in [0, 1)."""
        key = mix(mix(self._key ^ row) + document)
        return [mix(key + number) / _64_BITS for number in range(count)]
