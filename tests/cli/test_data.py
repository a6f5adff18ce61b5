"""The commands `data` and `tokenizer` as people call them."""

import json
import subprocess
import sys

import pytest

from lerope.cli.main import main
from lerope.data.shards import Corpus, Manifest
from tests.data.texts import made_up, write_jsonl


@pytest.fixture
def source(tmp_path):
    return str(write_jsonl(tmp_path / "x.jsonl", made_up(200)))


def test_from_text_to_a_corpus_and_a_look_at_it(source, tmp_path, capsys):
    out = str(tmp_path / "out")
    main(["data", "prepare", source, "--out", out, "--vocab-size", "400", "--validation-fraction", "0.1"])
    said = capsys.readouterr().out
    manifest = Manifest.load(out)
    assert manifest.fingerprint() in said
    assert f"{manifest.splits['train'].num_tokens:,} tokens" in said

    main(["data", "inspect", out, "--samples", "2", "--json"])
    summary = json.loads(capsys.readouterr().out)
    train = summary["splits"]["train"]
    assert summary["fingerprint"] == manifest.fingerprint()
    assert sum(row["documents"] for row in train["lengths"]) == train["num_documents"]
    assert len(train["samples"]) == 2
    assert all(any(text.startswith(found["text"]) for text in made_up(200)) for found in train["samples"])
    lengths = Corpus(out).train.lengths
    for row in train["lengths"]:
        assert row["documents"] == ((lengths >= row["tokens"]) & (lengths < 2 * row["tokens"])).sum()

    main(["data", "inspect", out])
    shown = capsys.readouterr().out
    assert manifest.fingerprint() in shown
    assert "bytes per token, unigram entropy" in shown
    assert "####" in shown
    assert all(line.isprintable() for line in shown.splitlines())

    main(["data", "prepare", source, "--out", out, "--vocab-size", "400", "--validation-fraction", "0.1"])
    assert "is complete" in capsys.readouterr().out


def test_a_corpus_that_is_cut_short_says_so(source, tmp_path, capsys):
    out = str(tmp_path / "out")
    limits = ["--max-tokens", "5000", "--max-validation-tokens", "1000000"]
    main(["data", "prepare", source, "--out", out, "--vocab-size", "400", "--validation-fraction", "0.1", *limits])
    train, validation = capsys.readouterr().out.splitlines()[-4:-2]
    assert train.startswith("train ")
    assert train.endswith(" MB of text, cut short by the limit of 5,000 tokens")
    assert validation.endswith(" MB of text, below the limit of 1,000,000 tokens")

    main(["data", "inspect", out])
    shown = capsys.readouterr().out
    assert "nats, cut short by the limit of 5,000 tokens\n" in shown
    assert "validation   0.1 of the documents, by a hash of their text, below the limit of 1,000,000 tokens\n" in shown
    main(["data", "inspect", out, "--json"])
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert [splits[name]["max_tokens"] for name in ("train", "validation")] == [5_000, 1_000_000]
    assert 5_000 <= splits["train"]["num_tokens"] < 5_000 + 1_000


def test_a_tokenizer_that_is_trained_shown_and_used(source, tmp_path, capsys):
    path = str(tmp_path / "x.model")
    main(["tokenizer", "train", source, "--out", path, "--vocab-size", "400"])
    main(["tokenizer", "show", path, "--text", "a\tb  é"])
    shown = capsys.readouterr().out
    assert "400 pieces, BOS 1, EOS 2" in shown
    assert "decoding returns the text" in shown
    main(
        ["data", "prepare", source, "--out", str(tmp_path / "out"), "--tokenizer", path, "--validation-fraction", "0.1"]
    )
    assert Corpus(tmp_path / "out").manifest.vocab_size == 400


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tokenizer", "train", "--out", "x.model"], "sources must name at least one"),
        (["tokenizer", "train", "{source}", "--out", "{folder}"], "out must be a file in"),
        (
            ["tokenizer", "train", "{source}", "--out", "{folder}/no/x.model"],
            "out must be a file in",
        ),
        (["tokenizer", "train", "{source}", "--out", "{folder}/x.model"], "vocab_size 32,000 is too large"),
        (["tokenizer", "train", "{folder}/y.txt", "--out", "{folder}/x.model"], "y.txt' does not exist"),
        (["tokenizer", "show", "{folder}/x.model"], "x.model cannot be read"),
        (["tokenizer", "show", "{source}"], "x.jsonl is not a SentencePiece model"),
        (
            ["data", "prepare", "{source}", "--out", "{folder}/d", "--validation", "{source}"],
            "every file of the sources",
        ),
        (["data", "inspect", "{folder}"], "manifest.json does not exist"),
        (["data", "inspect", "{source}"], "manifest.json does not exist"),
        (["data", "inspect", "{folder}", "--samples", "-1"], "samples must be 0 or more; got -1"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, said, source, tmp_path, capfd):
    with pytest.raises(SystemExit) as ended:
        main([argument.format(source=source, folder=tmp_path) for argument in arguments])
    errors = capfd.readouterr().err
    assert ended.value.code == 2
    assert said in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["data", "prepare"], ["data", "inspect"], ["tokenizer", "train"], ["tokenizer", "show"]]
)
def test_help_has_an_example_and_needs_no_torch(command):
    code = (
        "import sys; from lerope.cli.main import main\ntry: main(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True)
    assert f"Example: lerope {' '.join(command)} " in done.stdout
    assert done.stdout.rstrip().endswith("False")
