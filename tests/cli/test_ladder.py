"""lerope ladder and lerope plan STUDY, as a user calls them."""

import json
import shlex
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest

from lerope.analyze.ablation import NUM_TOKENS
from lerope.cli.analyze import analyze
from lerope.cli.main import main
from lerope.core.ladder import LADDER, plan
from lerope.core.run import read_run
from lerope.launch.recipes import STUDIES
from lerope.results import Evaluation, Sweep
from lerope.train.parallel import usual_precision
from tests.data.corpora import write_corpus
from tests.train.runs import TINY, tiny_corpus

# Steps, tokens and compute of one run of each rung, from the ladder's formulas.
STEPS = {"52M": 7_880, "217M": 33_040, "608M": 92_760, "1.34B": 204_320, "2.52B": 385_000}
COMPUTE = {"52M": 1.1697e17, "217M": 3.9234e18, "608M": 3.7176e19, "1.34B": 1.9410e20, "2.52B": 7.1434e20}
# Forward over 10M tokens: 2 (N_ne + vocabulary x width) + 2 layers x row x width for each.
EVAL = {
    rung: 10e6 * 2 * (12 * layers * width**2 + 32_000 * width + layers * 2_048 * width)
    for rung, layers, width in (
        ("52M", 6, 512),
        ("217M", 12, 1_024),
        ("608M", 18, 1_536),
        ("1.34B", 24, 2_048),
        ("2.52B", 30, 2_560),
    )
}

OWN = """
from lerope.launch.study import Study, grid

def mine():
    return Study(name="mine", sentence="Does it run?", runs=grid(["2.52B"], ["rope"]))
"""


OTHER = """
from lerope.launch.study import Study, PlannedRun
def study():
    runs = [PlannedRun(rung="demo", encoding="rope", changes={"vocab_size": 60})]
    return Study(name="other", sentence="", runs=runs)
"""


def called(capsys, *args, code=None):
    """What a command prints, after it ended with `code` or by itself."""
    if code is None:
        main([*map(str, args)])
    else:
        with pytest.raises(SystemExit) as stop:
            main([*map(str, args)])
        assert stop.value.code == code
    out, error = capsys.readouterr()
    return out if code is None else error


@pytest.fixture
def data(tmp_path):
    return write_corpus(tmp_path / "data", {"train": [80] * 60, "validation": [40] * 4}, vocab_size=2048)


def test_the_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    lines = called(capsys, "ladder").splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[name, str(len(make().runs))] for name, make in STUDIES.items()]
    rows = json.loads(called(capsys, "ladder", "--json"))
    assert rows[0] == {
        "study": "main",
        "asks": "Does LeRoPE save compute at every size?",
        "num_runs": 15,
        "data": "hf:c4",
    }


def test_commands_for_a_cluster(capsys):
    lines = called(capsys, "ladder", "fixed", "--data", "d", "--out", "o", "--print").splitlines()
    assert len(lines) == 5
    assert lines[0].split(" && ") == [
        "lerope train 217M --data d --encoding rope --seed 42 --out o/217M-rope-42",
        "lerope eval o/217M-rope-42",
        "lerope analyze o/217M-rope-42 --parts frequencies bands",
    ]
    source = next(i for i, line in enumerate(lines) if "--out o/217M-lerope-43 " in line)
    needs = next(i for i, line in enumerate(lines) if "o/217M-lerope-43/model/frequencies.json" in line)
    assert source < needs
    archived = called(
        capsys, "ladder", "base", "--data", "d", "--out", "o", "--archive", "kept", "--print"
    ).splitlines()
    assert archived[0].split(" && ")[-1] == "lerope archive o/217M-rope-base2048-42 --out kept"
    spaced = called(capsys, "ladder", "base", "--data", "my data", "--print").splitlines()[0]
    assert shlex.split(spaced)[4] == "my data"


def test_filler_reaches_needles_and_is_refused_where_there_are_none(capsys):
    lines = called(capsys, "ladder", "needle", "--data", "d", "--filler", "my essays/", "--print").splitlines()
    needles = [command for line in lines for command in line.split(" && ") if command.startswith("lerope needle")]
    assert len(needles) == 6
    assert all(shlex.split(command)[-2:] == ["--filler", "my essays/"] for command in needles)
    error = called(capsys, "ladder", "base", "--data", "d", "--filler", "essays/", "--print", code=2)
    assert "filler" in error
    assert "base" in error


