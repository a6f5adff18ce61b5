"""Files on their way: what they are called, and how those of killed processes are found and removed."""

import hashlib
import os
import platform
import re
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

_ENDING = ".writing"
_OLD_S = 86_400.0


def on_its_way(path: Path) -> Path:
    """Where this process writes what will be `path`, in a place with nothing in it.

    Removes what dead processes of this machine were writing beside it.
    """
    for left in path.parent.glob(f".*{_ENDING}"):
        if _owner_is_alive(left) is False:
            remove(left)
    partial = path.with_name(f".{path.name}.{_here()}-{os.getpid()}{_ENDING}")
    remove(partial)
    return partial


def sweep(folder: Path) -> None:
    """Removes what killed processes were writing in a folder; of other machines' only what is old.

    Nobody here can tell whether a process of another machine lives, and not everyone who writes in a folder locks it.
    """
    for left in folder.glob(f".*{_ENDING}"):
        alive = _owner_is_alive(left)
        if alive is False or (alive is None and _age_s(left) > _OLD_S):
            remove(left)


def remove(path: Path) -> None:
    """Removes a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _owner_is_alive(left: Path) -> bool | None:
    """Whether the process that writes a file lives; None if it is not one of this machine, since it was started."""
    found = re.fullmatch(rf"\..+\.{_here()}-(\d+){re.escape(_ENDING)}", left.name)
    if found is None:
        return None
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


@cache
def _here() -> str:
    """A word for this machine since it was started, and the container on it: where a number means one process."""
    words = [platform.node()]
    with suppress(OSError):
        words += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]
