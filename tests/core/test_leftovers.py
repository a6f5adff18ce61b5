"""What killed writers leave is removed by the next one, and nothing else is."""

import os
import subprocess
import sys

from lerope.core.files import staged, write_whole
from lerope.core.leftovers import on_its_way

KILLED = """
import os, signal, sys
from pathlib import Path
from lerope.core.files import staged, whole
with whole(Path(sys.argv[1]) / "a.json") as a, whole(Path(sys.argv[1]) / "folder") as b:
    a.write_text("half")
    b.mkdir()
    (b / "inner").write_text("half")
    with staged(Path(sys.argv[1]), last="config.json") as c:
        (c / "weights").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_writer_sweeps_what_a_dead_one_left(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path]).returncode == -9
    assert len(os.listdir(tmp_path)) == 3
    write_whole(tmp_path / "other.json", "{}")
    assert os.listdir(tmp_path) == ["other.json"]


def test_files_of_the_living_and_of_other_machines_stay(tmp_path):
    mine = on_its_way(tmp_path / "a.json").name
    living = mine.replace(f"-{os.getpid()}.", f"-{os.getppid()}.")
    elsewhere = ".a.json.0000abcd-999999999.writing"
    dead = mine.replace(f"-{os.getpid()}.", "-999999999.")
    foreign = (".notes.writing", "a.writing", ".x.999999999.writing")
    for name in (living, elsewhere, dead, *foreign):
        (tmp_path / name).write_text("")
    with staged(tmp_path, last="config.json") as partial:
        (partial / "config.json").write_text("{}")
    assert set(os.listdir(tmp_path)) == {living, elsewhere, *foreign, "config.json"}
