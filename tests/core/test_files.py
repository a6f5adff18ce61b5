"""Files that are whole or not there, typed readers that answer in one sentence, and locks that disturb nobody."""

import errno
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from lerope.core.files import (
    differences,
    put,
    read_json,
    read_lines,
    read_signed,
    staged,
    whole,
    write_json,
    write_signed,
    write_whole,
)
from lerope.core.leftovers import on_its_way
from lerope.core.locks import LOCK, is_locked, locked


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be positive; got {self.count}.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    pair: tuple[float, float]
    some: list[dict[str, Any]]
    maybe: float | None

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


GOOD = Outer(name="x", inner=Inner(count=2), pair=(1.0, 2.0), some=[{"z": None}], maybe=None)


def test_what_is_written_is_read_back(tmp_path):
    write_json(tmp_path / "f.json", GOOD)
    assert read_json(tmp_path / "f.json", Outer, "mend it") == GOOD
    write_signed(tmp_path / "s.json", GOOD)
    assert read_signed(tmp_path / "s.json", Outer, "mend it") == GOOD
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "f.json", {"loss": float("nan")})
    assert read_json(tmp_path / "f.json", Outer, "mend it") == GOOD


DAMAGE = {
    "a field missing": (lambda c: c.pop("name"), "name is missing"),
    "an inner field missing": (lambda c: c["inner"].pop("count"), "inner.count is missing"),
    "a field with a usual value missing": (lambda c: c["inner"].pop("kind"), "inner.kind is missing"),
    "a field unknown": (lambda c: c.update(colour="red"), "colour is unknown"),
    "an inner field unknown": (lambda c: c["inner"].update(size=3), "inner.size is unknown"),
    "another type": (lambda c: c.update(name=3), "name must be text, got a whole number"),
    "a number for an object": (lambda c: c.update(inner=3), "inner must be an object, got a whole number"),
    "a fraction": (lambda c: c["inner"].update(count=1.5), "inner.count must be a whole number, got a number"),
    "true is no number": (lambda c: c["inner"].update(count=True), "inner.count must be a whole number"),
    "one of three": (lambda c: c.update(maybe="x"), "maybe must be a number or null, got text"),
    "too many": (lambda c: c["pair"].append(3.0), "pair"),
    "null": (lambda c: c["pair"].__setitem__(1, None), r"pair\[1\] must be a number, got null"),
    "an unknown choice": (lambda c: c["inner"].update(kind="c"), "inner.kind has the unknown value 'c'"),
    "a bad value": (lambda c: c["inner"].update(count=0), "count must be positive; got 0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_as_it_must_be_is_one_sentence(tmp_path, damage):
    spoil, words = DAMAGE[damage]
    content = json.loads(json.dumps(asdict(GOOD)))
    spoil(content)
    (tmp_path / "f.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words) as caught:
        read_json(tmp_path / "f.json", Outer, "mend it")
    sentence = str(caught.value)
    assert sentence.startswith(str(tmp_path / "f.json"))
    assert sentence.endswith("; mend it.")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "JSON"),
        (b'{"name": "x"', "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"name": NaN}', "JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"name": ' + b"[" * 100_000, "is nested too deeply"),
        (b"[]", "must be an object, got a list"),
        (b"null", "must be an object, got null"),
        (b'{"maybe": 1e999}', "out of range"),
    ],
)
def test_what_is_no_object_at_all_is_one_sentence(tmp_path, content, words):
    (tmp_path / "f.json").write_bytes(content)
    for read in (read_json, read_signed):
        with pytest.raises(ValueError, match=words):
            read(tmp_path / "f.json", Outer, "mend it")


def test_files_that_cannot_be_read(tmp_path):
    for path, words in ((tmp_path / "no", "does not exist"), (tmp_path, "cannot be read"), (tmp_path / "a/b", "exist")):
        with pytest.raises(ValueError, match=f"{words}.*; mend it"):
            read_json(path, Outer, "mend it")


def test_a_fingerprint_must_match(tmp_path):
    path = tmp_path / "s.json"
    write_signed(path, GOOD)
    content = json.loads(path.read_text())
    for changes, words in (
        ({"name": "y"}, "does not match the content"),
        ({"fingerprint": "0" * 64}, "fingerprint 000000000000 does not match"),
        ({"fingerprint": 3}, "fingerprint is missing"),
        ({"fingerprint": None}, "fingerprint is missing"),
    ):
        path.write_text(json.dumps({**content, **changes}))
        with pytest.raises(ValueError, match=words):
            read_signed(path, Outer, "mend it")


def test_a_file_stays_as_it_was_where_writing_fails(tmp_path):
    def fail() -> None:
        with whole(tmp_path / "f") as partial:
            partial.write_text("half")
            raise RuntimeError

    write_whole(tmp_path / "f", "before")
    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "before\n"


def test_others_may_read_what_a_library_wrote_for_its_user_alone(tmp_path):
    (tmp_path / "usual").write_text("")
    for name in ("file", "folder/file"):
        with whole(tmp_path / name.partition("/")[0]) as partial:
            file = partial / "file" if "/" in name else partial
            file.parent.mkdir(exist_ok=True)
            file.touch(0o600)
    with staged(tmp_path / "staged", last="file") as partial:
        (partial / "file").touch(0o600)
    for name in ("file", "folder/file", "staged/file"):
        assert (tmp_path / name).stat().st_mode == (tmp_path / "usual").stat().st_mode, name


def test_what_a_folder_s_defaults_allow_stays_allowed(tmp_path):
    """Shared folders of a group have access lists of their own, which new files inherit in place of the umask."""
    with whole(tmp_path / "file") as partial:
        partial.touch()
        partial.chmod(0o660)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o660


def test_a_folder_takes_the_place_of_another_whole(tmp_path):
    for number in (1, 2):
        with whole(tmp_path / "folder") as partial:
            (partial / "inner").mkdir(parents=True)
            (partial / "inner" / f"{number}").write_text("")
            assert not (tmp_path / "folder" / "inner" / f"{number}").exists()
    assert [path.name for path in (tmp_path / "folder" / "inner").iterdir()] == ["2"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_replaced_is_not_lost(tmp_path, monkeypatch):
    """Between two folders neither is in its place for a moment; a crash just then leaves the old one beside it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("")
    (tmp_path / "new").mkdir()
    replace = Path.replace

    def crash(path, target):
        if path.name == "new":
            raise OSError(errno.EIO, "crash")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="crash"):
        put(tmp_path / "new", tmp_path / "folder")
    assert (tmp_path / ".folder.replaced" / "old").is_file()


def test_what_a_killed_writer_left_is_swept(tmp_path):
    """By whoever holds the folder next: what dead processes of this machine left, and what is old of others."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    alive = on_its_way(tmp_path / "run.json")
    alive.write_text("{")
    left = alive.with_name(alive.name.replace(f"-{os.getpid()}.", f"-{dead.pid}."))
    left.mkdir()
    (left / "weights").write_text("")
    theirs, old = tmp_path / ".run.json.0123abcd-4711.writing", tmp_path / ".eval.json.0123abcd-4711.writing"
    for path in (theirs, old):
        path.write_text("{")
    os.utime(old, (0, 0))
    (tmp_path / ".eval.abc.partial").write_text("")
    with locked(tmp_path):
        assert sorted(os.listdir(tmp_path)) == sorted([".eval.abc.partial", LOCK, alive.name, theirs.name])


def test_damaged_lines_are_nothing_and_a_line_without_an_end_is_left_out(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a": 1}\nnot json\n[1]\n\xff\n' + b"[" * 100_000 + b'\n{"b": NaN}\n{"c": 2}\n{"d": 3}')
    assert list(read_lines(path)) == [{"a": 1}, None, None, None, None, None, {"c": 2}]
    assert list(read_lines(tmp_path / "nowhere")) == []


def test_differences_have_dotted_names():
    old, new = {"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": (1, 3)}, "d": 2}
    assert list(differences(old, new)) == [("a.b[1]", 2, 3), ("c", 1, None), ("d", None, 2)]


def test_a_look_says_whether_a_folder_is_locked_and_leaves_nothing(tmp_path):
    assert not is_locked(tmp_path / "nowhere")
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "held"):
        assert is_locked(tmp_path / "held")
    assert not is_locked(tmp_path / "held")


def test_many_may_look_at_the_same_time(tmp_path):
    with locked(tmp_path):
        pass
    with (tmp_path / LOCK).open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_locked(tmp_path)


def test_a_look_keeps_nobody_out(tmp_path):
    """A lock that is gone in a moment is waited for; one that stays is another process."""
    with locked(tmp_path):
        pass
    looking = (tmp_path / LOCK).open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    ended = threading.Timer(0.2, looking.close)
    ended.start()
    with locked(tmp_path):
        assert looking.closed
    ended.join()
    with (
        locked(tmp_path),
        pytest.raises(ValueError, match="is in use by another process; wait for it"),
        locked(tmp_path),
    ):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    with locked(tmp_path):
        pass

    def refuse(file, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not is_locked(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be locked \(No locks available\); use a file system with locks"):
        locked(tmp_path).__enter__()
