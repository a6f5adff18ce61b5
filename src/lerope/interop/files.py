"""Files that are written whole or not at all."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def staged(folder: Path, last: str, replaces: str = "") -> Iterator[Path]:
    """A folder to write into, whose files take their places in `folder` at the end.

    Until then `folder` stays as it was. Other files in it stay for good.

    Args:
        last: the file that comes last, without which nobody can read the folder. It is away while others move, so that
            a program that is killed just then leaves no folder that mixes old and new files and reads as whole.
        replaces: a pattern of names: where new files match it, old ones that match go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        yield partial
        flush(partial)
        if (partial / last).is_file():
            (folder / last).unlink(missing_ok=True)
        if any(re.fullmatch(replaces, path.name) for path in partial.iterdir()):
            for path in folder.iterdir():
                if re.fullmatch(replaces, path.name):
                    path.unlink()
        files = [path for path in partial.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == last):
            target = folder / path.relative_to(partial)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def flush(folder: Path) -> None:
    """Waits until all files in a folder are on disk."""
    for path in (*folder.rglob("*"), folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
