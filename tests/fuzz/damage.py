"""What can happen to a file: to any file, to JSON field by field as its type says, to a line, to bits."""

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.examples import DEPTH, INSTEAD, RAW, accepts, fields, inner, may_be_missing

Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Damage:
    """Something that is done to a file."""

    name: str
    apply: Callable[[Path], None]
    is_bad: bool = True
    """Whether a reader must notice: False for a value that the field's type allows."""


def written(name: str, content: bytes | Callable[[], bytes], is_bad: bool = True) -> Damage:
    """Other content in the place of the file; made when it is needed, as most inputs are left out of most tests."""
    return Damage(name, lambda path: _replace(path, content if isinstance(content, bytes) else content()), is_bad)


def to_any_file(content: bytes, seed: int) -> Iterator[Damage]:
    """What can happen to every file."""
    chance = random.Random(seed)
    yield written("empty", b"")
    yield written("noise", chance.randbytes(300))
    for share in (0.1, 0.5, 0.9):
        yield written(f"cut at {share}", content[: int(share * len(content))])
    yield Damage("a folder in its place", _folder)
    yield Damage("a link to itself", _loop)
    yield Damage("a link to nowhere", _nowhere)


def to_bits(content: bytes, seed: int, count: int) -> Iterator[Damage]:
    """Single bits flipped, the end cut off by a byte, a byte more; the file's time stays as it was in some."""
    chance = random.Random(seed)
    for _ in range(count):
        at, bit = chance.randrange(len(content)), chance.randrange(8)
        flipped = content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
        yield written(f"bit {bit} of byte {at} flipped", flipped)
    yield written("a byte less", content[:-1])
    yield written("a byte more", content + b"\0")


def to_json(kind: Any, content: dict[str, Any], beside: dict[str, Any]) -> Iterator[Damage]:
    """Every field dropped, null, of another type; fields added where the type knows all of them.

    Args:
        kind: the type of the file.
        content: what a whole one says.
        beside: the types of fields that the file has besides, such as its fingerprint.
    """
    missing = sorted({*fields(kind), *beside} - content.keys())
    assert not missing, f"the file that is damaged has no {missing}; write one that has"
    for keys, hint, strict in _places(kind, content, beside):
        place = ".".join(map(str, keys))
        if isinstance(keys[-1], str):
            yield written(f"{place} dropped", partial(_without, content, keys), strict)
        for name, value in INSTEAD.items():
            if value != _at(content, keys) or isinstance(value, bool) != isinstance(_at(content, keys), bool):
                yield written(f"{place} is {name}", partial(_with, content, keys, value), not accepts(hint, value))
        for name, raw in RAW.items():
            yield written(f"{place} is {name}", partial(_with, content, keys, "@", raw))
        if fields(hint) and isinstance(_at(content, keys), dict):
            yield written(f"{place}.colour added", partial(_with, content, (*keys, "colour"), "red"))
    yield written("colour added", partial(_with, content, ("colour",), "red"), bool(fields(kind)))
    for name, value in INSTEAD.items():
        yield written(f"all of it is {name}", json.dumps(value).encode())
    yield written("nested too deep", b"[" * DEPTH)
    yield written("objects nested too deep", b'{"a":' * DEPTH)


def to_lines(kind: Any, content: bytes, which: int) -> Iterator[Damage]:
    """The same in one line of a .jsonl file; the others stay."""
    lines = content.splitlines(keepends=True)

    def with_line(line: bytes) -> bytes:
        return b"".join([*lines[:which], line.rstrip(b"\n") + b"\n", *lines[which + 1 :]])

    for damage in to_json(kind, json.loads(lines[which]), {}):
        yield Damage(
            damage.name,
            lambda path, damage=damage: _replace(path, with_line(_content_of(damage, path))),  # type: ignore[misc]
            damage.is_bad,
        )
    yield written("a line cut", with_line(lines[which][:10]))
    yield written("a line of noise", with_line(random.Random(0).randbytes(50).replace(b"\n", b"")))
    yield written("an empty line", with_line(b""))
    yield written("half a line at the end", content + b'{"step": 7, "lo', False)


def _content_of(damage: Damage, path: Path) -> bytes:
    damage.apply(path)
    return path.read_bytes()


def _places(kind: Any, content: Any, beside: dict[str, Any], keys: Keys = ()) -> Iterator[tuple[Keys, Any, bool]]:
    """(keys, type, whether it must be there) of everything in a value; of a list its first and last alone."""
    named = fields(kind)
    if isinstance(content, dict):
        chosen: list[Any] = list(content)
    elif isinstance(content, list):
        chosen = sorted({0, len(content) - 1}) if content else []
    else:
        return
    for key in chosen:
        hint = beside[key] if not keys and key in beside else inner(kind, key, content)
        yield (*keys, key), hint, (key in named and not may_be_missing(kind, key)) or key in beside
        yield from _places(hint, content[key], {}, (*keys, key))


def _at(content: Any, keys: Keys) -> Any:
    for key in keys:
        content = content[key]
    return content


def _with(content: Any, keys: Keys, value: Any, raw: bytes = b"") -> bytes:
    """The file with another value at a place; with raw bytes where that value is "@"."""
    made = json.loads(json.dumps(content))
    _at(made, keys[:-1])[keys[-1]] = value
    written = json.dumps(made).encode()
    return written.replace(b'"@"', raw, 1) if raw else written


def _without(content: Any, keys: Keys) -> bytes:
    made = json.loads(json.dumps(content))
    del _at(made, keys[:-1])[keys[-1]]
    return json.dumps(made).encode()


def _replace(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def keep_time(apply: Callable[[Path], None]) -> Callable[[Path], None]:
    """The same with the file's time as before."""

    def applied(path: Path) -> None:
        status = path.stat()
        apply(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return applied
