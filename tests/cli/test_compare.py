"""lerope compare, as a user calls it."""

import json

import pytest

from lerope.cli.main import main
from lerope.results import Comparison
from tests.scaling.run_files import write_study

LOSSES = {"rope": (3.010, 3.015, 3.012), "prope": (3.008, 3.014, 3.011), "lerope": (3.003, 3.009, 3.006)}
STUDY = {("52M", method, 42 + i): loss for method, row in LOSSES.items() for i, loss in enumerate(row)}


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def call(*args):
    main(["compare", *map(str, args)])


def test_a_study_as_tables_and_verdicts(tmp_path, capsys, wide):
    larger = {("217M", method, seed): loss - 0.4 for (_, method, seed), loss in STUDY.items() if method != "prope"}
    call(*write_study(tmp_path, {**STUDY, **larger}))
    text = capsys.readouterr().out
    lines = text.splitlines()
    rows = [line.split() for line in lines]
    assert ["lerope", "3.0030", "3.0090", "3.0060", "3.0060"] in rows
    # The standard deviation of -0.007, -0.006 and -0.006.
    assert ["lerope", "3", "-0.0063", "0.0006", "documents"] in [row[:5] for row in rows]
    assert sum(row[:1] == ["both"] for row in rows) == 3
    assert "share of the gain of lerope over rope" in text
    assert "217M: difference from rope by position" in text
    assert "compute at which rope reaches the same loss" in text
    assert "note: prope has no multipliers, because it has no run at 217M." in lines
    assert sum("LeRoPE is 0.0063 nats below RoPE (95 % interval" in line for line in lines) == 2
    assert "over 3 seeds and 59 documents): more than noise explains." in lines[-1]


def test_one_seed_says_so(tmp_path, capsys, wide):
    call(*write_study(tmp_path, {key: loss for key, loss in STUDY.items() if key[2] == 42}))
    text = capsys.readouterr().out
    assert text.count("one seed says nothing about others.") == 2
    rows = [line.split() for line in text.splitlines()]
    assert sum("documents" in row[3:4] for row in rows) == 2  # without a deviation
    assert not [row for row in rows if row[:1] == ["both"]]


def test_json_is_the_result_and_out_is_its_file(tmp_path, capsys):
    paths = write_study(tmp_path / "runs", STUDY)
    call(*paths, "--json", "--out", tmp_path / "a" / "comparison.json", "--baseline", "prope", "--reference", "rope")
    printed = json.loads(capsys.readouterr().out)
    saved = Comparison.load(tmp_path / "a" / "comparison.json")
    assert printed == saved.as_dict()
    assert (saved.baseline, saved.reference) == ("prope", "rope")
    assert {effect["method"]: round(effect["difference"], 4) for effect in saved.effects} == {
        "rope": 0.0013,
        "lerope": -0.005,
    }


def test_a_method_is_the_same_however_it_is_spelled(tmp_path, capsys):
    paths = write_study(tmp_path / "runs", STUDY)
    call(*paths, "--json", "--baseline", "rope,base=1e4", "--reference", "prope,p=0.75,base=10000")
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], found["reference"]) == ("rope", "prope")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["52M-rope-42"], "name runs of two methods or more at every rung; 52M has only rope."),
        (["52M-rope-42", "52M-lerope-42", "--baseline", "nope"], "52M has rope, lerope but not 'nope'."),
        (["52M-rope-42", "52M-lerope-43"], "have no seed in common at 52M"),
        (["52M-rope-42", "nothing"], "does not exist; name a folder that `lerope train` wrote."),
    ],
)
def test_errors_are_one_sentence(tmp_path, capsys, args, sentence):
    write_study(tmp_path, STUDY)
    with pytest.raises(SystemExit) as stop:
        call(*(tmp_path / arg if arg.startswith(("52M", "nothing")) else arg for arg in args))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
