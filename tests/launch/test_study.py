"""Studies: the paper's cells, the one rule that makes them small, and studies of one's own."""

import math
import re
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from lerope.cli.main import main
from lerope.cli.train import Changes
from lerope.core.ladder import rung
from lerope.core.recipe import CHANGES
from lerope.core.run import read_run
from lerope.launch import rates
from lerope.launch.cost import run_costs
from lerope.launch.progress import status
from lerope.launch.recipes import STUDIES, study_named
from lerope.launch.small import in_small
from lerope.launch.study import (
    PlannedRun,
    Study,
    grid,
    measured,
    prepare_command,
    shortened,
    with_learning_rates,
    with_options,
)

# The cells of the paper's tables and figures, as names of runs.
CELLS = {
    "main": {f"{n}-{e}-42" for n in ("52M", "217M", "608M", "1.34B", "2.52B") for e in ("rope", "prope", "lerope")},
    "seeds": {
        *(f"217M-{e}-{s}" for e in ("rope-base2048", "rope", "rope-base500000", "lerope") for s in (42, 43, 44)),
        *(f"608M-{e}-{s}" for e in ("rope", "lerope") for s in (42, 43, 44)),
    },
    "base": {"217M-rope-base2048-42", "217M-rope-42", "217M-rope-base500000-42", "217M-lerope-42"},
    "p": {"217M-rope-42", "217M-prope-p0.25-42", "217M-prope-p0.5-42", "217M-prope-42"},
    "parametrization": {
        "217M-rope-42",
        "217M-lerope-42",
        "217M-lerope-parametrizationlinear-42",
        "217M-lerope-parametrizationdirect-42",
    },
    "sharing": {
        "217M-rope-42",
        "217M-lerope-42",
        "217M-lerope-sharinglayer-42",
        "217M-lerope-sharinghead-42",
        "217M-lerope-sharinglayer_head-42",
    },
    "fixed": {
        "217M-rope-42",
        "217M-prope-42",
        "217M-lerope-42",
        "217M-lerope-43",
        "217M-frozen-217M-lerope-43-42",
    },
    "lengths": {"217M-lerope-42", "217M-lerope-42-length4096", "217M-lerope-42-length8192"},
    "code": {
        "217M-rope-42",
        "217M-prope-42",
        "217M-lerope-42",
        "217M-lerope-42-length4096",
        "217M-lerope-42-length8192",
    },
    "extrapolation": {"2.52B-rope-42", "2.52B-prope-42", "2.52B-lerope-42"},
    "needle": {"2.52B-rope-42", "2.52B-prope-42", "2.52B-lerope-42"},
}


def test_the_studies_are_the_paper_s():
    assert {name: {run.name for run in make().runs} for name, make in STUDIES.items()} == CELLS
    assert all(make().name == name for name, make in STUDIES.items())
    lengths = {run.name: run.recipe(Path()).row_length for run in study_named("lengths").runs}
    assert list(lengths.values()) == [2048, 4096, 8192]
    assert study_named("code").source == "hf:starcoder"
    assert ("extrapolate", "--to", "4096") in study_named("extrapolation").runs[0].measure
    frozen = study_named("fixed").runs[-1]
    assert frozen.spec(Path("/out")) == "/out/217M-lerope-43/model/frequencies.json"
    assert frozen.seed == 42, "its frequencies come from another seed"


def test_the_same_run_has_the_same_name_in_every_study():
    """So that studies may share a folder, and with it their runs; the code study has other data."""
    recipes = {}
    for name in STUDIES.keys() - {"code"}:
        for small in (False, True):
            study = in_small(study_named(name)) if small else study_named(name)
            for run in study.runs:
                assert recipes.setdefault(run.name, run.recipe(Path())) == run.recipe(Path())


@pytest.mark.parametrize("name", STUDIES)
def test_the_demo_keeps_what_a_study_compares(name):
    full, small = study_named(name), in_small(study_named(name))
    assert len(small.runs) == len(full.runs)
    for before, after in zip(full.runs, small.runs, strict=True):
        old, new = before.recipe(Path()), after.recipe(Path())
        assert (new.rung, new.seed) == ("demo", old.seed)
        assert new.row_length * 8 == old.row_length
        assert new.batch_tokens == 2048
        assert new.steps == {6: 20, 12: 40, 18: 60, 24: 80, 30: 100}[old.model.num_layers]
        assert after.encoding == before.encoding
        assert [each[0] for each in after.measure] == [each[0] for each in before.measure]
    # An hour on 2 cores is about 12,000 steps of 2,048 tokens; the largest study takes a tenth of that.
    assert sum(cost.steps for cost in run_costs(small)) <= 1_000


