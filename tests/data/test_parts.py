"""A corpus in parts: the same bytes as on one machine, and what does not add up is refused."""

import numpy as np
import pytest

from lerope.cli.main import main
from lerope.data import parts, shards
from lerope.data import prepare as module
from lerope.data.parts import Share, merge
from lerope.data.prepare import prepare
from lerope.data.shards import SplitWriter
from tests.data.test_prepare import content
from tests.data.texts import made_up, write_jsonl


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Files of very different sizes."""
    folder, texts = tmp_path_factory.mktemp("source"), made_up(1200)
    for number, (first, last) in enumerate([(0, 10), (10, 500), (500, 520), (520, 900), (900, 1199), (1199, 1200)]):
        write_jsonl(folder / f"{number}.jsonl.gz", [*texts[first:last], ""])
    return folder


@pytest.fixture(scope="module")
def tokenizer(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("tokenizer") / "out"
    prepare([str(source)], out, vocab_size=500, validation_fraction=0.1, num_workers=1)
    return out / "tokenizer.model"


@pytest.fixture(autouse=True)
def small(monkeypatch, in_this_process):
    """Several batches and shards in every part."""
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 10_000)
    monkeypatch.setattr(shards, "_BLOCK_TOKENS", 3_000)


@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize("held_out", [False, True])
def test_parts_put_together_are_what_one_machine_prepares(source, tokenizer, tmp_path, count, held_out):
    options = {"tokenizer": tokenizer, "num_workers": 1}
    options |= {"validation": [str(source / "1.jsonl.gz")]} if held_out else {"validation_fraction": 0.1}
    prepare([str(source)], tmp_path / "one", **options)
    for number in range(count, 0, -1):  # in any order
        prepare([str(source)], tmp_path / "many", **options, part=f"{number}/{count}")
    whole = merge(tmp_path / "many")
    assert len(whole.splits["train"].shards) > 2
    found = content_without_parts(tmp_path / "many")
    assert found == content(tmp_path / "one")
    assert merge(tmp_path / "many") == whole
    assert prepare([str(source)], tmp_path / "many", **options) == whole


def content_without_parts(folder):
    (folder / "parts").rename(folder.with_name("parts"))
    try:
        return content(folder)
    finally:
        folder.with_name("parts").rename(folder / "parts")


def test_shards_do_not_depend_on_how_many_documents_are_added_at_once(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 6000, 90)
    tokens = np.arange(lengths.sum()) % 500
    for name, size in (("all", 90), ("some", 7), ("one", 1)):
        (tmp_path / name).mkdir()
        writer = SplitWriter(tmp_path / name, "train", shards.token_dtype(500))
        ends = np.concatenate(([0], np.cumsum(lengths)))
        for first in range(0, 90, size):
            last = min(first + size, 90)
            writer.append(tokens[ends[first] : ends[last]], lengths[first:last])
        writer.finish()
    assert content(tmp_path / "all") == content(tmp_path / "some") == content(tmp_path / "one")
    assert len(content(tmp_path / "all")) > 10


def test_shares_hold_every_file_once_and_are_alike_in_size(source):
    files = [(part, None) for part in module.find_parts(str(source))]
    for count in (1, 2, 3, 8):
        shares = [Share(number, count).of(files) for number in range(1, count + 1)]
        assert [file for share in shares for file in share] == files


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["data", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("part", ["0/4", "5/4", "2", "a/b", "1/0"])
def test_parts_that_are_none(source, tokenizer, tmp_path, capsys, part):
    text = refused(capsys, "prepare", source, "--tokenizer", tokenizer, "--out", tmp_path / "o", "--part", part)
    assert text == f"lerope data: part must be i/n with i from 1 to n, such as 2/4; got {part!r}.\n"


def test_what_does_not_add_up_is_refused(source, tokenizer, tmp_path, capsys):
    base = ("prepare", source, "--out", tmp_path / "o", "--workers", "1", "--part", "1/2")
    assert "tokenizer must be given with --part" in refused(capsys, *base)
    limits = refused(capsys, *base, "--tokenizer", tokenizer, "--max-tokens", "100")
    assert "max_tokens must be left out with --part" in limits
    (tmp_path / "o").mkdir()
    assert "must hold the parts of one number of them; got none" in refused(capsys, "merge", tmp_path / "o")
    options = {"tokenizer": tokenizer, "num_workers": 1}
    prepare([str(source)], tmp_path / "o", **options, part="1/2")
    assert "part 2/2 is not finished" in refused(capsys, "merge", tmp_path / "o")
    prepare([str(source)], tmp_path / "o", **options, part="2/2", validation_fraction=0.2)
    text = refused(capsys, "merge", tmp_path / "o")
    assert "parts must be prepared alike; got validation_fraction 0.01 in part 1 and 0.2 in part 2" in text
    assert not (tmp_path / "o" / "manifest.json").exists()


def test_a_stream_has_no_parts():
    stream = parts.Part("hf:c4", "hf:c4", "text", False, None, False)
    settings = {"tokenizer": "x", "max_tokens": None, "max_validation_tokens": None}
    with pytest.raises(ValueError, match="part must be of files, and hf:c4 is one stream; download its files"):
        Share(1, 2).check([(stream, None)], settings)


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist"):
        parts.merge(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
