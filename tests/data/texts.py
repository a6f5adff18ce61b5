"""Made-up text, and files of every kind that hold it."""

import gzip
import json
import lzma
import random
from pathlib import Path

import pyarrow as pa
import zstandard
from pyarrow import parquet


def made_up(count: int, seed: int = 0, num_words: int = 60) -> list[str]:
    """Documents of random words in lines; some hold characters that a small vocabulary has no piece for."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrst", k=rng.randint(1, 8))) for _ in range(300)]
    texts = []
    for number in range(count):
        chosen = rng.choices(words, k=rng.randint(1, 2 * num_words))
        text = "".join(word + rng.choice([" ", " ", "  ", "\n", ", ", "\t", ":\n    "]) for word in chosen)
        texts.append(f"{number} {text}{rng.choice(['', 'é', '😀', chr(0x2581), chr(0)])}")
    return texts


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    """A .jsonl, .jsonl.gz, .jsonl.xz or .jsonl.zst file, as its name says."""
    data = "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()
    compress = {
        ".gz": lambda data: gzip.compress(data, 1),
        ".xz": lambda data: lzma.compress(data, preset=0),
        ".zst": zstandard.ZstdCompressor().compress,
    }
    path.write_bytes(compress.get(path.suffix, bytes)(data))
    return path


def write_parquet(path: Path, texts: list[str], field: str = "text", row_group_size: int = 10) -> Path:
    parquet.write_table(pa.table({"id": range(len(texts)), field: texts}), path, row_group_size=row_group_size)
    return path
