"""Small corpora written straight to disk, for tests that need tokens and no tokenizer."""

from pathlib import Path

import numpy as np

from lerope.core.run import TOKENIZER
from lerope.data.shards import SPLITS, Manifest, SplitManifest, SplitWriter, sha256_of, token_dtype

BOS, EOS = 1, 2


def write_corpus(directory: Path, lengths: dict[str, list[int]], vocab_size: int = 50, seed: int = 0) -> Path:
    """Documents of the given lengths (BOS and EOS included) whose tokens follow a simple rule that can be learned."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / TOKENIZER).write_bytes(b"not a real tokenizer")
    random = np.random.default_rng(seed)
    splits = {}
    for split in SPLITS:
        writer = SplitWriter(directory, split, token_dtype(vocab_size))
        for length in lengths.get(split, []):
            start, pace = random.integers(3, vocab_size), random.integers(1, 4)
            inner = 3 + (start + pace * np.arange(length - 2)) % (vocab_size - 3)
            writer.append(np.concatenate(([BOS], inner, [EOS])), np.array([length]))
        writer.state()
        splits[split] = SplitManifest(
            num_documents=len(lengths.get(split, [])),
            num_tokens=sum(lengths.get(split, [])),
            num_bytes=0,
            unigram_entropy=float(np.log(vocab_size)),
            shards=writer.finish(),
        )
    Manifest(
        sources=["test"],
        validation="test",
        vocab_size=vocab_size,
        bos=BOS,
        eos=EOS,
        tokenizer_sha256=sha256_of(directory / TOKENIZER),
        num_skipped=0,
        code_share=0.0,
        splits=splits,
    ).save(directory)
    return directory