def test_the_demo_shortens_what_is_measured_and_keeps_what_is_changed():
    run = PlannedRun(
        rung="52M",
        encoding="rope",
        changes={"learning_rate": 0.1, "warmup_steps": 500},
        measure=(("x", "--to", "8192"),),
    )
    small = in_small(Study(name="s", sentence="?", runs=[run]), 10).runs[0]
    assert small.measure == (("x", "--to", "1024"),)
    assert small.recipe(Path()).learning_rate == 0.1
    assert (small.recipe(Path()).steps, small.recipe(Path()).warmup_steps) == (2, 0)


def test_the_demo_measures_less():
    small = in_small(study_named("needle")).runs[0]
    assert small.measure == (
        ("eval", "--max-tokens", "32768"),
        ("needle", "--samples", "2", "--distractors", "1", "3"),
        ("needle", "--to", "4096", "--samples", "2"),
    )
    mine = PlannedRun(rung="52M", encoding="rope", measure=(("eval", "--max-tokens", "99"), ("analyze", "--rows", "3")))
    mine = replace(mine, measure=(*mine.measure[:1], (*mine.measure[1], "--phasor-rows", "2", "--max-tokens", "500")))
    assert in_small(Study(name="s", sentence="?", runs=[mine])).runs[0].measure == mine.measure


def test_commands():
    run = PlannedRun(rung="217M", encoding="lerope", seed=43, changes={"row_length": 4096}, suffix="long")
    (run,) = measured([run], ("needle", "--samples", "5"))
    out, train = "out/217M-lerope-43-long", ["--data", "data", "--encoding", "lerope", "--seed", "43"]
    assert run.commands(Path("data"), Path("out")) == [
        ["train", "217M", *train, "--row-length", "4096", "--out", out],
        ["eval", out],
        ["needle", out, "--samples", "5"],
    ]
    study = shortened(Study(name="s", sentence="?", runs=[run]), 9)
    assert study.runs[0].recipe(Path()).steps == 9


def test_as_much_is_prepared_as_the_longest_run_reads():
    runs = [
        *grid(["52M"], ["rope"], steps=100, batch_tokens=4096),
        *grid(["52M"], ["lerope"], steps=30, batch_tokens=8192),
    ]
    for source, folder in (("my-text/", "my-text"), ("hf:starcoder:rust", "starcoder"), ("hf:somebody/text", "text")):
        study = Study(name="s", sentence="?", runs=runs, source=source)
        assert prepare_command(study) == f"lerope data prepare {source} --max-tokens 409600 --out data/{folder}"


def test_a_file_of_frequencies_lies_where_the_study_does():
    frozen = study_named("fixed").runs[-1]
    assert frozen.recipe(Path("out")).encoding == "out/217M-lerope-43/model/frequencies.json"


OWN = """
from lerope.launch.study import Study, grid

def mine():
    return Study(name="mine", sentence="Mine?", runs=grid(["52M", "217M"], ["rope"], [1, 2], steps=7))

def wrong():
    return 3

number = 3
"""


