"""Files: written whole or not at all, read into a typed object or one error."""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from lerope.core.complaints import complaint, too_large
from lerope.core.leftovers import on_its_way, remove

Kind = TypeVar("Kind")
SignedKind = TypeVar("SignedKind", bound="Signed")

# The ending of a folder's name while another takes its place.
_REPLACED = ".replaced"
# What safetensors gives its files, whatever the user's settings and the folder's. Others are as these want them.
_PRIVATE = 0o600


def sha256_of(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file or folder: it replaces `path` once all of it has reached the disk.

    Any failure before that, even a machine crash, leaves `path` as it was.
    """
    partial = on_its_way(path)
    try:
        yield partial
        put(partial, path)
    finally:
        remove(partial)


def put(partial: Path, path: Path) -> None:
    """Replaces `path` by what was written at `partial`, once all of it has reached the disk.

    A folder cannot replace another in one step: a crash just then leaves the old one beside it, as `.NAME.replaced`.
    """
    for each in (*(partial.rglob("*") if partial.is_dir() else ()), partial):
        _settle(each)
    aside = path.with_name(f".{path.name}{_REPLACED}")
    if partial.is_dir() and path.is_dir():
        remove(aside)
        path.replace(aside)
    partial.replace(path)
    _sync(path.parent)
    remove(aside)


@contextmanager
def staged(folder: Path, last: str, replaces: str = "") -> Iterator[Path]:
    """A folder to write into, whose files are moved into `folder` at the end.

    Until then `folder` stays as it was. Other files in it stay for good.

    Args:
        last: the file that is moved last, without which nobody can read the folder. It is absent while others move, so
            that a kill in between leaves no folder that mixes old and new files and looks whole.
        replaces: a pattern of names: where new files match it, old ones that match are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = on_its_way(folder / last)
    partial.mkdir()
    try:
        yield partial
        files = [path for path in partial.rglob("*") if path.is_file()]
        for path in files:
            _settle(path)
        if (partial / last).is_file():
            (folder / last).unlink(missing_ok=True)
        if any(re.fullmatch(replaces, path.name) for path in partial.iterdir()):
            for path in folder.iterdir():
                if re.fullmatch(replaces, path.name):
                    path.unlink()
        for path in sorted(files, key=lambda path: path.name == last):
            target = folder / path.relative_to(partial)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        _sync(folder)
    finally:
        remove(partial)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all; text gets a newline at its end."""
    with whole(path) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def write_json(path: Path, value: Any) -> None:
    """Writes a dataclass or plain values as JSON."""
    content = value if isinstance(value, dict) else asdict(value)
    write_whole(path, json.dumps(content, indent=1, allow_nan=False))


def read_json(path: Path, kind: type[Kind], fix: str, upgrade: Callable[[Any], None] | None = None) -> Kind:
    """Reads a JSON file into a typed object; any problem raises one ValueError.

    Args:
        kind: a dataclass; every field must be present with its type, and no others.
        fix: what to do about a bad file, as the end of a sentence.
        upgrade: converts what an earlier version wrote into what this one reads.
    """
    return parse_json(read_bytes(path, fix), kind, str(path), fix, upgrade)


class Signed(Protocol):
    """Knows the hash of its content."""

    def fingerprint(self) -> str:
        """A hash of what matters."""
        ...


def write_signed(path: Path, value: Signed) -> None:
    """Writes a dataclass with its fingerprint."""
    write_json(path, {**asdict(value), "fingerprint": value.fingerprint()})  # type: ignore[call-overload]


def read_signed(
    path: Path, kind: type[SignedKind], fix: str, upgrade: Callable[[Any], None] | None = None
) -> SignedKind:
    """Reads what `write_signed` wrote; raises if the content does not match the fingerprint."""
    stored: list[Any] = []

    def take(content: Any) -> None:
        if isinstance(content, dict):
            stored.append(content.pop("fingerprint", None))
        if upgrade is not None:
            upgrade(content)

    value = read_json(path, kind, fix, take)
    if not isinstance(stored[0], str):
        raise ValueError(f"{path}: fingerprint is missing; {fix}.")
    if stored[0] != (actual := value.fingerprint()):
        raise ValueError(
            f"{path}: fingerprint {stored[0][:12]} does not match the content ({actual[:12]}); the file was changed by "
            f"hand or damaged, {fix}."
        )
    return value


def read_bytes(path: Path, fix: str) -> bytes:
    """The content of a file; raises if unreadable, as a fifo is that nobody may ever write to."""
    try:
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} does not exist; {fix}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); {fix}.") from None


def parse_json(
    content: bytes, kind: type[Kind], where: str, fix: str, upgrade: Callable[[Any], None] | None = None
) -> Kind:
    """The same for content already read from `where`."""
    try:
        plain = msgspec.json.decode(content)
        for field in too_large(plain):
            raise ValueError(f"{field} is beyond 64 bits")
        if upgrade is not None:
            upgrade(plain)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{where}{complaint(error)}; {fix}.") from None
    return as_type(plain, kind, where, fix)


def as_type(plain: Any, kind: type[Kind], where: str, fix: str) -> Kind:
    """The same for plain values, such as the settings that a result keeps of its run."""
    try:
        value = msgspec.convert(plain, kind)
        # msgspec fills in defaults for missing fields and skips unknown ones; neither is right here.
        for field, known, _ in differences(asdict(value), plain):  # type: ignore[call-overload]
            raise ValueError(f"{field} is {'unknown' if known is None else 'missing'}")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{where}{complaint(error)}; {fix}.") from None
    return value


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The JSON objects of a .jsonl file, one per line, None for a damaged line; nothing if there is no file.

    What cannot be read at all is one damaged line. A last line without a newline is still being written, or was cut off
    by a crash, and is skipped.
    """
    if not os.path.lexists(path):
        return
    if not path.is_file():
        yield None
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield parse_object(line)


def parse_object(content: bytes) -> dict[str, Any] | None:
    """A JSON object with unchecked fields; None for anything else."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def differences(old: Any, new: Any, field: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, as (dotted field, old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{field}.{key}" if field else str(key))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{field}[{number}]")
    elif old != new:
        yield field, old, new


def _settle(path: Path) -> None:
    """Waits until a file or folder has reached the disk, and opens what safetensors made for its user alone."""
    if path.is_file() and stat.S_IMODE(path.stat().st_mode) == _PRIVATE:
        path.chmod(_usual_mode())
    _sync(path)


@cache
def _usual_mode() -> int:
    """Who may do what with a new file, by this user's settings."""
    umask = os.umask(0o022)
    os.umask(umask)
    return 0o666 & ~umask


def _sync(path: Path) -> None:
    """Returns when a file or folder has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
