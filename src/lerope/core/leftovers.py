"""Files on their way: what they are called, and how those of killed processes are found and removed."""

import hashlib
import os
import platform
import re
import shutil
from pathlib import Path

_ENDING = ".writing"


def on_its_way(path: Path) -> Path:
    """Where this process writes what will be `path`, in a place with nothing in it.

    Removes what dead processes of this machine were writing beside it. Files of other machines on a shared file system
    stay, because nobody here can tell whether their owner lives.
    """
    folder = path.parent
    owned = re.compile(rf"\..+\.{_here()}-(\d+){re.escape(_ENDING)}")
    for left in folder.glob(f".*{_ENDING}"):
        if (found := owned.fullmatch(left.name)) and not _is_alive(int(found[1])):
            remove(left)
    partial = path.with_name(f".{path.name}.{_here()}-{os.getpid()}{_ENDING}")
    remove(partial)
    return partial


def sweep(folder: Path) -> None:
    """Removes what killed processes were writing in a folder; only for who has it locked."""
    for left in folder.glob(f".*{_ENDING}"):
        remove(left)


def remove(path: Path) -> None:
    """Removes a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _here() -> str:
    """A word for this machine, and on it for the container, among whose processes a number means one process."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
