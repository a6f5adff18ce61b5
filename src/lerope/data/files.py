"""Files that appear whole or not at all, and folders that one process holds at a time."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

LOCK = ".lock"
# A process that only asks whether a folder is locked is done sooner than this.
_PATIENCE_S = 1.0
_RETRY_S = 0.05


def sha256_of(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file (a text with a newline at its end) whole or not at all, even if the machine stops in between."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(content if isinstance(content, bytes) else f"{content}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder and keeps every other process out of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as error:
        raise ValueError(f"out must be a folder that can be written; got {folder} ({error.strerror}).") from None
    with lock:
        deadline = time.monotonic() + _PATIENCE_S
        while not _lock(lock, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise ValueError(f"{folder} is in use by another process; wait for it, or use another folder.")
            time.sleep(_RETRY_S)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process keeps others out of a folder. Writes nothing, and says no where there are no locks."""
    try:
        with (folder / LOCK).open("rb") as lock:
            return not _lock(lock, fcntl.LOCK_SH)
    except (OSError, ValueError):
        return False


def _lock(file: IO[Any], kind: int) -> bool:
    """Locks a file, unless another process has it locked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ValueError(
            f"{Path(file.name).parent} cannot be locked ({error.strerror}); use a file system with locks, for Lustre "
            "one mounted with flock."
        ) from None
    return True
