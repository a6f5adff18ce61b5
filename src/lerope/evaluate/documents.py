"""What is scored: a split of a prepared corpus, or texts from outside, with a fingerprint that says which."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lerope.core.run import TOKENIZER, Run
from lerope.data.packing import Lengths
from lerope.data.shards import Corpus, Tokens, Verify
from lerope.data.sources import read_texts, sources_in_words
from lerope.data.tokenizer import Tokenizer


class Source(Protocol):
    """Documents by number, each from BOS to EOS."""

    @property
    def lengths(self) -> Lengths:
        """Tokens of each document."""
        ...

    def document(self, index: int, start: int = 0, stop: int | None = None) -> Tokens:
        """The tokens of a document, or its part from `start` to `stop`."""
        ...


@dataclass(frozen=True)
class Documents:
    """Documents and what a result says about them."""

    name: str
    source: Source
    fingerprint: str
    num_bytes: int
    """UTF-8 bytes of all documents; 0 where that is unknown."""
    is_own: bool
    """Whether this is the validation split of the run's own data."""


class Texts:
    """Documents in memory."""

    def __init__(self, documents: list[Tokens]) -> None:
        self._documents = documents
        self.lengths = np.array([len(document) for document in documents], np.int64)

    def document(self, index: int, start: int = 0, stop: int | None = None) -> Tokens:
        return self._documents[index][start:stop]


def validation_documents(run: Run, data: Path | None = None, verify: Verify = "changed") -> Documents:
    """The validation split of a run's data, or that of another corpus with the same tokenizer."""
    own = Path(run.starts[-1].data)
    if data is None and not own.exists():
        raise ValueError(f"{own}, the data of {run.path}, does not exist here; name its folder with --data.")
    corpus = Corpus(own if data is None else data, verify)
    fingerprint = corpus.manifest.fingerprint()
    is_own = fingerprint == run.identity.data
    if data is None and not is_own:
        raise ValueError(
            f"{own} has changed since {run.path} was trained on it; restore it, or name another corpus with --data."
        )
    if not is_own and corpus.manifest.tokenizer_sha256 != run_tokenizer(run).sha256:
        raise ValueError(f"{corpus.directory} has a different tokenizer from {run.path}; prepare it with --tokenizer.")
    split = corpus.validation
    if not len(split):
        raise ValueError(f"{corpus.directory} has no validation documents; prepare it with some.")
    name = "validation" if is_own else f"validation of {corpus.directory.resolve().name}"
    return Documents(name, split, fingerprint, corpus.manifest.splits["validation"].num_bytes, is_own)


def outside_documents(run: Run, sources: Sequence[str], max_tokens: int | None = None) -> Documents:
    """Texts from files, folders or datasets, as `lerope data prepare` reads them, in the run's own tokens.

    Reads no more than it takes to reach `max_tokens`.
    """
    tokenizer = run_tokenizer(run)
    tokens: list[Tokens] = []
    digest = hashlib.sha256(tokenizer.sha256.encode())
    num_bytes = num_tokens = 0
    for text in read_texts(sources):
        (document,) = tokenizer.encode([text])
        tokens.append(document)
        digest.update(len(document).to_bytes(8, "little") + document.astype("<u4").tobytes())
        num_bytes += len(text.encode())
        num_tokens += len(document) - 1
        if max_tokens is not None and num_tokens >= max_tokens:
            break
    if not tokens:
        raise ValueError(f"{', '.join(sources)} holds no text; name sources with text.")
    return Documents(sources_in_words(sources), Texts(tokens), digest.hexdigest(), num_bytes, False)


def run_tokenizer(run: Run) -> Tokenizer:
    """The tokenizer that a finished run has beside its model."""
    file = run.model / TOKENIZER
    if not file.is_file():
        raise ValueError(f"{file} is missing, so text cannot become tokens; put the tokenizer of its data there.")
    return Tokenizer(file, run.recipe.model.vocab_size)
