"""lerope sweep, as a user calls it."""

import json
import signal

import pytest

from lerope.cli.main import main
from lerope.core.ladder import LADDER
from lerope.core.signals import Stopped
from lerope.results import Sweep
from tests.train.runs import TINY, tiny_corpus

SMALL = ["--steps", "8", "--row-length", "32", "--batch-tokens", "256", "--validation-tokens", "300"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("data") / "c")


@pytest.fixture
def sweep(data, monkeypatch):
    monkeypatch.setitem(LADDER, "demo", TINY)
    return lambda *args: main(["sweep", "demo", "--data", str(data), *SMALL, *map(str, args)])


def complaint(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *map(str, args)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_table_and_the_file_say_the_same(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    sweep("--encodings", "rope", "lerope", "--start", 12, "--out", tmp_path / "s")
    text = capsys.readouterr().out
    found = Sweep.load(tmp_path / "s" / "sweep.json")
    assert [best["encoding"] for best in found.optima] == ["rope", "lerope"]
    for trial in found.trials:
        assert f"{trial['encoding']}  index {trial['index']}  learning rate {trial['learning_rate']:.3e}" in text
    for best in found.optima:
        row = next(line for line in text.splitlines() if line.startswith(f" {best['encoding']} "))
        wanted = (best["index"], f"{best['learning_rate']:.3e}", f"{best['loss']:.4f}", best["num_runs"])
        assert all(str(value) in row.split() for value in wanted)
    sweep("--encodings", "rope", "lerope", "--out", tmp_path / "s", "--json")
    again = json.loads(capsys.readouterr().out)
    assert again["trials"] == found.trials


def test_a_cold_start_and_predictions(sweep, tmp_path, capsys):
    sweep("--encodings", "rope", "--start", "cold", "--out", tmp_path / "s", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [trial["index"] for trial in found["trials"]][:2] == [13, 18]
    best = found["optima"][0]["index"]
    # The same model with twice the vocabulary and an index 2 higher, as if it had been swept.
    other = json.loads((tmp_path / "s" / "sweep.json").read_text())
    other["settings"]["recipe"]["model"]["vocab_size"] *= 2
    other["optima"][0]["index"] += 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sweep.json").write_text(json.dumps(other))
    sweep("--encodings", "rope", "--out", tmp_path / "s", "--previous", tmp_path / "other", "--extrapolate", "demo")
    assert "Predicted" in capsys.readouterr().out
    (predicted,) = Sweep.load(tmp_path / "s" / "sweep.json").predictions
    assert (predicted["rung"], predicted["index"]) == ("demo", best)


def test_stopped_it_says_how_to_go_on(sweep, tmp_path, capsys, monkeypatch):
    def stopped(*args):
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr("lerope.launch.sweep.sweep", stopped)
    with pytest.raises(SystemExit) as stop:
        sweep("--out", tmp_path / "s")
    assert stop.value.code == 128 + signal.SIGINT
    assert "Stopped by SIGINT" in capsys.readouterr().err


def test_bad_input_is_one_sentence(capsys, data, tmp_path, monkeypatch):
    rest = ["--data", data, "--out", tmp_path / "s"]
    assert "rung must be one of demo" in complaint(capsys, "5M", *rest)
    assert "rung must be one of demo" in complaint(capsys, "52M", *rest, "--previous", tmp_path, "--extrapolate", "5M")
    assert "previous must name" in complaint(capsys, "52M", *rest, "--extrapolate", "217M")
    assert "sweep.json does not exist" in complaint(capsys, "52M", *rest, "--previous", tmp_path)
    assert "learning_rate is what a sweep searches" in complaint(capsys, "52M", *rest, "--learning-rate", "0.1")
    other = ["--vocab-size", "60", "--out", tmp_path / "other"]
    assert "has a vocabulary of 50" in complaint(capsys, "52M", *rest[:2], *other)
    assert "index must be from 0 to 40" in complaint(capsys, "52M", *rest, "--start", "50")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "a sweep trains in one process" in complaint(capsys, "52M", *rest)
