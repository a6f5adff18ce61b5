"""The documents for attention and steps: your own prepared corpus, or one with made-up lengths."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from lerope.core.files import sha256_of
from lerope.core.ladder import ModelConfig
from lerope.core.run import TOKENIZER
from lerope.data.loader import Batch, Loader
from lerope.data.shards import SPLITS, Corpus, Manifest, SplitManifest, SplitWriter, token_dtype

SEED = 0
# Of the logarithm of document lengths: about 450 tokens on average, half of them below 270.
_LOG_MEAN, _LOG_DEVIATION = 5.6, 1.0
_MOST_TOKENS = 32_768
_BOS, _EOS = 1, 2


class Documents:
    """Corpora by vocabulary.

    Args:
        data: what `lerope data prepare` wrote, or None for made-up documents.
        folder: where to write these.
        num_tokens: how many tokens they have.
    """

    def __init__(self, data: Path | None, folder: Path, num_tokens: int) -> None:
        self._folder, self._num_tokens = folder, num_tokens
        self._given = None if data is None else Corpus(data)
        self._made: dict[int, Corpus] = {}

    @property
    def source(self) -> str:
        """Where document lengths come from, as text."""
        if self._given is not None:
            return f"documents of {self._given.directory}"
        return f"made-up documents of log-normal length (mean of ln {_LOG_MEAN}, deviation {_LOG_DEVIATION})"

    @property
    def fingerprint(self) -> str | None:
        """Of the given data."""
        return None if self._given is None else self._given.manifest.fingerprint()

    def fitted(self, model: ModelConfig) -> ModelConfig:
        """The model with the vocabulary of the given data, if any."""
        return model if self._given is None else replace(model, vocab_size=self._given.manifest.vocab_size)

    def corpus(self, vocab_size: int) -> Corpus:
        """A corpus for models of this vocabulary."""
        if self._given is not None:
            return self._given
        if vocab_size not in self._made:
            self._made[vocab_size] = write(self._folder / f"corpus-{vocab_size}", self._num_tokens, vocab_size)
        return self._made[vocab_size]

    def check(self, row_length: int) -> None:
        """Raises unless the given data fills a row."""
        if self._given is not None:
            Loader(self._given.train, row_length, 1, SEED)

    def batch(self, vocab_size: int, row_length: int, num_rows: int) -> Batch:
        """The rows of a first training step."""
        return Loader(self.corpus(vocab_size).train, row_length, num_rows, SEED).load(0)[0]


def write(directory: Path, num_tokens: int, vocab_size: int) -> Corpus:
    """A corpus of random tokens in documents of log-normal length, with about `num_tokens` for training."""
    directory.mkdir(parents=True)
    (directory / TOKENIZER).write_bytes(b"")
    random = np.random.default_rng(SEED)
    splits: dict[str, SplitManifest] = {}
    for split, wanted in zip(SPLITS, (num_tokens, num_tokens // 64), strict=True):
        drawn = random.lognormal(_LOG_MEAN, _LOG_DEVIATION, max(8, wanted // 100))
        lengths = np.clip(drawn, 3, _MOST_TOKENS).astype(np.int64)
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), wanted)) + 1]
        tokens = random.integers(3, vocab_size, lengths.sum())
        ends = np.cumsum(lengths)
        tokens[ends - 1], tokens[ends - lengths] = _EOS, _BOS
        writer = SplitWriter(directory, split, token_dtype(vocab_size))
        writer.append(tokens, lengths)
        splits[split] = SplitManifest(
            num_documents=len(lengths),
            num_tokens=len(tokens),
            num_bytes=0,
            unigram_entropy=float(np.log(vocab_size)),
            shards=writer.finish(),
        )
    Manifest(
        sources=["made up"],
        validation="made up",
        vocab_size=vocab_size,
        bos=_BOS,
        eos=_EOS,
        tokenizer_sha256=sha256_of(directory / TOKENIZER),
        num_skipped=0,
        code_share=0.0,
        splits=splits,
    ).save(directory)
    return Corpus(directory, verify="sizes")
