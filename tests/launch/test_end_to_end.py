"""The paper's studies from text to results: every command that a launcher would give to processes, in this one."""

import asyncio
import email
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from lerope.cli.main import main
from lerope.core.ladder import LADDER
from lerope.core.run import read_run
from lerope.data.prepare import prepare
from lerope.launch.recipes import STUDIES, study_named
from lerope.launch.small import in_small
from lerope.launch.study import Study, grid, measured
from lerope.results import Evaluation, Extrapolation, Needle, load_result
from tests.train.runs import TINY

PARTS = {"frequencies", "bands", "ablation", "slowest", "phasors"}


def carry_out(run, data, out):
    """Trains and measures a run, with the arguments that a launcher gives."""
    for command in run.commands(data, out):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == 0, command


def check(run, out):
    """The run is finished, and each of its measurements has left a result of this very run."""
    found = read_run(out / run.name)
    assert found.finished
    results = out / run.name / "results"
    kinds = {"eval": ("eval*.json", Evaluation), "needle": ("needle*.json", Needle)}
    kinds["extrapolate"] = ("extrapolation*.json", Extrapolation)
    for _, *parts in (each for each in run.measure if each[0] == "analyze"):
        assert {load_result(results / f"{part}.json").kind for part in PARTS & set(parts)} == PARTS & set(parts)
    for command in {command for command, *_ in run.measure} - {"analyze"}:
        pattern, kind = kinds[command]
        saved = [kind.load(path) for path in results.glob(pattern)]
        assert len(saved) >= sum(command == name for name, *_ in run.measure)
        assert all(each.run["created"] == found.created for each in saved)


def test_all_measurements(tmp_path, monkeypatch):
    """With a tiny model, and a tokenizer that has read enough English for needles to fit."""
    for number, text in enumerate(topics.values()):
        (tmp_path / f"{number}.txt").write_text(text)
    manifest = prepare([str(tmp_path)], tmp_path / "data", vocab_size=1000, validation_fraction=0.1)
    monkeypatch.setitem(LADDER, "demo", replace(TINY, vocab_size=manifest.vocab_size))
    runs = measured(
        grid(["2.52B"], ["lerope"]), ("needle",), ("needle", "--to", "4096"), ("extrapolate", "--to", "4096")
    )
    (run,) = in_small(Study(name="all", sentence="Does it run?", runs=runs), steps=2).runs
    carry_out(run, tmp_path / "data", tmp_path / "out")
    check(run, tmp_path / "out")


@pytest.fixture(scope="module")
def python_data(tmp_path_factory):
    """Some of Python's own sources, with the vocabulary of the rung `demo`; little to evaluate."""
    folders = [str(Path(package.__file__).parent) for package in (asyncio, email)]
    held_out = str(Path(asyncio.__file__).with_name("queues.py"))
    out = tmp_path_factory.mktemp("python") / "data"
    prepare(folders, out, vocab_size=2048, validation=[held_out])
    return out


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One folder for all studies, so that the runs they share are trained once."""
    return tmp_path_factory.mktemp("studies")


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study(name, python_data, shared):
    study = in_small(study_named(name), steps=2)
    for run in study.runs:
        carry_out(run, python_data, shared)
        check(run, shared)
