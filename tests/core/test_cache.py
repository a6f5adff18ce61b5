"""Bytecode is kept where Python would make it anew at each start, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import os, sys
from lerope.core.cache import keep_bytecode
keep_bytecode("large")
import large
print(large.__cached__, os.environ.get("PYTHONPYCACHEPREFIX"), os.environ.get("PYTHONDONTWRITEBYTECODE"))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a Python that imports a package in `site`; gives where its bytecode belongs, and two variables."""
    (tmp_path / "site" / "large").mkdir(parents=True)
    (tmp_path / "site" / "large" / "__init__.py").write_text("number = 1\n")

    def run(before: str = "", then: str = "", **variables: str | None) -> list[str]:
        usual = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        paths = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
        given = {**usual, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(tmp_path / "cache"), **variables}
        environment = {name: value for name, value in given.items() if value is not None}
        done = subprocess.run(
            [sys.executable, "-c", before + START + then],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
            timeout=60,
        )
        return done.stdout.split()

    return run


def test_bytecode_that_python_would_not_keep_goes_to_the_cache_folder(start, tmp_path):
    cache = tmp_path / "cache" / "lerope" / "bytecode"
    compiled, prefix, forbidden = start(PYTHONDONTWRITEBYTECODE="1")
    assert compiled.startswith(prefix)
    assert (Path(prefix).parent, forbidden) == (cache, "None")
    written = os.stat(compiled).st_mtime_ns
    assert start(PYTHONDONTWRITEBYTECODE="1")[0] == compiled
    assert os.stat(compiled).st_mtime_ns == written
    assert not (tmp_path / "site" / "large" / "__pycache__").exists()


def test_another_installation_of_one_time_is_compiled_anew(start, tmp_path):
    """Images may give all files one time, and an edit may leave a file's size."""
    source = tmp_path / "site" / "large" / "__init__.py"
    os.utime(source, (1, 1))
    first = start(PYTHONDONTWRITEBYTECODE="1")[1]
    source.write_text("number = 2\n")
    os.utime(source, (1, 1))
    second, number = start(PYTHONDONTWRITEBYTECODE="1", then="print(large.number)")[1::2]
    assert second != first
    assert number == "2"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no owners")
def test_a_folder_that_others_can_write_into_is_not_believed(start):
    folder = Path(start(PYTHONDONTWRITEBYTECODE="1")[1])
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert start(PYTHONDONTWRITEBYTECODE="1")[1] == "None"


def test_python_s_own_place_and_the_user_s_choice_stay(start, tmp_path):
    own = str(tmp_path / "site" / "large" / "__pycache__")
    assert start()[0].startswith(own)
    assert start(PYTHONDONTWRITEBYTECODE="1") == [start()[0], "None", "1"]  # it is there already
    chosen = str(tmp_path / "chosen")
    assert start(PYTHONPYCACHEPREFIX=chosen)[0].startswith(chosen)
    assert not (tmp_path / "cache").exists()


def test_a_cache_folder_that_cannot_be_made_is_done_without(start, tmp_path):
    (tmp_path / "file").write_text("")
    assert start(PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=str(tmp_path / "file"))[1:] == ["None", "1"]


def test_a_user_without_a_home_folder_does_without(start):
    """Containers run as users that no passwd knows; Python then finds no home folder."""
    unknown = "import pwd; pwd.getpwuid = lambda number: {}[number]"
    assert start(unknown, PYTHONDONTWRITEBYTECODE="1", HOME=None, XDG_CACHE_HOME=None)[1:] == ["None", "1"]