def test_a_sweep_trains_what_the_study_trains(capsys, tmp_path, monkeypatch):
    """The study's usual rows in this machine's precision; every run then has the rate that was found."""
    monkeypatch.setitem(LADDER, "demo", TINY)
    carried_out = []
    monkeypatch.setattr(
        "lerope.launch.local.carry_out", lambda study, *rest, **options: carried_out.append(study) or {}
    )
    out = tmp_path / "out"
    study = ("ladder", "lengths", "--demo", "--steps", 2, "--out", out, "--data", tiny_corpus(tmp_path / "data"))
    assert "sweeps/demo/sweep.json does not exist" in called(capsys, *study, "--sweep", "--print", code=2)
    assert "searching for the learning rate" in called(capsys, *study, "--sweep")
    swept = [read_run(path.parent).recipe for path in sorted((out / "sweeps").rglob("run.json"))]
    assert len(swept) >= 3
    best = Sweep.load(out / "sweeps" / "demo" / "sweep.json").optima[0]["learning_rate"]
    (carried,) = carried_out
    recipes = [run.recipe(out) for run in carried.runs]
    assert [recipe.row_length for recipe in recipes] == [256, 512, 1024]
    assert {recipe.learning_rate for recipe in recipes} == {best}
    searched = {"encoding": "rope", "learning_rate": best, "frequency_learning_rate": best}
    precision = usual_precision("auto")
    assert {replace(each, **searched) for each in swept} == {replace(recipes[0], precision=precision, **searched)}
    lines = called(capsys, *study, "--sweep", "--print").splitlines()
    assert all(f"--learning-rate {best}" in line for line in lines)


