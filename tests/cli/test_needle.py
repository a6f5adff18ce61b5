"""lerope needle, as a user calls it."""

import json
import re
import signal

import pytest

from lerope.cli.main import main
from lerope.cli.needle import _meaning
from lerope.core.signals import Stopped
from lerope.evaluate import needle as module
from lerope.results import Needle
from tests.evaluate.copier import copier, copier_tokenizer, random_model, write_run

SMALL = ("--samples", "2", "--depths", "0", "0.5", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    copier_tokenizer(folder / "tokenizer.model")
    return {
        name: str(write_run(folder / name, model, folder / "tokenizer.model"))
        for name, model in (("copier", copier()), ("random", random_model()))
    }


def call(*args):
    with pytest.raises(SystemExit) as stop:
        main(["needle", *args])
    return stop.value.code


def complaint(capsys, *args):
    assert call(*args) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_tables_and_what_they_mean(runs, capsys):
    assert call(runs["copier"], runs["random"], *SMALL, "--distractors", "1", "3", "31") == 0
    text = capsys.readouterr().out
    assert text.startswith("Needles within 512 tokens, 2 prompts")
    assert (
        len(re.findall(r"^ +[13] +100\.0% +61\.0 to 100\.0% +0\.0% +0\.00 +\+3[12]\.\d\d ± 0\.\d\d", text, re.M)) == 2
    )
    assert len(re.findall(r"^ +[13] +0\.0% +0\.0 to 39\.0% +0\.0% +\d\.\d\d +[+-]\d\.\d\d ± \d\.\d\d", text, re.M)) == 2
    assert re.search(r"^ +0\.5 +100 +100 *$", text, re.M)
    assert re.search(r"^ +0\.5 +[+-]\d\.\d\d +[+-]\d\.\d\d *$", text, re.M)
    assert "Left out, because they do not fit in 512 tokens: 31 distractors.\n" in text
    assert "copier: exact match is 100.0% with 1 and 100.0% with 3 distractors.\n" in text
    assert "random: at the floor, too small or trained too little to copy seven digits; compare margins" in text
    assert call(runs["random"], *SMALL, "--distractors", "1", "3", "31", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(cell["num_distractors"], cell["depth"]) for cell in found[0]["cells"]] == [
        (number, depth) for number in (1, 3) for depth in (0, 0.5, 1)
    ]
    for cell in found[0]["cells"]:
        assert cell["rate"] + cell["distractor_rate"] + cell["other_rate"] == pytest.approx(1)


def test_lengths_beyond_training(runs, capsys):
    assert call(runs["random"], *SMALL, "--to", "1024", "--method", "pi") == 0
    text = capsys.readouterr().out
    assert text.startswith("Needles up to 1,024 tokens with pi, 2 prompts")
    assert re.search(r"^ +1,024 +0\.0% +0\.0 to 39\.0%", text, re.M)
    assert re.search(r"^ +depth \\ tokens +512 +1,024 *$", text, re.M)


def test_a_filler_that_is_too_short_is_said_in_the_tables(runs, capsys, tmp_path):
    (tmp_path / "filler.txt").write_text("".join(f"All of this was written by hand number {at}. " for at in range(25)))
    assert call(runs["random"], *SMALL, "--to", "1024", "--filler", str(tmp_path / "filler.txt")) == 0
    text = capsys.readouterr().out
    number = int(re.search(r"\n\* The filler has (\d+) tokens: these haystacks repeat sentences\.", text)[1])
    assert 512 < number < 1024
    assert re.search(r"^ +1,024\* +0\.0%", text, re.M)
    assert re.search(r"^ +512 +0\.0%", text, re.M)
    assert re.search(r"^ +depth \\ tokens +512 +1,024\* *$", text, re.M)


@pytest.mark.parametrize(
    ("totals", "sentence"),
    [
        ([(1.0, 0.0, 1), (1.0, 0.0, 3)], "exact match is 100.0% with 1 and 100.0% with 3 distractors."),
        (
            [(0.8, 0.05, 1), (0.5, 0.4, 3)],
            "exact match is 80.0% with 1 and 50.0% with 3 distractors; 64% of wrong answers are another key's value.",
        ),
        ([(0.6, 0.0, 0)], "exact match is 60.0%."),
    ],
)
def test_what_numbers_mean(totals, sentence):
    cells = [
        {
            "length": 512,
            "num_distractors": number,
            "num_samples": 100,
            "num_correct": round(100 * rate),
            "rate": rate,
            "distractor_rate": distractor,
            "other_rate": 1 - rate - distractor,
        }
        for rate, distractor, number in totals
    ]
    result = Needle(run={}, settings={}, provenance={}, cells=cells, totals=cells, left_out=[])
    assert _meaning(result) == sentence


def test_prompts_are_shown_without_a_model(runs, capsys, tmp_path):
    (tmp_path / "filler.txt").write_text("All of this was written by hand. It has [brackets] in it. " * 3)
    main(["needle", runs["random"], "--show", "3", "--distractors", "1", "--filler", str(tmp_path / "filler.txt")])
    text = capsys.readouterr().out
    assert text.count("\nAnswer: ") == 3
    assert "512 tokens, 1 distractor, depth 0, sample 0\n" in text
    for part in text.split("\n\n")[:3]:
        key = re.search(r" The special magic number for (\S+) is\n", part)[1]
        answer = re.search(r"Answer: (\d{7})", part)[1]
        assert f"The special magic number for {key} is {answer}." in part
        assert "It has [brackets] in it." in part
        assert " [...] " in part


def test_a_stop_says_how_to_go_on(runs, capsys, monkeypatch):
    def stop(path, request):
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(module, "needle", stop)
    monkeypatch.setattr("sys.argv", ["lerope", "needle", runs["random"]])
    assert call(runs["random"]) == 130
    assert f"`lerope needle {runs['random']}`" in capsys.readouterr().err


def test_errors_are_one_sentence(runs, capsys, tmp_path):
    assert "name at least one finished run" in complaint(capsys)
    assert "show must be a positive whole number; got 0" in complaint(capsys, runs["random"], "--show", "0")
    assert "do not fit in 512 tokens" in complaint(capsys, runs["random"], "--distractors", "100")
    assert "to must be at least the train length of 512; got 100" in complaint(capsys, runs["random"], "--to", "100")
    assert "method yarn acts beyond the train length" in complaint(capsys, runs["random"], "--method", "yarn")
    assert "does not exist; name a file" in complaint(capsys, runs["random"], "--filler", str(tmp_path / "none"))
