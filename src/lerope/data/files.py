"""Files that appear whole or not at all, and folders that one process holds at a time."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


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
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process; wait for it, or use another folder.") from None
        except OSError as error:
            raise ValueError(
                f"{folder} cannot be locked ({error.strerror}); use a file system with locks, for Lustre one "
                "mounted with flock."
            ) from None
        yield
