"""lerope generate, as a user calls it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lerope.cli.columns import lines
from lerope.cli.main import main
from lerope.core.run import read_run
from lerope.evaluate import generate as module
from tests.evaluate.copier import copier, copier_tokenizer, random_model, write_run

PROMPT = " The special magic number for quiet-river is 7204518. The special magic number for quiet-river is"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    copier_tokenizer(folder / "tokenizer.model")
    made = {"copier": (copier(), 512), "random": (random_model(), 32)}
    return {
        name: str(write_run(folder / name, model, folder / "tokenizer.model", length))
        for name, (model, length) in made.items()
    }


def complaint(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["generate", *args])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_text_alone_goes_to_standard_output(runs, capsys):
    main(["generate", runs["copier"], PROMPT, "--tokens", "9", "--temperature", "0", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert out.startswith(f"{PROMPT} 7204518.")
    assert out.endswith("\n")
    assert err.startswith("copier: 9 tokens, ")
    assert "per second" in err


@pytest.mark.parametrize(("extend", "words"), [("none", "nothing adapted"), ("yarn", "with yarn")])
def test_it_says_once_where_the_train_length_ends(runs, capsys, extend, words):
    args = ["--tokens", "60", "--seed", "1", "--device", "cpu", "--extend", extend]
    main(["generate", runs["random"], "The", *args])
    err = capsys.readouterr().err
    assert err.count("beyond the train length of 32 tokens") == 1
    assert words in err
    main(["generate", runs["random"], "The", *args, "--tokens", "5"])
    err = capsys.readouterr().err
    assert "beyond" not in err
    assert ("changes nothing" in err) == (extend == "yarn")


def test_json(runs, capsys):
    common = ("--tokens", "7", "--seed", "5", "--device", "cpu", "--extend", "pi", "--json")
    main(["generate", runs["random"], "The", "--beside", runs["copier"], *common])
    out, err = capsys.readouterr()
    first, second = json.loads(out)
    assert (first["run"], second["run"]) == ("random", "copier")
    assert first["prompt"] == "The"
    assert (first["num_tokens"], first["seed"], first["train_length"], first["extend"]) == (7, 5, 32, "pi")
    assert not err
    main(["generate", runs["random"], "The", *common])
    assert json.loads(capsys.readouterr().out)[0]["text"] == first["text"]


def test_two_runs_side_by_side(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "65")
    args = [PROMPT, "--tokens", "9", "--temperature", "0", "--device", "cpu"]
    main(["generate", runs["copier"], *args, "--beside", runs["random"]])
    out, err = capsys.readouterr()
    rows = [line.split("  │  ") for line in out.splitlines()]
    assert [cell.strip() for cell in rows[0]] == ["copier", "random"]
    left = " ".join(row[0].strip() for row in rows[1:])
    assert "number for quiet-river is 7204518." in left.partition("7204518.")[2]
    assert all(len(row[0]) == 30 for row in rows)
    assert err.count("per second") == 2


def test_the_dominant_band_is_looked_for_unless_given(runs, capsys):
    args = (runs["random"], "The", "--tokens", "40", "--extend", "dominant_band", "--device", "cpu")
    assert "data" in complaint(capsys, *args)  # of a run that was made up, so it has none
    main(["generate", *args, "--dominant-band", "2"])
    assert "with dominant_band" in capsys.readouterr().err


def test_lines_of_a_column():
    def of(text, width):
        found = list(lines(iter(text), width))  # character by character
        assert found == list(lines([text], width))
        return found

    assert of("a quick brown fox", 9) == ["a quick", "brown fox"]
    assert of("one\n\ntwo\n", 9) == ["one", "", "two"]
    assert of("abcdefghij k", 4) == ["abcd", "efgh", "ij k"]
    assert of("    return x + y", 12) == ["    return x", "+ y"]
    assert of("        abcdefgh", 10) == ["        ab", "cdefgh"]
    assert of("語語語語", 5) == ["語語", "語語"]
    assert of("\tx", 9) == ["    x"]
    assert of("", 9) == []


def test_what_would_change_a_terminal_is_not_printed(runs, capsys, monkeypatch):
    monkeypatch.setattr(module.Passage, "__iter__", lambda self: iter(["\x1b[31mred\x07\r\n\tnext"]))
    main(["generate", runs["random"], "The\x1b", "--device", "cpu"])
    assert capsys.readouterr().out == "The\ufffd\ufffd[31mred\ufffd\ufffd\n\tnext\n"


def test_bad_input_is_one_sentence(runs, capsys, tmp_path):
    assert "prompt" in complaint(capsys, runs["random"], "", "--device", "cpu")
    assert "temperature must be 0 or more; got -1" in complaint(capsys, runs["random"], "x", "--temperature", "-1")
    assert "top_p must be above 0" in complaint(capsys, runs["random"], "x", "--top-p", "0")
    assert "run.json" in complaint(capsys, str(tmp_path), "x")
    assert "run.json" in complaint(capsys, runs["random"], "x", "--beside", str(tmp_path))


def test_a_run_that_is_not_finished_says_which_command_finishes_it(runs, capsys):
    run = read_run(runs["random"])
    replace(run, finished=False).save()
    try:
        assert "is not finished; continue with: " in complaint(capsys, runs["random"], "x")
    finally:
        run.save()


def test_ctrl_c_ends_the_line_and_says_how_far_it_got(runs):
    command = [sys.executable, "-m", "lerope", "generate", runs["random"], "The", "--tokens", "1000000"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=settings, preexec_fn=heeding)
    assert process.stdout.read(10)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith("\n")
    assert "tokens" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_whatever_reads_the_text_may_stop(runs):
    command = [sys.executable, "-m", "lerope", "generate", runs["random"], "The", "--tokens", "100000"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert "Traceback" not in process.stderr.read()


PAGE = Path(__file__).parents[2] / "docs" / "generate.md"


@pytest.mark.parametrize("command", re.findall(r"^lerope generate .*$", PAGE.read_text(), re.M))
def test_commands_of_the_page_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    copier_tokenizer(tmp_path / "tokenizer.model")
    model = random_model()
    for name in ("52M-rope-42", "52M-lerope-42"):
        write_run(tmp_path / "runs" / name, model, tmp_path / "tokenizer.model", 32)
    words = shlex.split(command)[1:]
    shorter = {"4000": "40", "500": "40", "20": "2"}
    main([shorter.get(word, word) for word in words])
    assert "Once upon" in capsys.readouterr().out
