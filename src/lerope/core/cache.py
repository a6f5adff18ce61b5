"""The user's cache folder: what lerope found out on a machine, and what was compiled there."""

import hashlib
import importlib.util
import os
import stat
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Where lerope keeps what it found out or compiled for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lerope"


def keep_bytecode(package: str = "torch") -> None:
    """Where Python would compile a large package's source at every start, has it keep the result in the cache folder.

    That is so in many images of containers: they come without bytecode and set PYTHONDONTWRITEBYTECODE, or their
    packages are not the user's to write to. A folder that the user chose with PYTHONPYCACHEPREFIX stays.

    Python believes bytecode whose source has the same size and time, to the second. Images may give all files one
    time, so each installation has a folder of its own; and Python runs what lies there, so it must be the user's alone.
    """
    spec = importlib.util.find_spec(package)
    if sys.pycache_prefix is not None or spec is None or spec.origin is None:
        return
    compiled = Path(importlib.util.cache_from_source(spec.origin))
    is_kept = not sys.dont_write_bytecode and os.access(compiled.parents[1], os.W_OK)
    if compiled.exists() or is_kept:
        return
    try:
        installed = f"{sys.prefix} {spec.origin} {os.stat(spec.origin).st_ctime_ns}"
        folder = cache_folder() / "bytecode" / hashlib.sha256(installed.encode()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours_alone(folder):
            return
    except (OSError, RuntimeError):  # no place, or no home folder
        return  # then it takes as long as it did
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    # For processes that this one starts, such as compilers.
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _is_ours_alone(folder: Path) -> bool:
    """Whether nobody else can write into a folder, nor owns one that it lies in below the user's cache."""
    if not hasattr(os, "geteuid"):
        return True
    owners = {os.stat(place).st_uid for place in (folder, folder.parent, folder.parent.parent)}
    return owners == {os.geteuid()} and not os.stat(folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH)
