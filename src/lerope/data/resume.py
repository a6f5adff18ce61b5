"""What a half-prepared corpus directory remembers."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lerope.data.files import write_whole
from lerope.data.shards import SPLITS

PROGRESS = "progress.json"
_MEANING = {"files": "the names or sizes of the sources' files", "tokenizer": "the tokenizer's content"}


@dataclass(kw_only=True)
class Progress:
    """What `progress.json` holds: with the shards, everything needed to go on exactly where it was written."""

    settings: dict[str, Any]
    tokenizer_sha256: str | None = None
    """None until the tokenizer is there."""
    part: int = 0
    record: int = 0
    """The next record of the part to read."""
    num_bytes_read: int = 0
    num_skipped: int = 0
    num_documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    num_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    num_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    shards: dict[str, list[list[int]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    """What the writers' `state` returned."""

    def save(self, directory: Path) -> None:
        """Writes the file whole or not at all."""
        write_whole(directory / PROGRESS, json.dumps(asdict(self)))

    @classmethod
    def open(cls, directory: Path, settings: dict[str, Any]) -> "Progress":
        """The progress of a directory, which must have the same settings, or that of an empty one."""
        path = directory / PROGRESS
        for partial in directory.glob(f".{PROGRESS}.*"):
            partial.unlink()  # left by a process that was killed
        if not path.exists():
            others = sorted(other.name for other in directory.iterdir() if not other.name.startswith("."))
            if others and others != ["tokenizer.model"]:
                raise ValueError(f"{directory} holds {others[0]!r}; name a new or an empty folder with --out.")
            return cls(settings=settings)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or set(content) != {known.name for known in fields(cls)}:
                raise ValueError("other fields than expected")
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); delete {directory} and prepare it anew.") from None
        progress = cls(**content)
        if progress.tokenizer_sha256 is None:
            return cls(settings=settings)  # nothing was made yet that other settings would spoil
        compare(progress.settings, settings, directory)
        progress.settings = settings
        return progress


def compare(before: dict[str, Any], now: dict[str, Any], directory: Path) -> None:
    """Raises where a directory was begun with other settings, naming the first that differs."""
    for name, value in now.items():
        old = before.get(name)
        if old == value or (name == "skip_invalid" and value):  # up to here there was nothing to skip
            continue
        what = f"{_MEANING[name]} have changed" if name in _MEANING else f"{name} was {old!r}, now it is {value!r}"
        raise ValueError(
            f"{directory} was begun with other settings: {what}; use the same, or name another folder with --out."
        )


@contextmanager
def full_disk_explained(directory: Path) -> Iterator[None]:
    """Turns the error of a full disk into a sentence; what was saved before is intact."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"the disk of {directory} is full; free some space and run the same command again, it goes on from what "
            f"is already prepared."
        ) from None
