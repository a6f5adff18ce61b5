"""Locks: one process at a time in a folder, and a look that disturbs nobody."""

import errno
import fcntl
import threading

import pytest

from lerope.data.files import LOCK, is_locked, locked


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
