"""Verdict, tables and figures are about the same runs, whatever else lies in the folder."""

from dataclasses import replace

import numpy as np
import pytest

from lerope.report.collect import Bundle, collect
from lerope.report.groups import main_study
from lerope.report.payload import payload
from lerope.report.tables import tables
from tests.report.example import TEXT, _Run

LOSSES = {"rope": 3.4, "lerope": 3.39}
OTHER = "f" * 64
"""Another corpus."""


@pytest.fixture
def folder(tmp_path):
    """A measured pair on one corpus; on another an evaluated pair, and a longer run that was stopped."""
    for encoding, loss in LOSSES.items():
        own = _Run(tmp_path / f"a-{encoding}", "19M", encoding, 42, data=TEXT)
        own.write(loss)
        own.evaluation(loss)
        own.extrapolation(loss)
        own.bands()
        own.frequencies()
        other = _Run(tmp_path / "demo40" / encoding, "19M", encoding, 42, data=OTHER)
        other.write(loss + 1)
        other.evaluation(loss + 1)
        other.frequencies()
        other.bands()
    stopped = _Run(tmp_path / "demo" / "rope", "19M", "rope", 42, data=OTHER)
    stopped.recipe = replace(stopped.recipe, steps=3000)
    stopped.run = replace(stopped.run, finished=False, identity=replace(stopped.run.identity, recipe=stopped.recipe))
    stopped.write(4.4)
    (stopped.path / "results" / "training.json").unlink()
    return tmp_path


def own_alone(folder) -> Bundle:
    return collect([folder / f"a-{encoding}" for encoding in LOSSES])


def test_a_stopped_run_on_another_corpus_moves_no_verdict_and_no_table(folder):
    bundle, alone = collect([folder]), own_alone(folder)
    assert [files.run.path for files in main_study(bundle)] == [files.run.path for files in main_study(alone)]
    assert payload(bundle)["verdict"] == payload(alone)["verdict"]
    of_all_runs = {"documents", "slowest-bands"}
    wanted = {table.name: table.rows for table in tables(alone) if table.name not in of_all_runs}
    assert {table.name: table.rows for table in tables(bundle) if table.name in wanted} == wanted


@pytest.mark.parametrize("name", ["band-contributions", "query-key-norms", "extrapolation", "training", "wavelengths"])
def test_figures_draw_the_runs_of_the_verdict(folder, name):
    pytest.importorskip("matplotlib")
    from tests.report.test_figures import BY_NAME

    got, wanted = (
        [
            values
            for axes in BY_NAME[name].draw(bundle).axes
            for values in [line.get_xydata() for line in axes.lines] + [image.get_array() for image in axes.images]
        ]
        for bundle in (collect([folder]), own_alone(folder))
    )
    assert len(got) == len(wanted) > 0
    for mine, alone in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, alone)


def test_a_measured_run_without_an_evaluation_stands_beside_its_pair_and_one_of_another_recipe_does_not(folder):
    frozen = _Run(folder / "prope", "19M", "prope,p=0.75", 42, data=TEXT)
    frozen.write(3.4)
    other = _Run(folder / "other", "19M", "prope,p=0.75", 43, data=TEXT, learning_rate_index=12)
    other.write(3.4)
    names = [files.run.name for files in main_study(collect([folder]))]
    assert names == ["a-rope", "prope", "a-lerope"]
