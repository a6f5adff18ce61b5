"""How much of a corpus is source code is found in what was written, not in what folders are called."""

import pytest

from lerope.data import hub
from lerope.data.code import are_code, is_python
from lerope.data.prepare import prepare
from lerope.data.shards import Manifest
from lerope.data.sources import find_parts
from tests.data.corpora import write_corpus
from tests.data.texts import made_up, write_jsonl, write_parquet
from tests.train.runs import edit

PYTHON = [f"import os\n\n\ndef number_{n}():\n    '''A \\d number.'''\n    return {n}\n" * 3 for n in range(40)]
TEXT = made_up(40)


@pytest.fixture
def share(tmp_path, small_tokenizer, in_this_process):
    """The share of code in the training split that these sources make."""

    def made(*sources, **options):
        out = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}"
        options = {"tokenizer": small_tokenizer, "validation_fraction": 0.1, "num_workers": 1, **options}
        return prepare([str(source) for source in sources], out, **options).code_share

    return made


def write(folder, ending, texts):
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:02}{ending}").write_text(text)
    return folder


def test_files_are_code_by_their_endings_and_weigh_what_was_written(tmp_path, share):
    code, text = write(tmp_path / "my-text", ".py", PYTHON), write(tmp_path / "c4-encoded-python", ".txt", TEXT)
    assert share(code) == 1.0
    assert share(text) == 0.0
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in (code, text)]
    # One document in ten is held out of either.
    assert share(text, code) == pytest.approx(sizes[0] / sum(sizes), abs=0.05)


def test_parts_that_a_limit_cuts_off_do_not_count(tmp_path, share):
    code, text = write(tmp_path / "a", ".py", PYTHON), write(tmp_path / "b", ".txt", TEXT)
    assert share(text, code, max_tokens=1000) == 0.0
    assert share(code, text, max_tokens=1000) == 1.0


def test_a_dataset_whose_size_is_unknown_weighs_what_was_read(tmp_path, share, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "dataset"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", TEXT * 20)
    monkeypatch.setitem(hub._KNOWN, "c4", hub.Dataset(str(folder), code=False))
    few = write(tmp_path / "few", ".py", PYTHON[:2])
    assert 0 < share("hf:c4", few) < 0.05


@pytest.mark.parametrize("write_file", [write_jsonl, write_parquet])
def test_files_that_hold_anything_are_code_by_their_content(tmp_path, share, write_file):
    ending = ".jsonl" if write_file is write_jsonl else ".parquet"
    assert share(write_file(tmp_path / f"code{ending}", PYTHON)) == 1.0
    assert share(write_file(tmp_path / f"text{ending}", TEXT)) == 0.0


def test_python_is_what_parses_and_does_something():
    assert is_python("x = 1")
    assert is_python("print(1)\n\nfor i in []:\n    pass")
    for text in ("", "word", "3", '{"a": [1]}', "Once upon a time", "def f(:", "a\0b", "(" * 10_000, "\ud800 = 1"):
        assert not is_python(text)


def test_every_eighth_unknown_document_stands_for_those_after_it():
    texts = ["x = 1", *["words, words"] * 8, "x = 1"]
    assert are_code(texts, [None] * 10) == [True] * 8 + [False] * 2
    assert are_code(texts, [False, *[True] * 8, None]) == [False, *[True] * 8, True]


def test_datasets_are_known_by_both_their_names():
    for name in ("hf:starcoder", "hf:bigcode/starcoderdata", "hf:bigcode/starcoderdata:rust"):
        assert [(part.code, part.field) for part in find_parts(name)] == [(True, "content")]
    for name in ("hf:c4", "hf:allenai/c4", "hf:allenai/c4:realnewslike"):
        assert [part.code for part in find_parts(name)] == [False]
    assert hub.parse("allenai/c4") == hub.parse("c4")
    assert {part.code for part in find_parts("python:")} == {True}
    assert [part.code for part in find_parts("hf:somebody/c4")] == [None]


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        (["python:"], 1.0),
        (["hf:starcoder"], 1.0),
        (["hf:starcoder:rust", "python:", "a/b.py"], 1.0),
        (["hf:c4"], 0.0),
        (["hf:starcoder", "hf:c4"], 0.0),
        (["python-text"], 0.0),
    ],
)
def test_earlier_manifests_are_code_by_their_sources(tmp_path, sources, code):
    path = write_corpus(tmp_path / "out", {"train": [9], "validation": [9]}) / "manifest.json"
    fingerprint = Manifest.load(path.parent).fingerprint()
    edit(path, version=1, sources=sources)
    path.write_text(path.read_text().replace('"code_share": 0.0, ', ""))
    assert "code_share" not in path.read_text()
    found = Manifest.load(path.parent)
    assert (found.code_share, found.fingerprint()) == (code, fingerprint)
