"""lerope eval and lerope extrapolate, as a user calls them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from lerope.cli.eval import tell
from lerope.cli.main import main
from lerope.results import Evaluation, RunResult
from lerope.train.parallel import Ranks
from tests.data.corpora import write_corpus
from tests.train.runs import tiny_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli-eval")
    sizes = random.Random(1)
    lengths = {split: [sizes.randint(3, 120) for _ in range(60)] for split in ("train", "validation")}
    data = write_corpus(folder / "data", lengths)
    return [tiny_run(data, folder / name, steps=4, encoding=name).path for name in ("rope", "lerope")]


@pytest.fixture
def runs(finished, tmp_path):
    for run in finished:
        shutil.copytree(run, tmp_path / run.name, ignore=shutil.ignore_patterns("eval*"))
    return [tmp_path / run.name for run in finished]


def call(*args):
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return stop.value.code


def test_a_table_and_json(runs, capsys):
    assert call("eval", *runs, "--device", "cpu") == 0
    text = capsys.readouterr().out
    assert "validation: windows of 32 tokens" in text
    assert "0 to 3" in text
    assert max(map(len, text.splitlines())) <= 80
    assert call("eval", *runs, "--device", "cpu", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["run"]["recipe"]["encoding"] for each in found] == ["rope", "lerope"]
    for each, run in zip(found, runs, strict=True):
        assert f"{each['loss']:.4f}" in text
        assert Evaluation.load(run / "results" / "eval.json").as_dict() == each


def test_json_is_json_however_long_it_takes(runs, capsys, monkeypatch):
    monkeypatch.setattr("lerope.core.terminal._LINE_SECONDS", 0.0)
    options = ("--device", "cpu", "--json", "--batch-tokens", 64, "--max-tokens", 500)
    for command, *more in (("eval",), ("extrapolate", "--to", 64, "--temperatures", 0.1)):
        assert call(command, runs[1], *more, *options) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)[0]["run"]["recipe"]["encoding"] == "lerope"
        assert "tokens/s" in said.err


def test_runs_of_different_lengths_have_a_table_each(finished, tmp_path, capsys):
    data = json.loads((finished[0] / "run.json").read_text())["starts"][-1]["data"]
    other = tiny_run(data, tmp_path / "longer", steps=2, row_length=64).path
    assert call("eval", finished[0], other, "--device", "cpu") == 0
    text = capsys.readouterr().out
    assert "windows of 32 tokens" in text
    assert "windows of 64 tokens" in text
    assert "0 to 3 " in text
    assert "0 to 7 " in text


def test_all_runs_are_looked_at_before_any_is_scored(runs, capsys):
    assert call("eval", runs[0], "nowhere", "--device", "cpu") == 2
    assert not (runs[0] / "results" / "eval.json").exists()


def test_extrapolate_finds_the_dominant_band_and_shows_both_selections(runs, capsys):
    assert call("extrapolate", *runs, "--to", 64, "--device", "cpu", "--temperatures", 0.1) == 0
    text = capsys.readouterr().out
    assert text.count("All documents, cut at 64 tokens") == 1
    assert text.count("Documents longer than 64 tokens, cut there") == 1
    assert max(map(len, text.splitlines())) <= 80
    content = json.loads((runs[1] / "results" / "extrapolation.json").read_text())
    band = content["settings"]["dominant_band"]
    assert text.count(f"band {band} alone") >= 4
    assert call("extrapolate", runs[0], "--to", 64, "--device", "cpu", "--dominant-band", 3, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["settings"]["dominant_band"] == 3


def test_runs_whose_dominant_bands_differ_share_a_table():
    made = [RunResult(settings={"to": 64, "dominant_band": band}, provenance={}, run={}) for band in (3, 5)]
    for besides, groups in ((("dominant_band", "temperatures"), [made]), ((), [[made[0]], [made[1]]])):
        shown = []
        with pytest.raises(SystemExit):
            tell(made, Ranks(0, 1, 1, torch.device("cpu")), False, shown.append, besides)
        assert shown == groups


def test_torchrun_gives_what_one_process_gives(runs, tmp_path):
    assert call("eval", runs[1], "--device", "cpu") == 0
    want = Evaluation.load(runs[1] / "results" / "eval.json")
    shutil.rmtree(runs[1] / "results")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("-m", "lerope", "eval", str(runs[1]), "--device", "cpu", "--batch-tokens", "100"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("perplexity") == 1
    got = Evaluation.load(runs[1] / "results" / "eval.json")
    assert got.loss == pytest.approx(want.loss, abs=1e-6)
    assert got.num_tokens == want.num_tokens


def test_ctrl_c_keeps_what_is_scored_and_says_how_to_go_on(runs):
    command = [sys.executable, "-m", "lerope", "eval", str(runs[1]), "--device", "cpu", "--batch-tokens", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    results = runs[1] / "results"
    while not any(path.stat().st_size for path in results.glob(".eval*.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"`lerope eval {runs[1]} --device cpu --batch-tokens 1`." in error
    assert "Traceback" not in error
    assert call("eval", runs[1], "--device", "cpu") == 0
    assert not list(results.glob(".eval*.partial"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("eval", "nowhere"), "lerope eval: nowhere/run.json does not exist"),
        (("eval",), "lerope eval: name at least one finished run"),
        (("extrapolate", "nowhere", "--to", "64"), "lerope extrapolate: nowhere/run.json does not exist"),
    ],
)
def test_bad_input_is_one_sentence(capsys, args, words):
    assert call(*args) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
