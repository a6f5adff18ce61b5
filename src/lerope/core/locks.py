"""Folders that one process has to itself."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lerope.core.leftovers import sweep

LOCK = ".lock"
# A process that only checks whether a folder is locked takes less than this.
_PATIENCE_S = 1.0
_RETRY_S = 0.05


@contextmanager
def locked(folder: Path, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Creates a folder and keeps every other process out; raises if one stays in it longer than `patience_s`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as error:
        raise ValueError(f"out must be a writable folder; got {folder} ({error.strerror}).") from None
    with lock:
        deadline = time.monotonic() + patience_s
        while not _lock(lock, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise ValueError(f"{folder} is in use by another process; wait for it, or use another folder.")
            time.sleep(_RETRY_S)
        sweep(folder)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process has locked a folder. Writes nothing; False if locks are not supported."""
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
            f"{Path(file.name).parent} cannot be locked ({error.strerror}); use a file system with locks (for Lustre, "
            "mounted with flock)."
        ) from None
    return True
