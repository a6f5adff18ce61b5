"""How much of a corpus is source code is found in what was read, not in what folders are called."""

import pytest

from lerope.data.prepare import prepare
from lerope.data.shards import Manifest
from lerope.data.sources import code_share, find_parts
from tests.train.runs import edit


@pytest.mark.parametrize(
    ("files", "share"),
    [({"a.txt": 100, "b.md": 300}, 0.0), ({"a.py": 100}, 1.0), ({"a.py": 300, "b.txt": 100}, 0.75)],
)
def test_files_are_code_by_their_bytes(tmp_path, files, share):
    folder = tmp_path / ("my-text" if share else "c4-encoded-python")
    folder.mkdir()
    for name, size in files.items():
        (folder / name).write_text("x" * size)
    assert code_share(find_parts(str(folder))) == share


def test_datasets_and_the_interpreter_s_sources():
    assert code_share(find_parts("hf:starcoder")) == 1.0
    assert code_share(find_parts("hf:c4")) == 0.0
    assert code_share(find_parts("python:")) == 1.0


def test_the_manifest_says_it_and_earlier_ones_are_read(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.py").write_text(f"value = {number}\nprint(value + {number})\n" * 30)
    made = prepare([str(tmp_path)], tmp_path / "out", vocab_size=300, validation_fraction=0.3)
    assert made.code_share == 1.0
    path = tmp_path / "out" / "manifest.json"
    edit(path, version=1, sources=["python:"])
    path.write_text(path.read_text().replace('"code_share": 1.0, ', ""))
    assert "code_share" not in path.read_text()
    found = Manifest.load(tmp_path / "out")
    assert (found.code_share, found.fingerprint()) == (1.0, made.fingerprint())
