"""An archive of runs says what the runs say, in far fewer bytes."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from lerope.cli.main import main
from lerope.core.run import read_metrics, read_run
from lerope.report.collect import read_files
from lerope.results import Bands, Evaluation, Extrapolation, Phasors
from lerope.results.archive import archive
from lerope.scaling.compare import compare
from tests.report.example import write_example
from tests.train.runs import edit


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of a study that was measured in every way."""
    folder = tmp_path_factory.mktemp("example") / "runs"
    return [run for run in write_example(folder) if run.parent == folder and read_run(run).finished]


@pytest.fixture(scope="module")
def archived(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("archive")
    return [archive(run, out) for run in runs]


def named(paths):
    return [path for path in paths if re.fullmatch(r"52M-(rope|prope|lerope)-4\d", path.name)]


def test_comparisons_are_the_same(runs, archived):
    one, other = (compare(named(paths), num_resamples=100) for paths in (runs, archived))
    assert one.effects[0]["method"] == "lerope"
    assert one.effects[0]["num_seeds"] > 1
    assert replace(one, provenance={}) == replace(other, provenance={})


def test_a_report_finds_everything(runs, archived):
    notes = []
    one, other = ([read_files(path, notes) for path in paths] for paths in (runs, archived))
    assert len(one) > 5
    assert notes == []
    for mine, yours in zip(one, other, strict=True):
        assert mine.run.label == yours.run.label
        assert mine.results.keys() == yours.results.keys()
        assert mine.frequencies == yours.frequencies
        assert mine.metrics.validations == yours.metrics.validations
        for kind in (Evaluation, Bands, Phasors):
            whole, less = mine.arrays(kind), yours.arrays(kind)
            assert whole.keys() - less.keys() <= {"losses", "ends", "contributions"}
            for name, array in less.items():
                rtol, atol = (1e-3, 1e-6) if kind is Bands else (1e-6, 1e-12)  # float16 and float32
                np.testing.assert_allclose(array, whole[name], rtol=rtol, atol=atol)
        assert not yours.arrays(Extrapolation)


def test_what_is_left_out(runs, archived):
    for run, less in zip(runs, archived, strict=True):
        assert {path.name for path in less.iterdir()} <= {
            *("run.json", "metrics.jsonl", "frequencies.jsonl", "model", "results")
        }
        assert {path.name for path in (less / "model").iterdir()} <= {"config.json", "frequencies.json"}
        whole, thin = read_metrics(run).steps, read_metrics(less).steps
        steps = read_run(run).recipe.steps
        assert thin == [record for record in whole if record.step % 10 == 0 or record.step in (1, steps)]
        for file in (less / "results").glob("eval*.safetensors"):
            assert load_file(file).keys() == {
                *("document_sums", "document_counts", "position_sums", "position_counts"),
            }


def test_an_archive_is_replaced_by_the_same_run_only(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / runs[0].name)
    first = archive(run, tmp_path / "out")
    removed = next((run / "results").glob("eval*.json"))
    removed.unlink()
    assert archive(run, tmp_path / "out") == first
    assert not (first / "results" / removed.name).exists()
    edit(run / "run.json", created="another time")
    with pytest.raises(ValueError, match=r"has a different run than .*--out"):
        archive(run, tmp_path / "out")
    with pytest.raises(ValueError, match="out must be another folder"):
        archive(run, tmp_path)


def test_a_damaged_result_is_not_archived(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "runs" / "damaged")
    (run / "results" / "eval.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"eval\.safetensors does not match"):
        archive(run, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_an_evaluation_without_sums_is_refused(runs, tmp_path):
    """Those of an earlier version: without their tokens nothing would be left."""
    run = shutil.copytree(runs[0], tmp_path / "runs" / "early")
    file = run / "results" / "eval.json"
    arrays = load_file(file.with_suffix(".safetensors"))
    Evaluation.load(file).save_with(file, {name: arrays[name] for name in ("losses", "ends")})
    with pytest.raises(ValueError, match=r"eval\.safetensors has no document_counts and no document_sums"):
        archive(run, tmp_path / "out")


def test_the_command(runs, tmp_path, capsys):
    main(["archive", *map(str, runs[:2]), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == [str(tmp_path / "out" / run.name) for run in runs[:2]]
    assert all(json.loads((tmp_path / "out" / run.name / "run.json").read_text()) for run in runs[:2])
    with pytest.raises(SystemExit):
        main(["archive", "--out", str(tmp_path)])