def test_a_study_of_one_s_own(tmp_path, monkeypatch):
    (tmp_path / "own_study.py").write_text(OWN)
    names = ["52M-rope-1", "52M-rope-2", "217M-rope-1", "217M-rope-2"]
    assert [run.name for run in study_named(f"{tmp_path}/own_study.py:mine").runs] == names
    monkeypatch.chdir(tmp_path)
    assert [run.recipe(Path()).steps for run in study_named("own_study:mine").runs] == [7, 7, 7, 7]
    for spec, sentence in (
        ("own_study.py:nothing", "cannot be imported"),
        ("nowhere.py:mine", "cannot be imported"),
        ("nowhere_at_all:mine", "cannot be imported"),
        ("own_study.py:wrong", "must return a lerope.launch.study.Study; got int"),
        ("own_study.py:number", "must name a function; got int"),
        ("own", "study must be one of main, seeds, .* file.py:function; got 'own'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            study_named(spec)


def test_what_cannot_be_a_study():
    run = PlannedRun(rung="52M", encoding="rope")
    with pytest.raises(ValueError, match="52M-rope-42; give one of them a suffix"):
        Study(name="s", sentence="?", runs=[run, replace(run, changes={"steps": 3})])
    late = PlannedRun(rung="52M", encoding="frozen", after="52M-lerope-42")
    with pytest.raises(ValueError, match="needs 52M-lerope-42, which must be an earlier run"):
        Study(name="s", sentence="?", runs=[late, *grid(["52M"], ["lerope"])])
    with pytest.raises(ValueError, match=r"after must name a run .*'frozen'"):
        PlannedRun(rung="52M", encoding="frozen")
    with pytest.raises(ValueError, match=r"changes has start_from 'runs/x'; name a run of the study with after"):
        PlannedRun(rung="52M", encoding="lerope", changes={"start_from": "runs/x"})
    with pytest.raises(ValueError, match=r"changes must be what `lerope train` takes: steps, .*; got 'eps'"):
        PlannedRun(rung="52M", encoding="rope", changes={"eps": 1e-6})


def lerope(command):
    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == 0, command


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_trains(name, data, studies, tiny_demo):
    """In this process and with a tiny model, through the commands that a launcher gives to processes of their own.

    In one folder: a run that several studies have is trained once, and the others find it finished.
    """
    study = in_small(study_named(name), steps=2)
    for run in study.runs:
        train, evaluate, *_ = run.commands(data, studies)
        lerope(train)
        assert read_run(studies / run.name).finished
        assert evaluate[:2] == ["eval", str(studies / run.name)]
    if name == "fixed":
        source, frozen = (studies / study.runs[i].name / "model" / "frequencies.json" for i in (3, 4))
        learned, used = (
            re.search(r'"frequencies": \[.*?\]', path.read_text(), re.DOTALL).group() for path in (source, frozen)
        )
        assert learned == used
        lerope(["eval", str(studies / study.runs[-1].name)])


def test_a_run_that_starts_from_another_of_its_study(data, tmp_path, tiny_demo):
    """Also in a folder that was moved, and not where the other was trained again."""
    small = {"steps": 2, "row_length": 32, "batch_tokens": 64, "vocab_size": 50, "validation_tokens": 300}
    first = PlannedRun(rung="demo", encoding="lerope", changes=small)
    longer = PlannedRun(
        rung="demo",
        encoding="lerope",
        after=first.name,
        changes={**small, "row_length": 64, "learn": "rotation"},
    )
    assert longer.name == "demo-lerope-42-from-demo-lerope-42-64"
    study = Study(name="s", sentence="?", runs=[first, longer])
    out = tmp_path / "out"
    for run in study.runs:
        lerope(run.commands(data, out)[0])
    assert read_run(out / longer.name).recipe.start_from == str(out / first.name)
    out = out.rename(tmp_path / "moved")
    assert [status(run, out).state for run in study.runs] == ["trained", "trained"]
    again = replace(first, seed=43, called=first.name)
    lerope(["train", *again.commands(data, tmp_path / "again")[0][1:]])
    shutil.rmtree(out / first.name)
    (tmp_path / "again" / first.name).rename(out / first.name)
    assert "its weights are not those of" in str(status(longer, out))


def test_options_and_rates_reach_every_run_they_are_for():
    needles = with_options(study_named("needle"), "needle", "--filler", "essays/")
    assert [command[-2:] for run in needles.runs for command in run.measure if command[0] == "needle"] == [
        ("--filler", "essays/")
    ] * 6
    assert not any("--filler" in command for run in needles.runs for command in run.measure if command[0] == "eval")
    rated = with_learning_rates(study_named("main"), dict.fromkeys(("52M", "217M", "608M", "1.34B", "2.52B"), 0.125))
    assert {run.recipe(Path()).learning_rate for run in rated.runs} == {0.125}


def test_the_changes_of_a_study_are_the_options_of_train():
    assert tuple(field.name for field in fields(Changes)) == CHANGES


def test_rates_are_searched_below_608m_and_predicted_above(tmp_path, monkeypatch):
    """The paper's own optima give 22 for 1.34B and 24 for 2.52B; a second call trains nothing."""
    best, trained = {"52M": 13, "217M": 17, "608M": 20}, []

    def training(name, data, seed, changes, setup):
        def objective(encoding, index, folder):
            trained.append((name, encoding, index))
            return 3.0 + abs(index - best[name]) / 10

        return {"rung": name, "recipe": {"model": asdict(rung(name))}}, objective

    monkeypatch.setattr(rates, "training", training)
    study = study_named("main")
    found = rates.search_rates(study, tmp_path, tmp_path / "out", lambda text: None)
    indices = {name: round(-2 * math.log2(rate)) for name, rate in found.items()}
    assert indices == {**best, "1.34B": 22, "2.52B": 24}
    assert {encoding for _, encoding, _ in trained} == {"rope"}
    trained.clear()
    assert rates.search_rates(study, tmp_path, tmp_path / "out", lambda text: None) == found
    assert rates.known_rates(study, tmp_path / "out") == found
    assert trained == []
    with pytest.raises(ValueError, match=r"sweeps/52M/sweep.json does not exist"):
        rates.known_rates(study, tmp_path / "nowhere")
