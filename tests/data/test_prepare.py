"""The same corpus, to the byte, for any number of workers and however often it was stopped."""

import hashlib
import json
import multiprocessing.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lerope.data import prepare as module
from lerope.data import shards, workers
from lerope.data.prepare import prepare
from lerope.data.shards import Corpus, Manifest
from lerope.data.tokenizer import Tokenizer
from lerope.data.workers import split_of
from tests.data.texts import made_up, write_jsonl, write_parquet
from tests.ranks import children_of

# A run in another process that has small batches and shards, and saves as often as its first argument says.
RUN = """
import sys
from lerope.data import prepare, shards
from lerope.cli.main import main
prepare._SAVE_SECONDS = float(sys.argv.pop(1))
prepare._BATCH_CHARACTERS, shards.SHARD_TOKENS = 20_000, 100_000
main()
"""


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100_000)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Files of several kinds with about 1.5 MB of text in all, some of it empty or twice there."""
    folder = tmp_path_factory.mktemp("source")
    texts = made_up(4000)
    write_jsonl(folder / "a.jsonl", texts[:1500])
    write_jsonl(folder / "b.jsonl.gz", [*texts[1500:3000], "", " \n"])
    write_parquet(folder / "c.parquet", [*texts[3000:], *texts[:300]])
    (folder / "d.txt").write_text("a text\n\nof its own\n")
    (folder / "e.txt").write_text("")
    return folder


@pytest.fixture(scope="module")
def reference(source, tmp_path_factory):
    """The corpus that a process makes without being disturbed: its folder, and the arguments that made it."""
    out = tmp_path_factory.mktemp("reference") / "out"
    arguments = [str(source), "--vocab-size", "500", "--validation-fraction", "0.1", "--workers", "2"]
    done = start(arguments, out)
    assert done.wait(60) == 0
    return out, arguments


def start(arguments, out, save_seconds=0):
    command = [sys.executable, "-c", RUN, str(save_seconds), "data", "prepare", *arguments, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (".lock", ".verified.json")}


def progress_of(out):
    try:
        return json.loads((out / "progress.json").read_text())
    except FileNotFoundError:
        return None


def wait_for(condition, process, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None and not condition():
        time.sleep(0.002)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_corpus_holds_every_document_once_on_the_side_of_its_hash(source, reference):
    corpus = Corpus(reference[0])
    tokenizer = Tokenizer(corpus.tokenizer_path)
    texts = [*made_up(4000), *made_up(4000)[:300], "a text\n\nof its own\n"]
    for split, name in ((corpus.train, "train"), (corpus.validation, "validation")):
        found = [tokenizer.decode(split.document(i)) for i in range(len(split))]
        want = [text for text in texts if split_of(text, 0.1) == name]
        assert found == want
        facts = corpus.manifest.splits[name]
        assert facts.num_documents == len(want)
        assert facts.num_tokens == split.lengths.sum()
        assert facts.num_bytes == sum(len(text.encode()) for text in want)
        tokens = np.concatenate([split.document(i) for i in range(len(split))])
        shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
        assert facts.unigram_entropy == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-12)
        assert {int(split.document(i)[0]) for i in range(len(split))} == {tokenizer.bos}
    assert len(corpus.manifest.splits["train"].shards) > 2
    assert 0.07 < len(corpus.validation) / len(texts) < 0.13
    assert corpus.manifest.num_skipped == 3
    assert corpus.manifest.sources == [str(source)]
    assert corpus.manifest.vocab_size == tokenizer.vocab_size == 500
    assert progress_of(reference[0]) is None


def test_any_number_of_workers_gives_the_same_bytes(source, reference, tmp_path, small_batches):
    arguments = {"vocab_size": 500, "validation_fraction": 0.1}
    for num_workers in (1, 3):
        prepare([str(source)], tmp_path / str(num_workers), **arguments, num_workers=num_workers)
        assert content(tmp_path / str(num_workers)) == content(reference[0])


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(reference, tmp_path):
    want, arguments = reference
    out, rng = tmp_path / "out", random.Random(0)
    seen = set()
    for kill in range(4):
        process = start(arguments, out)
        if kill:  # the first one dies while the tokenizer is trained
            before = (progress_of(out) or {}).get("num_documents", {}).get("train", 0)
            wait_for(lambda: (progress_of(out) or {}).get("num_documents", {}).get("train", 0) > before, process)  # noqa: B023
            time.sleep(rng.random() / 20)
        else:
            wait_for(lambda: children_of(process.pid), process)  # noqa: B023
        children = children_of(process.pid)
        assert process.poll() is None
        process.kill()
        process.communicate(timeout=10)  # as long as an orphan holds the pipe, this waits
        seen.add(progress_of(out)["num_documents"]["train"])
        assert not (out / "manifest.json").exists()
        end = time.monotonic() + 10
        while time.monotonic() < end and any(map(is_running, children)):
            time.sleep(0.01)
        assert not list(filter(is_running, children))  # workers end with their parent
    assert len(seen) == 4  # it went on each time
    process = start(arguments, out)
    assert process.wait(60) == 0
    assert content(out) == content(want)


@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_a_signal_saves_says_how_to_go_on_and_changes_nothing(reference, tmp_path, number, to_group):
    """Ctrl-C reaches the workers too; a scheduler's SIGTERM may."""
    want, arguments = reference
    out = tmp_path / "out"
    process = start(arguments, out, save_seconds=1000)
    wait_for(lambda: sum(path.stat().st_size for path in out.glob("train-*.tokens")) > 100_000, process)
    (os.killpg if to_group else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    *before, last = errors.strip().splitlines()
    assert [line.partition(";")[0] for line in before] == ["stopping as soon as the work is safe"] * (
        number == signal.SIGINT
    )
    assert f"--out {out}" in last
    done = progress_of(out)["num_documents"]["train"]
    assert 100 < done < 3500
    process = start(arguments, out)
    assert process.wait(60) == 0
    assert content(out) == content(want)


def test_ctrl_c_while_the_tokenizer_is_trained(tmp_path):
    write_jsonl(tmp_path / "x.jsonl", made_up(20_000))
    process = start([str(tmp_path / "x.jsonl"), "--vocab-size", "600"], tmp_path / "out")
    wait_for(lambda: children_of(process.pid), process)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not (tmp_path / "out" / "tokenizer.model").exists()


def test_a_complete_corpus_is_left_as_it_is(reference, source, capsys, monkeypatch):
    out, _ = reference
    before = content(out)
    monkeypatch.setattr(module, "_encode", None)
    manifest = prepare([str(source)], out, vocab_size=500, validation_fraction=0.1)
    assert manifest == Manifest.load(out)
    assert f"{out} is complete." in capsys.readouterr().out
    assert content(out) == before


def test_validation_sources_leave_the_training_sources_whole(tmp_path, small_tokenizer):
    texts = made_up(100)
    train, held_out = write_jsonl(tmp_path / "a.jsonl", texts), write_jsonl(tmp_path / "b.jsonl", made_up(30, seed=1))
    manifest = prepare([str(train)], tmp_path / "out", tokenizer=small_tokenizer, validation=[str(held_out)])
    assert [manifest.splits[split].num_documents for split in ("train", "validation")] == [100, 30]
    assert manifest.validation == str(held_out)
    corpus, tokenizer = Corpus(tmp_path / "out"), Tokenizer(small_tokenizer)
    assert [tokenizer.decode(corpus.validation.document(i)) for i in range(30)] == made_up(30, seed=1)


def test_equal_texts_are_on_one_side():
    sides = [split_of(text, 0.3) for text in made_up(2000)]
    assert sides == [split_of(text, 0.3) for text in made_up(2000)]
    assert 0.25 < sides.count("validation") / 2000 < 0.35
    wider = [split_of(text, 0.5) for text in made_up(2000)]
    assert all(b == "validation" for a, b in zip(sides, wider, strict=True) if a == "validation")
    first_bytes = [hashlib.blake2b(text.encode(), digest_size=8).digest()[0] for text in "abcde"]
    assert [split_of(text, 0.5) == "validation" for text in "abcde"] == [byte < 128 for byte in first_bytes]


def test_the_tokenizer_learns_nothing_from_validation_documents(tmp_path):
    texts = [
        f"{text} {'Ω' * 50 if split_of(text + ' ' + 'Ω' * 50, 0.5) == 'validation' else ''}" for text in made_up(200)
    ]
    assert any("Ω" in text for text in texts)
    write_jsonl(tmp_path / "x.jsonl", texts)
    prepare([str(tmp_path / "x.jsonl")], tmp_path / "out", vocab_size=320, validation_fraction=0.5, num_workers=1)
    tokenizer = Tokenizer(tmp_path / "out" / "tokenizer.model")
    assert not [i for i in range(320) if "Ω" in tokenizer.piece(i)]


def test_a_lossy_tokenizer_is_used_with_a_warning(tmp_path, small_tokenizer, capsys):
    path = write_jsonl(tmp_path / "x.jsonl", made_up(50))
    options = {"tokenizer": small_tokenizer, "validation_fraction": 0.2, "num_workers": 1}
    prepare([str(path)], tmp_path / "whole", **options)
    assert "Warning" not in capsys.readouterr().out
    manifest = prepare([str(path)], tmp_path / "part", **options, vocab_size=300)
    assert "50 of 50" in capsys.readouterr().out.replace("\n", " ")
    assert manifest.vocab_size == 300
    corpus = Corpus(tmp_path / "part")
    assert max(int(corpus.train.document(i).max()) for i in range(len(corpus.train))) < 300


def test_what_stopped_at_an_invalid_document_goes_on_without_it(tmp_path, small_tokenizer, small_batches, monkeypatch):
    monkeypatch.setattr(module, "_CHECKED_BYTES", 1000)  # so that the document is not met before encoding
    lines = write_jsonl(tmp_path / "x.jsonl", made_up(1000)).read_bytes().splitlines(keepends=True)
    (tmp_path / "x.jsonl").write_bytes(b"".join([*lines[:900], b'{"text": "\xff"}\n', *lines[900:]]))
    arguments = [[str(tmp_path / "x.jsonl")], tmp_path / "out"]
    options = {"tokenizer": small_tokenizer, "num_workers": 1, "validation_fraction": 0.1}
    with pytest.raises(ValueError, match="line 901 is not valid UTF-8"):
        prepare(*arguments, **options)
    assert progress_of(tmp_path / "out")["num_documents"]["train"] > 100
    assert prepare(*arguments, **options, skip_invalid=True).num_skipped == 1
    prepare(arguments[0], tmp_path / "at once", **options, skip_invalid=True)
    assert content(tmp_path / "out") == content(tmp_path / "at once")


def test_workers_need_no_torch():
    code = "import sys, lerope.data.workers, lerope.data.prepare; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_few_batches_are_under_way(small_tokenizer):
    taken = 0

    def batches():
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield workers.Batch(["some text"], [None], "train", 0, 0, 1, 0)

    encoded = workers.encode_batches(batches(), str(small_tokenizer), 400, 0.0, 1)
    next(encoded)
    assert taken <= 4
    encoded.close()


def slow_to_end(path):
    def end():
        time.sleep(0.3)
        path.write_text("ended")

    multiprocessing.util.Finalize(None, end, exitpriority=1)


def test_a_child_that_has_answered_ends_by_itself(tmp_path):
    workers.run_in_child(slow_to_end, tmp_path / "note", wait=lambda: None)
    assert (tmp_path / "note").exists()


def test_the_advice_of_a_mistake_can_be_followed(tmp_path):
    """Nothing was made yet, so the same folder takes other settings."""
    write_jsonl(tmp_path / "a.jsonl", made_up(300))
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="vocab_size 32,000 is too large for this text"):
        prepare([str(tmp_path / "a.jsonl")], out, validation_fraction=0.1)
    with pytest.raises(ValueError, match="field 'content' is missing"):
        prepare([str(tmp_path / "a.jsonl")], out, validation_fraction=0.1, text_field="content")
    assert prepare([str(tmp_path / "a.jsonl")], out, validation_fraction=0.1, vocab_size=400).vocab_size == 400


def test_a_mistake_in_a_later_document_keeps_its_sentence(tmp_path):
    """Also while the tokenizer is trained, where SentencePiece is the one that reads."""
    write_jsonl(tmp_path / "a.jsonl", made_up(300))
    (tmp_path / "zz.txt").write_bytes(b"\xab\xff nothing")
    with pytest.raises(
        ValueError, match=r"zz.txt is not valid UTF-8 at byte 0 \(0xab\); convert it, or pass --skip-inv"
    ):
        prepare([str(tmp_path)], tmp_path / "out", vocab_size=400)


def test_files_named_for_validation_are_kept_out_of_training(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", made_up(300))
    (folder / "held-out.txt").write_text("words that are nowhere else: quixotic zephyr\n")
    manifest = prepare([str(folder)], tmp_path / "out", vocab_size=400, validation=[str(folder / "held-out.txt")])
    corpus, tokenizer = Corpus(tmp_path / "out"), Tokenizer(tmp_path / "out" / "tokenizer.model")
    assert manifest.splits["validation"].num_documents == 1
    assert not any("quixotic" in tokenizer.decode(corpus.train.document(i)) for i in range(len(corpus.train)))
