"""Token shards on disk, the manifest that describes them, and the corpus that reads them back.

A corpus directory holds, for each split and shard, `SPLIT-00000.tokens` (unsigned integers, little-endian, documents
end to end) and `SPLIT-00000.ends` (for each document the offset, in tokens, at which it ends), next to
`tokenizer.model` and `manifest.json`. Every document starts with the tokenizer's BOS and ends with its EOS.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lerope.core.files import parse_object, read_signed, sha256_of, write_signed, write_whole
from lerope.core.run import TOKENIZER
from lerope.data.hub import parse

Tokens = npt.NDArray[np.integer[Any]]
SplitName = Literal["train", "validation"]
Verify = Literal["changed", "all", "sizes"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")

MANIFEST = "manifest.json"
SHARD_TOKENS = 1 << 28
_BLOCK_TOKENS = 1 << 22
_VERIFIED = ".verified.json"
_VERSION = 2
_AGAIN = "restore it or prepare the data again with `lerope data prepare`"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned integer that holds every id of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Two files: the tokens of some documents and where each document ends."""

    name: str
    num_documents: int
    num_tokens: int
    tokens_sha256: str
    ends_sha256: str


@dataclass(frozen=True, kw_only=True)
class SplitManifest:
    """One split's shards and totals."""

    num_documents: int
    num_tokens: int
    num_bytes: int
    """UTF-8 bytes of the text."""
    unigram_entropy: float
    """Nats per token of the split's own token frequencies: the best loss of a model that ignores context."""
    shards: list[Shard]
    max_tokens: int | None = None
    """Its limit; once reached, the split ends with that document and the remaining text is left out."""