@pytest.mark.slow
def test_a_study_in_processes_of_its_own(capsys, data, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    study = ("ladder", "own.py:mine", "--demo", "--steps", 2)
    assert "waiting" in called(capsys, *study, "--status")
    text = called(capsys, *study, "--data", data, "--archive", "kept")
    run = tmp_path / "studies" / "mine-demo" / "demo-rope-42-2.52B"
    assert read_run(run).finished
    (evaluated,) = (run / "results").glob("eval*.json")
    loss = Evaluation.load(evaluated).loss
    (row,) = json.loads(called(capsys, *study, "--status", "--json"))
    assert (row["name"], row["state"], row["step"], row["steps"]) == (run.name, "finished", 2, 2)
    assert row["validation_loss"] == pytest.approx(loss, rel=1e-5)
    assert f"{run.name}: finished, validation loss {loss:.4f}" in text
    assert Evaluation.load(tmp_path / "kept" / run.name / "results" / evaluated.name).loss == loss
    started = read_run(run).starts
    assert "finished" in called(capsys, *study, "--data", data)
    assert read_run(run).starts == started
    other = write_corpus(tmp_path / "other", {"train": [80] * 60, "validation": [40] * 4}, vocab_size=2048, seed=1)
    for args, problem in (
        ((*study[:-1], 3, "--data", data), "its steps is 2, not 3"),
        ((*study, "--data", other), "its data has another fingerprint"),
    ):
        assert "1 of 1 runs failed" in called(capsys, *args, code=1)
        shown = called(capsys, *args, "--status")
        assert f"{run.name}: studies/mine-demo/{run.name} " in shown
        assert problem in shown
        assert "2/2" in shown
    assert read_run(run).starts == started


def test_models_have_the_vocabulary_of_the_data(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = write_corpus(tmp_path / "small", {"train": [80] * 60, "validation": [40] * 4}, vocab_size=300)
    study = ["ladder", "p", "--demo", "--steps", "2", "--out", "p"]
    seen = []
    monkeypatch.setattr("lerope.launch.local.carry_out", lambda study, *_, **__: seen.extend(study.runs) or {})
    called(capsys, *study, "--data", small)
    assert {run.recipe(Path()).model.vocab_size for run in seen} == {300}
    first = seen[0]
    called(capsys, *first.commands(small, Path("p"))[0], "--device", "cpu", code=0)
    for more in ((), ("--data", small)):
        rows = json.loads(called(capsys, *study, "--status", "--json", *more))
        assert next(row["state"] for row in rows if row["name"] == first.name) == "trained"
    assert json.loads(called(capsys, "plan", "52M", "--data", small, "--json"))["model"]["vocab_size"] == 300
    assert json.loads(called(capsys, "plan", "p", "--data", small, "--json"))["runs"][0]["steps"] < 30_000


def test_a_failure_is_reported_and_ends_with_1(capsys, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "lerope.launch.local.carry_out",
        lambda study, *_, **__: {study.runs[0].name: "train exited with 2: no."},
    )
    error = called(capsys, "ladder", "p", "--demo", "--data", data, code=1)
    assert error.startswith("1 of 4 runs failed")
    assert "studies/p-demo/logs" in error


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["ladder", "mine"], "study must be one of main, seeds, base"),
        # 33,040 steps of 131,072 tokens at 217M, 92,760 at 608M and 385,000 at 2.52B.
        (
            ["ladder", "base"],
            "`lerope data prepare hf:c4 --max-tokens 4330618880 --out data/c4`",
        ),
        (["ladder", "seeds"], "`lerope data prepare hf:c4 --max-tokens 12158238720 --out data/c4`"),
        (["ladder", "main"], "`lerope data prepare hf:c4 --max-tokens 50462720000 --out data/c4`"),
        (["ladder", "main", "--steps", "10"], "`lerope data prepare hf:c4 --max-tokens 1310720 --out data/c4`"),
        (["ladder", "code"], "`lerope data prepare hf:starcoder --max-tokens 4330618880 --out data/starcoder`"),
        (["ladder", "code", "--demo"], "`lerope data prepare python: --vocab-size 2048 --out"),
        (["ladder", "base", "--steps", "0"], "steps must be a positive whole number; got 0"),
        (["ladder", "OTHER", "--data", "DATA"], "has a vocabulary of 2,048, but demo-rope-42 says 60"),
        (["ladder", "base", "--demo", "--data", "DATA", "--at-once", "0"], "at_once must be a positive whole number"),
        (["plan", "base", "--row-length", "4096"], "row_length, batch_tokens and vocab_size"),
        (["plan", "52M", "--demo"], "demo is for studies"),
        (["plan", "52M", "--data", "d"], "d/manifest.json does not exist"),
        (["plan", "base", "--data", "d"], "d/manifest.json does not exist"),
        (["plan", "nowhere.py:mine"], "study 'nowhere.py:mine' cannot be imported"),
    ],
)
def test_bad_input_is_one_sentence(capsys, data, args, sentence):
    other = data.parent / "other.py"
    other.write_text(OTHER)
    names = {"DATA": data, "OTHER": f"{other}:study"}
    error = called(capsys, *(names.get(arg, arg) for arg in args), code=2)
    assert sentence in error
    assert error.count("\n") == 1


def test_where_nothing_can_be_archived_nothing_is_trained(capsys, data, tmp_path):
    out, file = tmp_path / "out", data / "manifest.json"
    study = ("ladder", "base", "--demo", "--data", data, "--out", out)
    assert f"archive must be a folder; got the file {file}." in called(capsys, *study, "--archive", file, code=2)
    assert "archive must be another folder than --out" in called(capsys, *study, "--archive", out, code=2)
    assert not out.exists()


@pytest.mark.parametrize(
    ("study", "runs"),
    [
        ("main", dict.fromkeys(STEPS, 3)),
        ("seeds", {"217M": 12, "608M": 6}),
        ("sharing", {"217M": 5}),
        ("needle", {"2.52B": 3}),
    ],
)
def test_a_study_costs_the_sum_of_its_runs(capsys, study, runs):
    found = json.loads(called(capsys, "plan", study, "--json", "--gpu", "H200"))
    total = found["total"]
    assert total["num_runs"] == sum(runs.values())
    assert total["steps"] == sum(number * STEPS[rung] for rung, number in runs.items())
    assert total["tokens"] == 131_072 * total["steps"]
    assert total["compute"] == pytest.approx(sum(number * COMPUTE[rung] for rung, number in runs.items()), rel=5e-5)
    assert total["gpu_hours"]["H200"] == pytest.approx(total["flops"] / (0.4 * 989.4e12) / 3600)
    assert sum(run["flops"] for run in found["runs"]) == total["flops"]
    assert total["eval_flops"] == pytest.approx(sum(number * EVAL[rung] for rung, number in runs.items()), rel=5e-5)
    for rung in runs:
        (alone,) = json.loads(called(capsys, "plan", rung, "--json", "--gpu", "H200"))["gpus"]
        run = next(run for run in found["runs"] if run["rung"] == rung)
        assert run["gpu_hours"]["H200"] == pytest.approx(alone["seconds"] / 3600)


