"""Bad input and damage, through the command: one sentence that names the thing, exit code 2, no traceback."""

import errno
import fcntl
import gzip
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import sentencepiece

from lerope.cli.main import main
from lerope.core.extras import install
from lerope.data import hub, shards, workers
from lerope.data import prepare as module
from lerope.data.prepare import prepare
from lerope.data.shards import Corpus
from tests.data.texts import made_up, write_jsonl, write_parquet


def complaint(capfd, *arguments):
    """What the command says about its arguments, without the command's name."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    errors = capfd.readouterr().err
    assert ended.value.code == 2, errors
    assert "Traceback" not in errors
    assert errors.count("\n") == 1, errors
    assert errors.rstrip().endswith(".")
    return errors.partition(": ")[2]


@pytest.fixture(scope="module")
def corpus(small_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    source = write_jsonl(folder / "x.jsonl", made_up(50))
    prepare([str(source)], folder / "out", tokenizer=small_tokenizer, validation_fraction=0.2, num_workers=1)
    return folder / "out"


@pytest.fixture
def broken(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "broken")
    return tmp_path / "broken"


# Damage to a prepared corpus: (how, what is said).


def truncate(folder):
    path = folder / "train-00000.tokens"
    os.truncate(path, path.stat().st_size - 2)


def flip(name):
    def damage(folder):
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return damage


def edit(change):
    def damage(folder):
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        (folder / "manifest.json").write_text(json.dumps(content))

    return damage


DAMAGE = {
    "shard cut": (truncate, "train-00000.tokens must have"),
    "shard changed": (flip("train-00000.tokens"), "train-00000.tokens is damaged"),
    "ends changed": (flip("validation-00000.ends"), "validation-00000.ends is damaged"),
    "shard deleted": (
        lambda folder: (folder / "validation-00000.tokens").unlink(),
        "validation-00000.tokens is missing",
    ),
    "tokenizer changed": (flip("tokenizer.model"), "tokenizer.model is not the tokenizer these tokens were made with"),
    "tokenizer deleted": (lambda folder: (folder / "tokenizer.model").unlink(), "tokenizer.model is missing"),
    "manifest deleted": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json does not exist"),
    "manifest cut": (lambda folder: os.truncate(folder / "manifest.json", 100), "manifest.json is not"),
    "manifest empty": (lambda folder: os.truncate(folder / "manifest.json", 0), "manifest.json is not"),
    "other version": (edit(lambda m: m.update(version=99)), "manifest.json: version must be 2, got 99"),
    "edited": (edit(lambda m: m.update(vocab_size=7)), "manifest.json: fingerprint"),
    "field missing": (edit(lambda m: m.pop("bos")), "manifest.json: bos is missing"),
    "field unknown": (edit(lambda m: m.update(x=1)), "manifest.json: x is unknown"),
    "splits": (edit(lambda m: m.update(splits={"train": 3})), "manifest.json: splits"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_to_a_corpus(name, broken, capfd):
    damage, said = DAMAGE[name]
    damage(broken)
    assert said in complaint(capfd, "data", "inspect", broken)
    with pytest.raises(ValueError, match=said.split()[0]):
        Corpus(broken)


def test_inspect_does_not_rely_on_hashes_of_before(broken, capfd):
    Corpus(broken)
    path = broken / "train-00000.tokens"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    flip(path.name)(broken)
    os.utime(path, ns=times)
    assert "train-00000.tokens is damaged" in complaint(capfd, "data", "inspect", broken)


# Sources: (what is written to x + ending, the ending, what is said).

TABLE = b'{"text": "one"}\n{"text": "two"}\n'


def cut_short(ending):
    def content(folder):
        path = folder / f"whole{ending}"
        (write_parquet if ending == ".parquet" else write_jsonl)(path, made_up(300))
        data = path.read_bytes()
        path.unlink()
        return data[: len(data) // 2]

    return content


def flipped_parquet(folder):
    data = bytearray(write_parquet(folder / "whole.parquet", made_up(300)).read_bytes())
    (folder / "whole.parquet").unlink()
    data[2000:2400] = bytes(400)
    return bytes(data)


def other_table(values):
    return lambda folder: (write_parquet(folder / "x.parquet", values).read_bytes(), (folder / "x.parquet").unlink())[0]


SOURCES = {
    "unknown ending": (b"x", ".pdf", "x.pdf' has an unknown ending; it must be one of .txt"),
    "no ending": (b"x", "", "x' has an unknown ending"),
    "empty file": (b"", ".txt", "no document with text, 1 are empty"),
    "empty documents": (b'{"text": ""}\n{"text": " \\n"}\n', ".jsonl", "no document with text, 2 are empty"),
    "empty jsonl": (b"", ".jsonl", "no document with text"),
    "utf-8 in text": (b"abc\xff", ".txt", "x.txt is not valid UTF-8 at byte 3 (0xff); convert it, or pass --skip-inv"),
    "utf-8 after a mark": (b"\xef\xbb\xbfabc\xff", ".md", "x.md is not valid UTF-8 at byte 6 (0xff)"),
    "utf-8 far into it": (b"abc\n" * 500_000 + b"\xc3(", ".txt", "at byte 2,000,000 (0xc3)"),
    "utf-8 in python": (b"x = 1\n# \xe9\n", ".py", "x.py is not valid UTF-8 at byte 8 (0xe9)"),
    "declared encoding": (b"# coding: ascii\n# \xc3\xa9\n", ".py", "x.py is not valid ascii, the encoding it declares"),
    "unknown encoding": (b"# coding: klingon\n", ".py", "unknown encoding"),
    "utf-8 in jsonl": (
        TABLE + b'{"text": "\xff"}',
        ".jsonl",
        "x.jsonl, line 3 is not valid UTF-8 at byte 10 of the line",
    ),
    "lone surrogate": (
        TABLE + b'{"text": "ab\\ud800"}',
        ".jsonl",
        "x.jsonl, line 3: field 'text' is not valid UTF-8: ",
    ),
    "not JSON": (TABLE + b"{'text': 1}\n", ".jsonl", "x.jsonl, line 3 is not JSON (Expecting property name"),
    "not an object": (
        TABLE + b"[1, 2]\n",
        ".jsonl",
        "x.jsonl, line 3 must be a JSON object with the text in a field; got",
    ),
    "nested too deep": (b"[" * 100_000, ".jsonl", "x.jsonl, line 1 is not JSON"),
    "missing field": (
        b'{"body": "", "id": 3}',
        ".jsonl",
        "line 1: field 'text' is missing, the fields are 'body', 'id'; ",
    ),
    "not a string": (TABLE + b'{"text": 12}', ".jsonl", "line 3: field 'text' must be a string; got 12."),
    "null": (TABLE + b'{"text": null}', ".jsonl", "line 3: field 'text' must be a string; got null."),
    "no gzip": (b"hello", ".jsonl.gz", "x.jsonl.gz is damaged"),
    "gzip changed": (gzip.compress(TABLE)[:-8] + b"12345678", ".jsonl.gz", "x.jsonl.gz is damaged"),
    "no xz": (b"hello", ".jsonl.xz", "x.jsonl.xz is damaged"),
    "no zst": (b"hello", ".jsonl.zst", "x.jsonl.zst is damaged"),
    "no parquet": (b"hello" * 9, ".parquet", "x.parquet is damaged"),
    "gzip cut": (cut_short(".jsonl.gz"), ".jsonl.gz", "x.jsonl.gz is damaged"),
    "xz cut": (cut_short(".jsonl.xz"), ".jsonl.xz", "x.jsonl.xz is damaged"),
    "zst cut": (cut_short(".jsonl.zst"), ".jsonl.zst", "x.jsonl.zst is damaged"),
    "parquet cut": (cut_short(".parquet"), ".parquet", "x.parquet is damaged"),
    "parquet changed": (flipped_parquet, ".parquet", "x.parquet"),
    "no strings": (other_table([1, 2, 3]), ".parquet", "x.parquet: field 'text' must hold strings; got int64"),
    "null row": (other_table(["a", None]), ".parquet", "x.parquet, row 2: field 'text' must be a string; got null"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_bad_sources(name, tmp_path, small_tokenizer, capfd):
    content, ending, said = SOURCES[name]
    path = tmp_path / f"x{ending}"
    path.write_bytes(content(tmp_path) if callable(content) else content)
    arguments = ["data", "prepare", path, "--out", tmp_path / "out", "--tokenizer", small_tokenizer]
    found = complaint(capfd, *arguments)
    assert said in found
    assert not (tmp_path / "out" / "manifest.json").exists()
    if ending and not name.startswith(("empty", "unknown ending")):
        assert str(path) in found


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_missing_field_of_a_table_names_those_there_are(tmp_path, ending, small_tokenizer, capfd):
    path = (write_parquet if ending == ".parquet" else write_jsonl)(tmp_path / f"x{ending}", ["a"], "body")
    found = complaint(capfd, "data", "prepare", path, "--out", tmp_path / "out", "--tokenizer", small_tokenizer)
    assert "field 'text' is missing, the fields are 'id', 'body'; name one with --text-field" in found


def no_bos(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_up(50)), model_writer=model, vocab_size=100, bos_id=-1, minloglevel=2
    )
    (folder / "no_bos.model").write_bytes(model.getvalue())
    return folder / "no_bos.model"


def a_file(folder):
    (folder / "file").write_text("x")
    return folder / "file"


def full_folder(folder):
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").write_text("x")
    return folder / "full"


# Options of `data prepare`, as functions of a folder; each of them replaces one of the good ones.
OPTIONS = {
    "missing source": (lambda f: {"source": f / "nothing"}, "nothing' does not exist; name a file"),
    "folder without text": (lambda f: {"source": f / "images"}, "images' is a folder"),
    "tokenizer without BOS": (lambda f: {"--tokenizer": no_bos(f)}, "no_bos.model has no BOS piece"),
    "no tokenizer": (lambda f: {"--tokenizer": a_file(f)}, "is not a SentencePiece model"),
    "missing tokenizer": (lambda f: {"--tokenizer": f / "none.model"}, "none.model cannot be read"),
    "vocabulary beyond it": (lambda f: {"--vocab-size": 5000}, "vocab_size must be 3 to 400"),
    "vocabulary too large": (lambda f: {"--tokenizer": None}, "vocab_size 32,000 is too large for this text"),
    "vocabulary too small": (lambda f: {"--tokenizer": None, "--vocab-size": 200}, "vocab_size must be 260 or more"),
    "out is a file": (lambda f: {"--out": a_file(f)}, "out must be"),
    "out below a file": (lambda f: {"--out": a_file(f) / "x"}, "(Not a directory)"),
    "out is in use": (lambda f: {"--out": full_folder(f)}, "'thesis.tex'"),
    "fraction 0": (lambda f: {"--validation-fraction": 0}, "validation_fraction must be"),
    "fraction 1": (lambda f: {"--validation-fraction": 1}, "got 1."),
    "fraction nan": (lambda f: {"--validation-fraction": "nan"}, "got nan."),
    "fraction and sources": (
        lambda f: {"--validation": f / "x.jsonl", "--validation-fraction": 0.1},
        "validation_fraction 0.1 and validation sources",
    ),
    "empty validation": (lambda f: {"--validation-fraction": 1e-9}, "the validation split is empty"),
    "empty training": (lambda f: {"--validation-fraction": 1 - 1e-9}, "the train split is empty"),
    "no tokens": (lambda f: {"--max-tokens": 0}, "max_tokens must be 1 or more; got 0."),
    "no validation tokens": (
        lambda f: {"--max-validation-tokens": -3},
        "max_validation_tokens must be 1 or more; got -3.",
    ),
    "cut before validation": (
        lambda f: {"--validation-fraction": 1e-9, "--max-tokens": 50},
        "give another --validation-fraction or a larger --max-tokens and another --out.",
    ),
    "no workers": (lambda f: {"--workers": 0}, "workers must be 1 or more; got 0."),
    "no dataset": (lambda f: {"source": f"hf:{f}/nothing"}, "nothing: the dataset cannot be opened ("),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_bad_options(name, tmp_path, small_tokenizer, capfd, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    write_jsonl(tmp_path / "x.jsonl", made_up(20))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "x.png").write_bytes(b"x")
    change, said = OPTIONS[name]
    options = {"source": tmp_path / "x.jsonl", "--out": tmp_path / "out", "--tokenizer": small_tokenizer}
    options |= change(tmp_path)
    source = options.pop("source")
    flags = [word for option in options.items() if option[1] is not None for word in option]
    assert said in complaint(capfd, "data", "prepare", source, *flags)


def test_no_network(tmp_path, small_tokenizer, capfd, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'allenai/c4' on the Hub\nbecause of many things")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = complaint(capfd, "data", "prepare", "hf:c4", "--out", tmp_path / "out", "--tokenizer", small_tokenizer)
    assert "hf:c4: the dataset cannot be opened (ConnectionError: Couldn't reach 'allenai/c4' on the Hub)" in found


def test_a_connection_that_is_lost(monkeypatch):
    datasets = pytest.importorskip("datasets")

    class Stream:
        def __iter__(self):
            yield {"text": "one"}
            raise ConnectionError("lost")

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: Stream())
    rows = hub.read_dataset("c4", 0, "text", False)
    assert next(rows).texts == ["one"]
    with pytest.raises(
        ValueError, match=r"hf:c4: reading stopped at document 1 \(ConnectionError: lost\); run the same"
    ):
        next(rows)


@pytest.mark.parametrize("package", ["datasets", "pyarrow", "zstandard", "sentencepiece"])
def test_packages_that_are_not_installed(package, tmp_path, small_tokenizer, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "x.parquet").write_bytes(b"")
    (tmp_path / "x.jsonl.zst").write_bytes(b"")
    sources = {"datasets": "hf:c4", "pyarrow": tmp_path / "x.parquet", "zstandard": tmp_path / "x.jsonl.zst"}
    source = sources.get(package, "python:")
    found = complaint(capfd, "data", "prepare", source, "--out", tmp_path / "out", "--tokenizer", small_tokenizer)
    assert f"needs the package {package}; install it with `{install('data')}`." in found


# A folder that was begun.

CHANGES = {
    "sources": (lambda f: {"source": write_jsonl(f / "y.jsonl", made_up(500))}, "sources was ["),
    "validation_fraction": (lambda f: {"--validation-fraction": 0.2}, "validation_fraction was 0.1, now it is 0.2"),
    "max_tokens": (
        lambda f: {"--max-tokens": 9000},
        "max_tokens was None, now it is 9000",
    ),
    "max_validation_tokens": (
        lambda f: {"--max-validation-tokens": 9},
        "max_validation_tokens was None, now it is 9;",
    ),
    "text_field": (lambda f: {"--text-field": "text"}, "text_field was None, now it is 'text'"),
    "vocab_size": (lambda f: {"--vocab-size": 399}, "vocab_size was None, now it is 399"),
    "tokenizer": (lambda f: {"--tokenizer": None, "--vocab-size": 300}, "vocab_size was None, now it is 300"),
    "files": (lambda f: write_jsonl(f / "x.jsonl", made_up(501)) and {}, "sizes of the sources' files have changed"),
}


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_other_settings_for_a_folder_that_was_begun(name, complete, tmp_path, small_tokenizer, capfd, monkeypatch):
    write_jsonl(tmp_path / "x.jsonl", made_up(500))
    options = {"source": tmp_path / "x.jsonl", "--out": tmp_path / "out", "--tokenizer": small_tokenizer}
    options |= {"--validation-fraction": 0.1}

    def run(options):
        flags = [
            word for option in options.items() if option[0] != "source" and option[1] is not None for word in option
        ]
        return ["data", "prepare", options["source"], *flags]

    if complete:
        main(list(map(str, run(options))))
    else:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_encode", lambda *args: (_ for _ in ()).throw(ValueError("stop.")))
            assert "stop." in complaint(capfd, *run(options))
    capfd.readouterr()
    change, said = CHANGES[name]
    found = complaint(capfd, *run(options | change(tmp_path)))
    assert f"{tmp_path / 'out'} was " in found
    assert said in found


@pytest.fixture
def begun(tmp_path, small_tokenizer, monkeypatch):
    """The arguments of a job that would save after every small batch."""
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    source = write_jsonl(tmp_path / "x.jsonl", made_up(1000))
    return ["data", "prepare", source, "--out", tmp_path / "out", "--tokenizer", small_tokenizer, "--workers", 1]


def progress(folder: Path) -> int:
    return sum(json.loads((folder / "progress.json").read_text())["num_documents"].values())


def test_a_second_process_in_the_same_folder(begun, tmp_path, capfd):
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"{tmp_path / 'out'} is in use by another process" in complaint(capfd, *begun)
    main(list(map(str, begun)))


def test_a_full_disk(begun, tmp_path, capfd, monkeypatch):
    append, calls = shards.SplitWriter.append, []

    def full(self, tokens, lengths):
        calls.append(1)
        if len(calls) == 8:
            append(self, tokens[: len(tokens) // 2], lengths)  # as much as there was room for
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, tokens, lengths)

    with monkeypatch.context() as patch:
        patch.setattr(shards.SplitWriter, "append", full)
        assert f"the disk of {tmp_path / 'out'} is full; free some space" in complaint(capfd, *begun)
    assert progress(tmp_path / "out") > 0
    finishes_like_an_undisturbed_one(begun, tmp_path)


def test_a_worker_that_is_killed(begun, tmp_path, capfd, monkeypatch):
    encode_batches = workers.encode_batches

    def killing(*args):
        for number, item in enumerate(encode_batches(*args)):
            if number == 4:
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
                (worker,) = [int(pid) for pid, name in names.items() if "spawn_main" in name]
                os.kill(worker, signal.SIGKILL)
            yield item

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode_batches", killing)
        assert "a worker process died, most likely because memory ran out" in complaint(capfd, *begun)
    assert progress(tmp_path / "out") > 0
    finishes_like_an_undisturbed_one(begun, tmp_path)


def finishes_like_an_undisturbed_one(arguments, folder):
    main(list(map(str, arguments)))
    again = [folder / "other" if argument == folder / "out" else argument for argument in arguments]
    main(list(map(str, again)))
    for path in (folder / "other").iterdir():
        assert (folder / "out" / path.name).read_bytes() == path.read_bytes()


def test_a_tokenizer_or_progress_that_changed_between(begun, tmp_path, capfd, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "_encode", lambda *args: (_ for _ in ()).throw(ValueError("stop.")))
        complaint(capfd, *begun)
    path = tmp_path / "out" / "tokenizer.model"
    kept = path.read_bytes()
    path.write_bytes(kept + b"\x1a\x00")
    assert "tokenizer.model has changed since" in complaint(capfd, *begun)
    path.write_bytes(kept)
    for content in ("", "[]", '{"settings": {}}', "{"):
        (tmp_path / "out" / "progress.json").write_text(content)
        text = complaint(capfd, *begun)
        assert "progress.json" in text
        assert f"delete {tmp_path / 'out'}" in text