def limit_in_words(num_tokens: int, max_tokens: int | None) -> str:
    """How a split's limit affected it, to follow its counts; empty if there is none."""
    if max_tokens is None:
        return ""
    return f", {'cut short by' if num_tokens >= max_tokens else 'below'} the limit of {max_tokens:,} tokens"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`: everything a run needs to know about its data and to recognise it again."""

    sources: list[str]
    """As the user named them."""
    validation: str
    """How the validation split was made."""
    vocab_size: int
    bos: int
    eos: int
    tokenizer_sha256: str
    num_skipped: int
    """Documents skipped because they were empty or, if requested, not valid UTF-8."""
    code_share: float
    """The share of source code in the training split, by bytes of its text."""
    splits: dict[str, SplitManifest]
    settings: dict[str, Any] = field(default_factory=dict)
    """All other settings of `lerope data prepare`, by which it recognises the same request."""
    version: int = _VERSION

    def __post_init__(self) -> None:
        if self.version != _VERSION:
            raise ValueError(f"version must be {_VERSION}, got {self.version}")
        for split in SPLITS:
            if split not in self.splits:
                raise ValueError(f"splits.{split} is missing")
        for name, found in self.splits.items():
            for count in ("num_documents", "num_tokens"):
                if sum(getattr(shard, count) for shard in found.shards) != getattr(found, count):
                    raise ValueError(f"splits.{name}.{count} must be the sum over its shards")

    def fingerprint(self) -> str:
        """A hash of the content alone: the tokenizer and the tokens of each split, in order."""
        content = [self.vocab_size, self.bos, self.eos, self.tokenizer_sha256]
        for split in SPLITS:
            content += [[shard.tokens_sha256, shard.ends_sha256] for shard in self.splits[split].shards]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def save(self, directory: Path) -> None:
        """Writes the file whole or not at all."""
        write_signed(directory / MANIFEST, self)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Manifest":
        """Reads and checks a manifest; any problem raises one ValueError that names the file."""
        path = Path(directory) / MANIFEST
        if not path.exists():
            raise ValueError(f"{path} does not exist; name a folder that `lerope data prepare` finished.")
        return read_signed(path, cls, "prepare the data again with `lerope data prepare`", _upgrade)


def _upgrade(content: Any) -> None:
    """The first version did not record the share of code, and had no limits."""
    if isinstance(content, dict) and content.get("version") == 1:
        sources = content.get("sources")
        is_code = isinstance(sources, list) and bool(sources) and all(map(_is_code, sources))
        content.update(version=_VERSION, code_share=float(is_code))


def _is_code(source: Any) -> bool:
    """Whether a source is known to be nothing but code by what the user called it."""
    if not isinstance(source, str):
        return False
    return source == "python:" or source.endswith(".py") or (source.startswith("hf:") and bool(parse(source[3:]).code))


class SplitWriter:
    """Appends documents to the shards of one split; can go back to what `state` returned."""

    def __init__(self, directory: Path, split: SplitName, dtype: np.dtype[Any], state: Sequence[tuple[int, int]] = ()):
        self.directory, self.split, self.dtype = directory, split, dtype
        self._sizes = [list(size) for size in state]  # [documents, tokens] of each shard
        sizes: dict[Path, int] = {}
        for index, (documents, tokens) in enumerate(self._sizes):
            sizes |= {self._path(index, "ends"): 8 * documents, self._path(index, "tokens"): dtype.itemsize * tokens}
        for path, size in sizes.items():
            if not path.is_file() or path.stat().st_size < size:
                raise ValueError(f"{path} has lost data; delete {directory} and prepare it again.")
        for path in directory.glob(f"{split}-*"):
            os.truncate(path, sizes.get(path, 0))

    def append(self, tokens: Tokens, lengths: npt.NDArray[np.int64]) -> None:
        """Adds whole documents, end to end in `tokens`.

        A shard ends with the document that fills it, so that shards do not depend on how many are added at once.
        """
        begin = 0
        while begin < len(lengths):
            if not self._sizes or self._sizes[-1][1] >= SHARD_TOKENS:
                self._sizes.append([0, 0])
            size = self._sizes[-1]
            ends = size[1] + np.cumsum(lengths[begin:], dtype=np.uint64)
            ends = ends[: int(np.searchsorted(ends, SHARD_TOKENS)) + 1]
            count = int(ends[-1]) - size[1]
            with self._path(len(self._sizes) - 1, "tokens").open("ab") as file:
                file.write(tokens[:count].astype(self.dtype, copy=False).tobytes())
            with self._path(len(self._sizes) - 1, "ends").open("ab") as file:
                file.write(ends.astype("<u8").tobytes())
            size[0] += len(ends)
            size[1] += count
            tokens, begin = tokens[count:], begin + len(ends)

    def state(self) -> list[tuple[int, int]]:
        """Documents and tokens of each shard, once everything has reached the disk."""
        for index in range(len(self._sizes)):
            for kind in ("tokens", "ends"):
                with self._path(index, kind).open("rb") as file:
                    os.fsync(file.fileno())
        return [(documents, tokens) for documents, tokens in self._sizes]

    def finish(self) -> list[Shard]:
        """Hashes every shard and describes it."""
        return [
            Shard(
                name=f"{self.split}-{index:05d}",
                num_documents=documents,
                num_tokens=tokens,
                tokens_sha256=sha256_of(self._path(index, "tokens")),
                ends_sha256=sha256_of(self._path(index, "ends")),
            )
            for index, (documents, tokens) in enumerate(self._sizes)
        ]

    def _path(self, index: int, kind: str) -> Path:
        return self.directory / f"{self.split}-{index:05d}.{kind}"


class Split:
    """The documents of one split, memory-mapped and numbered from 0 across shards."""

    def __init__(self, directory: Path, manifest: SplitManifest, dtype: np.dtype[Any]) -> None:
        self.manifest = manifest
        self._tokens: list[Tokens] = []
        self._starts: list[npt.NDArray[np.uint64]] = []
        for shard in manifest.shards:
            ends = np.fromfile(directory / f"{shard.name}.ends", dtype="<u8")
            self._starts.append(np.concatenate(([np.uint64(0)], ends)))
            self._tokens.append(np.memmap(directory / f"{shard.name}.tokens", dtype=dtype, mode="r"))
        self._first = np.cumsum([0, *(shard.num_documents for shard in manifest.shards)])
        sizes = [np.diff(starts) for starts in self._starts] or [np.zeros(0, np.uint64)]
        self.lengths: npt.NDArray[np.uint32] = np.concatenate(sizes).astype(np.uint32)
        """Tokens of each document, including BOS and EOS."""

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, index: int, start: int = 0, stop: int | None = None) -> Tokens:
        """The tokens of a document, or its part from `start` to `stop`; a view of the file, not a copy."""
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        begin, end = (int(x) for x in self._starts[shard][index - self._first[shard] :][:2])
        return self._tokens[shard][begin + start : end if stop is None else min(begin + stop, end)]

    def blocks(self) -> Iterator[tuple[Tokens, npt.NDArray[np.int64]]]:
        """All documents in order, some at a time: their tokens end to end, and their lengths."""
        for tokens, starts in zip(self._tokens, self._starts, strict=True):
            first = 0
            while first < len(starts) - 1:
                wanted = starts[first] + np.uint64(_BLOCK_TOKENS)
                last = min(max(int(np.searchsorted(starts, wanted)), first + 1), len(starts) - 1)
                yield tokens[int(starts[first]) : int(starts[last])], np.diff(starts[first : last + 1]).astype(np.int64)
                first = last


class Corpus:
    """A prepared corpus, checked against its manifest before anything is read from it."""

    def __init__(self, directory: str | os.PathLike[str], verify: Verify = "changed") -> None:
        """Opens a corpus.

        Args:
            directory: what `lerope data prepare` wrote.
            verify: which files' hashes to compare with the manifest: `changed` hashes a file once, and again when its
                size or modification time differs (results are kept in the directory, if writable); `all` hashes every
                file now; `sizes` only checks sizes.
        """
        self.directory = Path(directory)
        self.manifest = Manifest.load(directory)
        self.tokenizer_path = self.directory / TOKENIZER
        self._check_files(verify)
        dtype = token_dtype(self.manifest.vocab_size)
        splits = self.manifest.splits
        self.train = Split(self.directory, splits["train"], dtype)
        self.validation = Split(self.directory, splits["validation"], dtype)

    def hash_files(self) -> Iterator[Path]:
        """Hashes every file, one with each step of the iterator; raises at one that does not match the manifest."""
        for path, wanted, _ in self._files():
            _check_hash(path, wanted)
            yield path

    def _files(self) -> Iterator[tuple[Path, str, int | None]]:
        """Each file, its hash and its size by the manifest, which does not know the tokenizer's size."""
        yield self.tokenizer_path, self.manifest.tokenizer_sha256, None
        itemsize = token_dtype(self.manifest.vocab_size).itemsize
        for split in self.manifest.splits.values():
            for shard in split.shards:
                yield self.directory / f"{shard.name}.tokens", shard.tokens_sha256, shard.num_tokens * itemsize
                yield self.directory / f"{shard.name}.ends", shard.ends_sha256, shard.num_documents * 8

    def _check_files(self, verify: Verify) -> None:
        now: dict[str, list[Any]] = {}
        for path, sha256, wanted in self._files():
            if not path.is_file():
                raise ValueError(f"{path} is missing although the manifest lists it; {_AGAIN}.")
            found = path.stat()
            if wanted not in (None, found.st_size):
                raise ValueError(
                    f"{path} must have {wanted:,} bytes; got {found.st_size:,}: it was truncated or changed, {_AGAIN}."
                )
            now[path.name] = [found.st_mtime_ns, found.st_size, sha256]
        if verify == "sizes":
            return
        seen = _read_verified(self.directory) if verify == "changed" else {}
        for path, sha256, _ in self._files():
            if seen.get(path.name) != now[path.name]:
                _check_hash(path, sha256)
        if seen != now:
            _write_verified(self.directory, now)


def _check_hash(path: Path, wanted: str) -> None:
    if sha256_of(path) != wanted:
        what = "not the tokenizer these tokens were made with" if path.name == TOKENIZER else "damaged"
        raise ValueError(f"{path} is {what}: its content does not match the manifest; {_AGAIN}.")


def unigram_entropy(counts: Iterable[int] | npt.NDArray[np.int64]) -> float:
    """Nats per token of a distribution given by counts."""
    counts = np.asarray(counts, dtype=np.float64)
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())


def split_entropy(directory: Path, shards: Iterable[Shard], vocab_size: int) -> float:
    """The same of all tokens of some shards."""
    counts = np.zeros(vocab_size, np.int64)
    for shard in shards:
        with (directory / f"{shard.name}.tokens").open("rb") as file:
            while block := file.read(1 << 22):
                counts += np.bincount(np.frombuffer(block, token_dtype(vocab_size)), minlength=vocab_size)
    return unigram_entropy(counts)


def _read_verified(directory: Path) -> dict[str, Any]:
    try:
        return parse_object((directory / _VERIFIED).read_bytes()) or {}
    except OSError:
        return {}


def _write_verified(directory: Path, content: dict[str, Any]) -> None:
    try:
        write_whole(directory / _VERIFIED, json.dumps(content))
    except OSError:
        return  # A read-only corpus is just hashed at every start.
