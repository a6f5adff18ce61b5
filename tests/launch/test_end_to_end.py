"""The paper's studies from text to report: every command that a launcher would give to processes, in this one."""

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
from lerope.launch.recipes import EVERYTHING, STUDIES, study_named
from lerope.launch.small import in_small
from lerope.launch.study import Study, grid, measured
from lerope.report.collect import Bundle, collect
from lerope.report.figures import FIGURES
from lerope.report.tables import MAKERS
from lerope.results import Evaluation, Extrapolation, Needle, load_result
from lerope.results.archive import archive
from tests.data.corpora import write_corpus
from tests.report.test_figures import words
from tests.train.runs import TINY

pytest.importorskip("matplotlib")

PARTS = {"frequencies", "bands", "ablation", "slowest", "phasors"}

# What the paper shows of each study, and what goes with it.
LOSSES = {"perplexity", "ablations", "gap-by-position"}
LEARNED = {"wavelengths", "frequencies-through-training"}
BANDS = {"band-contributions", "query-key-norms"}
REMOVALS = {"leave-one-out", "slowest-bands", "phasor-scales", "gradient-phasors"}
GAPS = {"training", "loss-gap-by-position"}
TABLES = {
    "main": {
        *LOSSES,
        "compute-multipliers",
        "fits",
        "sensitivity-to-floor",
        "dominant-bands",
        "slowest-bands",
        "recipe",
    },
    "seeds": {*LOSSES, "seeds", "dominant-bands"},
    "base": LOSSES,
    "p": LOSSES,
    "parametrization": {*LOSSES, "dominant-bands"},
    "sharing": {*LOSSES, "dominant-bands"},
    "fixed": {*LOSSES, "gain-captured", "dominant-bands"},
    "lengths": {"dominant-bands"},
    "code": {"code", "dominant-bands"},
    "extrapolation": {"extrapolation", "dominant-bands"},
    "needle": {"documents"},
}
FIGURES_OF = {
    "main": {*LEARNED, *BANDS, *REMOVALS, *GAPS, "compute-multipliers"},
    "seeds": {*LEARNED, *BANDS, *GAPS},
    "base": GAPS,
    "p": GAPS,
    "parametrization": {*LEARNED, *BANDS, *GAPS},
    "sharing": {*LEARNED, *BANDS, *GAPS},
    "fixed": {*LEARNED, *BANDS, *GAPS},
    "lengths": LEARNED,
    "code": {"code"},
    "extrapolation": {"extrapolation"},
    "needle": {"needle-distractors", "needle-lengths"},
}


def carry_out(run, data, out):
    """Trains and measures a run, with the arguments that a launcher gives."""
    for command in run.commands(data, out):
        code = None
        try:
            main(command)
        except SystemExit as end:  # by which some commands end, and others do not
            code = end.code
        assert code in (None, 0), command


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


def check_report(folder, tables, figures):
    """Each of these tables has something of ours, and each of these figures is whole."""
    bundle = collect([folder])
    made = {table.name: (table, make(Bundle([]))) for make in MAKERS for table in [make(bundle)]}
    for name in tables:
        ours, without = made[name]
        new = [row for row in ours.rows if row not in without.rows]
        # The paper's own values stay the texts that it prints; only the recipe is in words.
        assert any(name == "recipe" or isinstance(cell, float) for row in new for cell in row), name
    drawings = {figure.NAME: figure for figure in FIGURES}
    for name in figures:
        assert "lerope " not in words(drawings[name].draw(bundle)), name


def test_a_study_of_two_runs_and_its_report(tmp_path, monkeypatch):
    """What takes seconds: no tokenizer, and so no needles and no other texts."""
    monkeypatch.setitem(LADDER, "demo", TINY)
    data = write_corpus(tmp_path / "data", {"train": [300] * 20, "validation": [300] * 4})
    study = Study(name="mine", sentence="Does it run?", runs=measured(grid(["2.52B"], ["rope", "lerope"]), EVERYTHING))
    for run in in_small(study, steps=2).runs:
        carry_out(run, data, tmp_path / "out")
        check(run, tmp_path / "out")
    check_report(tmp_path / "out", {*LOSSES, "dominant-bands", "slowest-bands"}, {*LEARNED, *BANDS, *REMOVALS, *GAPS})


def test_all_measurements(tmp_path, monkeypatch):
    """With a tiny model, and a tokenizer that has read enough English for needles to fit."""
    for number, text in enumerate(topics.values()):
        (tmp_path / f"{number}.txt").write_text(text)
    manifest = prepare([str(tmp_path)], tmp_path / "data", vocab_size=1000, validation_fraction=0.1)
    monkeypatch.setitem(LADDER, "demo", replace(TINY, vocab_size=manifest.vocab_size))
    measurements = (EVERYTHING, ("needle",), ("needle", "--to", "4096"), ("extrapolate", "--to", "4096"))
    runs = measured(grid(["2.52B"], ["lerope"]), *measurements)
    (run,) = in_small(Study(name="all", sentence="Does it run?", runs=runs), steps=2).runs
    carry_out(run, tmp_path / "data", tmp_path / "out")
    check(run, tmp_path / "out")


@pytest.fixture(scope="module")
def python_data(tmp_path_factory):
    """Some of Python's own sources, with the vocabulary of the rung `demo`; little to evaluate."""
    folders = [str(Path(package.__file__).parent) for package in (asyncio, email)]
    held_out = [str(Path(asyncio.__file__).with_name(f"{name}.py")) for name in ("queues", "locks", "runners")]
    out = tmp_path_factory.mktemp("python") / "data"
    prepare(folders, out, vocab_size=2048, validation=held_out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_and_its_report(name, python_data, tmp_path, monkeypatch):
    """A folder of its own, so that no study lives on what another has measured; rungs differ by their steps."""
    monkeypatch.setitem(LADDER, "demo", replace(TINY, vocab_size=2048))
    study = in_small(study_named(name), steps=5)
    for run in study.runs:
        carry_out(run, python_data, tmp_path)
        check(run, tmp_path)
    check_report(tmp_path, TABLES[name], FIGURES_OF[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["effect", "window", "transfer", "size", "code", "preset", "horizon"])
def test_every_study_of_the_campaign(name, python_data, tmp_path, monkeypatch):
    """Before it costs hours of a GPU: each command is accepted and leaves its result, and the run can be archived."""
    wide = {"num_heads": 4, "head_dim": 64} if name == "preset" else {}  # where a head of 128 fits
    monkeypatch.setitem(LADDER, "demo", replace(TINY, vocab_size=2048, **wide))
    study = in_small(study_named(f"results/campaign.py:{name}"), steps=5)
    needed, seen = {run.after for run in study.runs}, set()
    for run in study.runs:
        if (run.encoding, str(run.changes)) in seen and run.name not in needed:
            continue  # another seed
        seen.add((run.encoding, str(run.changes)))
        carry_out(run, python_data, tmp_path / "runs")
        check(run, tmp_path / "runs")
        archive(tmp_path / "runs" / run.name, tmp_path / "kept")
    assert collect([tmp_path / "kept"]).runs
