"""What is in a prepared corpus, as numbers and as text."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from lerope.data.packing import shuffled
from lerope.data.shards import SPLITS, Corpus, Split, limit_in_words
from lerope.data.tokenizer import Tokenizer

_SAMPLE_TOKENS = 100
_BAR = 40


def summarize(directory: str | os.PathLike[str], num_samples: int) -> dict[str, Any]:
    """Checks every file of a corpus against the manifest and describes it; samples are document beginnings."""
    if num_samples < 0:
        raise ValueError(f"samples must be 0 or more; got {num_samples}.")
    corpus = Corpus(directory, verify="all")
    manifest = corpus.manifest
    tokenizer = Tokenizer(corpus.tokenizer_path, manifest.vocab_size)
    return {
        "directory": str(directory),
        "fingerprint": manifest.fingerprint(),
        "sources": manifest.sources,
        "validation": manifest.validation,
        "vocab_size": manifest.vocab_size,
        "num_skipped": manifest.num_skipped,
        "splits": {
            name: _split(split, tokenizer, num_samples)
            for name, split in zip(SPLITS, (corpus.train, corpus.validation), strict=True)
        },
    }


def _split(split: Split, tokenizer: Tokenizer, num_samples: int) -> dict[str, Any]:
    facts = split.manifest
    chosen = sorted(shuffled(len(split), 0, 0)[:num_samples].tolist())
    return {
        "num_documents": facts.num_documents,
        "num_tokens": facts.num_tokens,
        "max_tokens": facts.max_tokens,
        "num_bytes": facts.num_bytes,
        "bytes_per_token": facts.num_bytes / max(facts.num_tokens, 1),
        "unigram_entropy": facts.unigram_entropy,
        "lengths": _histogram(split.lengths),
        "samples": [
            {
                "document": index,
                "num_tokens": int(split.lengths[index]),
                "text": tokenizer.decode(split.document(index, 0, _SAMPLE_TOKENS)),
            }
            for index in chosen
        ],
    }


def _histogram(lengths: npt.NDArray[np.uint32]) -> list[dict[str, int]]:
    """How many documents have at least `tokens` and fewer than twice as many, for consecutive powers of 2."""
    if not len(lengths):
        return []
    exponents = np.log2(lengths).astype(np.int64)
    counts = np.bincount(exponents)
    return [{"tokens": 1 << e, "documents": int(counts[e])} for e in range(int(exponents.min()), len(counts))]


def describe(summary: dict[str, Any]) -> str:
    """The summary as text."""
    lines = [
        f"{summary['directory']}: every file matches the manifest",
        f"fingerprint  {summary['fingerprint']}",
        f"sources      {', '.join(summary['sources'])}",
        f"validation   {summary['validation']}",
        f"vocabulary   {summary['vocab_size']:,} tokens",
        f"skipped      {summary['num_skipped']:,} documents, empty or invalid",
    ]
    for name, split in summary["splits"].items():
        entropy = f"unigram entropy {split['unigram_entropy']:.3f} nats"
        per_token = f"{split['bytes_per_token']:.2f} bytes per token"
        counts = f"{split['num_documents']:,} documents, {split['num_tokens']:,} tokens"
        limit = limit_in_words(split["num_tokens"], split["max_tokens"])
        lines += ["", f"{name}: {counts}, {split['num_bytes']:,} bytes, {per_token}, {entropy}{limit}"]
        most = max((row["documents"] for row in split["lengths"]), default=1)
        for row in split["lengths"]:
            bar = "#" * -(-_BAR * row["documents"] // most)
            lines.append(f"  {row['tokens']:>9,}+ tokens  {bar:{_BAR}}  {row['documents']:,}".rstrip())
        for found in split["samples"]:
            text = printable(found["text"])
            lines.append(f"  document {found['document']:,} ({found['num_tokens']:,} tokens): {text}")
    return "\n".join(lines)


def printable(text: str) -> str:
    """Text on one line, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.replace("\\", "\\\\"))
