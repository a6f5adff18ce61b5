"""Child processes: a pool that turns batches of documents into tokens, and one that trains."""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lerope.data.code import are_code
from lerope.data.shards import SPLITS, SplitName, Tokens
from lerope.data.tokenizer import Tokenizer

_POLL_SECONDS = 0.2
_END_SECONDS = 5.0


class Batch(NamedTuple):
    """Some documents in order, and where reading continues after them."""

    texts: list[str]
    codes: list[bool | None]
    """Whether each is source code; None if its content is to tell."""
    split: SplitName | None
    """None: by the hash of each text."""
    part: int
    record: int
    num_documents: int
    """Including skipped ones."""
    num_bytes_read: int
    """Of all parts, as on disk."""


class Encoded(NamedTuple):
    """A batch's documents of one split."""

    tokens: Tokens
    """Concatenated."""
    lengths: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]
    """Of each document's text."""
    code: npt.NDArray[np.bool_]
    """Whether each document is source code."""

    def first(self, num_tokens: int) -> "Encoded":
        """The documents up to the one that reaches this many tokens; all if there are fewer."""
        ends = np.cumsum(self.lengths)
        count = int(np.searchsorted(ends, num_tokens)) + 1 if num_tokens > 0 else 0
        tokens = self.tokens[: self.lengths[:count].sum()]
        return Encoded(tokens, self.lengths[:count], self.num_bytes[:count], self.code[:count])


class WorkerDied(Exception):  # noqa: N818 (what happened, like KeyboardInterrupt)
    """A process ended without a message, as when the system is out of memory."""


def split_of(text: str, validation_fraction: float) -> SplitName:
    """The split a document belongs to: a function of its text alone, so that equal texts are in the same split."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "big") < validation_fraction * 2**64 else "train"


def encode_batches(
    batches: Iterable[Batch], tokenizer: str, vocab_size: int, validation_fraction: float, num_workers: int
) -> Generator[tuple[Batch, dict[SplitName, Encoded]], None, None]:
    """Encodes batches in processes and yields them in order, with a bounded number in flight.

    A ValueError from the batches is raised once all before it are yielded: a caller that stops earlier never sees it,
    however many were in flight.
    """
    context = multiprocessing.get_context("spawn")  # copies no thread or lock of this process
    arguments = (tokenizer, vocab_size, validation_fraction)
    pool = ProcessPoolExecutor(num_workers, context, initializer=_begin, initargs=arguments)
    under_way: deque[tuple[Batch, Future[dict[SplitName, Encoded]]]] = deque()
    problems: list[ValueError] = []
    try:
        for batch in _up_to_problem(batches, problems):
            with _without_interrupts():
                future = pool.submit(_encode, batch.texts, batch.codes, batch.split)
                under_way.append((batch._replace(texts=[], codes=[]), future))
            if len(under_way) >= 2 * num_workers + 2:
                yield _done(*under_way.popleft())
        while under_way:
            yield _done(*under_way.popleft())
        for problem in problems:
            raise problem
    except BrokenProcessPool:
        raise WorkerDied from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_in_child(function: Callable[..., None], *arguments: Any, wait: Callable[[], None]) -> None:
    """Calls a function in another process; `wait` is called several times a second and may raise to end it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_call, args=(there, function, *arguments), daemon=True)
    with _without_interrupts():
        child.start()
    there.close()
    try:
        while not here.poll(_POLL_SECONDS):
            wait()
        message = here.recv()
        child.join(_END_SECONDS)  # terminated, it would leak semaphores of `datasets`, and Python would warn
    except EOFError:
        raise WorkerDied from None
    finally:
        child.terminate()
        child.join()
    if message is not None:
        raise ValueError(message)


def _up_to_problem(batches: Iterable[Batch], problems: list[ValueError]) -> Iterator[Batch]:
    try:
        yield from batches
    except ValueError as problem:
        problems.append(problem)


def _done(batch: Batch, future: Future[dict[SplitName, Encoded]]) -> tuple[Batch, dict[SplitName, Encoded]]:
    return batch, future.result()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which a terminal sends to all: only the main process acts on it."""
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """A killed main process cannot end its children, so they watch it."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _call(there: Connection, function: Callable[..., None], *arguments: Any) -> None:
    _end_with_parent()
    try:
        function(*arguments)
        there.send(None)
    except ValueError as error:
        there.send(str(error))
    except OSError as error:
        there.send(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror or error}.")


_tokenizer: Tokenizer
_validation_fraction: float


def _begin(tokenizer: str, vocab_size: int, validation_fraction: float) -> None:
    global _tokenizer, _validation_fraction
    _end_with_parent()
    _tokenizer, _validation_fraction = Tokenizer(tokenizer, vocab_size), validation_fraction


def _encode(texts: list[str], codes: list[bool | None], split: SplitName | None) -> dict[SplitName, Encoded]:
    chosen: dict[SplitName, list[tuple[str, bool]]] = {name: [] for name in SPLITS}
    for text, code in zip(texts, are_code(texts, codes), strict=True):
        if text and not text.isspace():
            chosen[split or split_of(text, _validation_fraction)].append((text, code))
    encoded = {}
    for name, documents in chosen.items():
        arrays = _tokenizer.encode([text for text, _ in documents])
        if arrays:
            lengths = np.array([len(array) for array in arrays], np.int64)
            num_bytes = np.array([len(text.encode()) for text, _ in documents], np.int64)
            encoded[name] = Encoded(
                np.concatenate(arrays), lengths, num_bytes, np.array([code for _, code in documents])
            )
    return encoded
