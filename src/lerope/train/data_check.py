"""Hashes the data of a long run while it trains: what looked unchanged by size and time may still be damaged."""

import threading
import time

from lerope.data.shards import Corpus
from lerope.train.trainer import Hook, Loop

# Shorter runs are left alone: reading all of the data could take longer than they do.
_AFTER_S = 600.0


class DataCheck(Hook):
    """Hashes every file of a corpus in a thread of the main rank; damage ends the run at the next validation.

    Args:
        corpus: what the run reads.
        every: steps between two looks at what the thread has found; the same on every rank.
    """

    name = "data check"

    def __init__(self, corpus: Corpus, every: int) -> None:
        self._corpus, self._every = corpus, every
        self._problem: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, loop: Loop) -> None:
        self._begun = time.monotonic()

    def is_due(self, loop: Loop) -> bool:
        return loop.step % self._every == 0 or loop.is_last

    def act(self, loop: Loop) -> None:
        loop.engine.ranks.on_main(self._look)

    def end(self, loop: Loop) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        """Starts hashing if the run is a long one; raises if damage was found."""
        if self._problem is not None:
            raise ValueError(f"{self._problem} The steps so far may have read it: then train again in another folder.")
        if self._thread is None and time.monotonic() - self._begun >= _AFTER_S:
            self._thread = threading.Thread(target=self._hash, name="data check", daemon=True)
            self._thread.start()

    def _hash(self) -> None:
        try:
            for _ in self._corpus.hash_files():
                if self._ended.is_set():
                    return
        except Exception as error:  # whatever it is, the run shall hear of it
            self._problem = str(error)
