"""What a partly prepared corpus directory remembers."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lerope.core.files import read_json, write_json
from lerope.core.terminal import duration
from lerope.data.shards import SPLITS, SplitName

PROGRESS = "progress.json"
_MEANING = {"files": "the names or sizes of the sources' files", "tokenizer": "the tokenizer's content"}


Count = Annotated[int, msgspec.Meta(ge=0)]
Counts = dict[SplitName, Count]


def _none() -> Counts:
    return dict.fromkeys(SPLITS, 0)


@dataclass(kw_only=True)
class Progress:
    """The content of `progress.json`: with the shards, everything needed to resume exactly where it was written."""

    settings: dict[str, Any]
    tokenizer_sha256: str | None = None
    """None until the tokenizer exists."""
    part: Count = 0
    record: Count = 0
    """The next record of the part to read."""
    num_bytes_read: Count = 0
    num_skipped: Count = 0
    num_documents: Counts = field(default_factory=_none)
    num_tokens: Counts = field(default_factory=_none)
    num_bytes: Counts = field(default_factory=_none)
    num_code_bytes: Counts = field(default_factory=_none)
    """Those of source code."""
    shards: dict[SplitName, list[tuple[Count, Count]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    """Documents and tokens of each shard, as the writers' `state` method returned them."""

    def __post_init__(self) -> None:
        for name in ("num_documents", "num_tokens", "num_bytes", "num_code_bytes", "shards"):
            if len(getattr(self, name)) != len(SPLITS):
                raise ValueError(f"{name} must be about {' and '.join(SPLITS)}; got {', '.join(getattr(self, name))}")
        for split, sizes in self.shards.items():
            found = [sum(size[which] for size in sizes) for which in (0, 1)]
            if found != [self.num_documents[split], self.num_tokens[split]]:
                raise ValueError(f"shards.{split} must add up to num_documents and num_tokens; got {found}")

    def save(self, directory: Path) -> None:
        """Writes the file whole or not at all."""
        write_json(directory / PROGRESS, self)

    @classmethod
    def open(cls, directory: Path, settings: dict[str, Any]) -> "Progress":
        """A directory's progress, which must have the same settings, or that of an empty one."""
        path = directory / PROGRESS
        if not path.exists():
            others = sorted(other.name for other in directory.iterdir() if not other.name.startswith("."))
            if others and others != ["tokenizer.model"]:
                raise ValueError(f"{directory} already contains {others[0]!r}; name a new or empty folder with --out.")
            return cls(settings=settings)
        progress = read_json(path, cls, f"delete {directory} and prepare it again")
        if progress.tokenizer_sha256 is None:
            return cls(settings=settings)  # nothing yet that other settings would invalidate
        compare(progress.settings, settings, directory)
        progress.settings = settings
        return progress


def compare(before: dict[str, Any], now: dict[str, Any], directory: Path) -> None:
    """Raises if a directory was started with different settings, naming the first that differs."""
    for name, value in now.items():
        old = before.get(name)
        if old == value or (name == "skip_invalid" and value):  # nothing had to be skipped so far
            continue
        what = f"{_MEANING[name]} have changed" if name in _MEANING else f"{name} was {old!r}, now it is {value!r}"
        raise ValueError(
            f"{directory} was started with different settings: {what}; use the same, or another folder with --out."
        )


@contextmanager
def full_disk_explained(directory: Path) -> Iterator[None]:
    """Turns a full-disk error into a sentence; what was saved before is intact."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"the disk of {directory} is full; free some space and run the same command again to continue from what "
            f"is already prepared."
        ) from None


class Rate:
    """MB/s since the start, and the time left if the total size or a limit is known."""

    def __init__(self, progress: Progress, total: int | None, max_tokens: int | None) -> None:
        self._total, self._max_tokens, self._begun = total, max_tokens, time.monotonic()
        self._before, self._bytes = self._share(progress), sum(progress.num_bytes.values())

    def describe(self, progress: Progress) -> str:
        """A line of text."""
        seconds = max(time.monotonic() - self._begun, 1e-3)
        documents, num_bytes, tokens = (
            sum(count.values()) for count in (progress.num_documents, progress.num_bytes, progress.num_tokens)
        )
        speed = (num_bytes - self._bytes) / 1e6 / seconds
        text = f"{documents:,} documents, {num_bytes / 1e6:,.1f} MB, {tokens:,} tokens, {speed:.1f} MB/s"
        share = self._share(progress)
        if share <= self._before:
            return text
        left = seconds * (1 - share) / (share - self._before)
        return f"{text}, {100 * share:.0f}%, {duration(left)} left"

    def _share(self, progress: Progress) -> float:
        """How much is done, of the bytes on disk or of the training tokens, whichever ends first."""
        read = progress.num_bytes_read / self._total if self._total else 0.0
        return min(1.0, max(read, progress.num_tokens["train"] / self._max_tokens if self._max_tokens else 0.0))