def test_a_plan_counts_what_analyze_reads(capsys):
    """64 rows for bands everywhere; at 2.52B also the whole model and 2 x 32 removals of 32,768 tokens, twice."""
    defaults = {name: each.default for name, each in signature(analyze).parameters.items()}
    assert (defaults["rows"], NUM_TOKENS) == (64, 32_768)
    found = json.loads(called(capsys, "plan", "main", "--json", "--gpu", "H200"))
    removals = {"2.52B": 2 * 65 * 32_768}
    for run in found["runs"]:
        assert run["analyze_tokens"] == 64 * 2_048 + removals.get(run["rung"], 0)
        assert run["analyze_flops"] == pytest.approx(EVAL[run["rung"]] * run["analyze_tokens"] / 10e6, rel=5e-5)
    assert found["total"]["analyze_tokens"] == sum(run["analyze_tokens"] for run in found["runs"])
    small = json.loads(called(capsys, "plan", "main", "--demo", "--json"))["runs"]
    assert {run["analyze_tokens"] for run in small} == {4 * 256, 4 * 256 + 2 * 65 * 2_048}
    assert {run["analyze_tokens"] for run in json.loads(called(capsys, "plan", "base", "--json"))["runs"]} == {0}


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_plan_as_a_table(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = called(capsys, "plan", "main")
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line[:5].strip() in ("2.52B", "total")}
    assert "…" not in text
    assert all(len(line) <= int(columns) for line in text.splitlines())
    rows = [line.split() for line in text.splitlines() if line.startswith("total")]
    # 3 x (7,880 + 33,040 + 92,760 + 204,320 + 385,000) steps; 3 x 9.500e20 FLOP.
    assert rows[0][1:5] == ["15", "2,169,000", "284.30B", "2.85e21"]
    # 15 times slower: 15 / 3 x 10.13M / 1.033B of a 52M run's time, and 15 / 3 x 14.4M / 50.46B at 2.52B.
    assert " 4.9% at 52M" in " ".join(text.split())
    assert " 0.1% at 2.52B" in " ".join(text.split())
    assert "a validation split of 10.00M tokens" in " ".join(text.split())
    assert "  lerope data prepare hf:c4 --max-tokens 50462720000 --out data/c4" in text.splitlines()
    assert len(rows[1]) == 7
    assert lines["2.52B"]
    codes = called(capsys, "plan", "code")
    assert [line.split()[:3] for line in codes.splitlines() if line.startswith("217M ")][:3] == [
        ["217M", "2,048", "3"],
        ["217M", "4,096", "1"],
        ["217M", "8,192", "1"],
    ]


def test_a_plan_with_the_data_there_is(capsys, data, monkeypatch):
    """4 x 40 validation tokens are read once for each of 4 runs; 60 x 80 training tokens are what a run repeats."""
    monkeypatch.setenv("COLUMNS", "1000")
    found = json.loads(called(capsys, "plan", "base", "--data", data, "--json"))
    assert (found["validation_tokens"], found["total"]["eval_tokens"]) == (160, 640)
    text = called(capsys, "plan", "base", "--data", data)
    assert f"a validation split of 0.00M tokens (that of {data})" in text
    tokens = plan(replace(LADDER["217M"], vocab_size=2048)).tokens
    assert f"The longest run reads the 0.00M training tokens {tokens / 4800:,.2f} times." in text
    assert "lerope data prepare" not in text


def test_a_plan_in_small(capsys):
    text = called(capsys, "plan", "main", "--demo")
    assert "GPU hours" not in text
    found = json.loads(called(capsys, "plan", "main", "--demo", "--json"))
    assert found["total"]["steps"] == 3 * (20 + 40 + 60 + 80 + 100)
    assert {run["rung"] for run in found["runs"]} == {"demo"}
    assert {run["eval_tokens"] for run in found["runs"]} == {32_768}
    assert found["prepare"].startswith("lerope data prepare python: --vocab-size 2048")


@pytest.mark.parametrize("command", ["ladder", "sweep"])
def test_help_has_an_example(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"Example: lerope {command}" in capsys.readouterr().out
