"""Tables have our values and the paper's, and text stays text in every format."""

import csv
import io
import math
import re

import pytest

from lerope.report.collect import Bundle, RunFiles, collect
from lerope.report.tables import MAKERS, Column, Table, tables, write_tables
from tests.report.example import LENGTH, LOSSES, ODD_NAME, write_example


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return collect(write_example(tmp_path_factory.mktemp("example") / "runs"))


@pytest.fixture(scope="module")
def found(bundle):
    return {table.name: table for table in tables(bundle)}


def row(table: Table, *start: str) -> list:
    rows = [row for row in table.rows if tuple(row[: len(start)]) == start]
    assert len(rows) == 1, (start, rows)
    return rows[0]


def cell(table: Table, start: tuple[str, ...], title: str):
    titles = [column.title for column in table.columns]
    return row(table, *start)[titles.index(title)]


def test_the_main_table_has_ours_over_the_seeds_that_all_methods_have_and_the_papers_beside_it(found):
    table = found["perplexity"]
    assert cell(table, ("LeRoPE", "ours"), "52M") == pytest.approx(math.exp(LOSSES["52M", "lerope", 42]), rel=1e-5)
    assert cell(table, ("RoPE", "ours"), "19M") == pytest.approx(math.exp(LOSSES["19M", "rope", 42]), rel=1e-5)
    assert cell(table, ("LeRoPE", "paper"), "2.52B") == "10.1387"
    assert cell(table, ("p-RoPE", "paper"), "52M") == "30.2695"
    assert cell(table, ("p-RoPE", "ours"), "2.52B") is None


def test_the_gain_of_frozen_frequencies(found):
    table = found["gain-captured"]
    # (3.4093 - 3.4030) / (3.4093 - 3.3995)
    assert cell(table, ("Frozen", "ours"), "gain in loss, %") == pytest.approx(64.29, abs=0.2)
    assert cell(table, ("Frozen", "paper"), "gain in perplexity, %") == "63.6"


def test_multipliers_by_hand_and_as_printed(found):
    table = found["compute-multipliers"]
    # Runs of the example have steps ~ layers^2, so that compute grows 8 * 4 = 32 times a rung: 19M to 52M.
    slope = (LOSSES["52M", "rope", 42] - LOSSES["19M", "rope", 42]) / math.log(32)
    expected = math.exp((LOSSES["19M", "lerope", 42] - LOSSES["19M", "rope", 42]) / slope)
    assert cell(table, ("LeRoPE", "piecewise in ln C", "ours"), "19M") == pytest.approx(expected, rel=2e-3)
    assert cell(table, ("LeRoPE", "piecewise in ln C", "paper"), "2.52B") == "1.034"
    assert cell(table, ("LeRoPE", "fitted", "paper"), "52M") == "1.064"


def test_sensitivity_has_the_floors_of_both(found):
    rows = found["sensitivity-to-floor"].rows
    assert {"0", "0.3", "0.641", "1"} <= {row[0] for row in rows if row[2] == "paper"}
    assert {"0", "0.3", "0.5"} <= {row[0] for row in rows if row[2] == "ours"}


def test_seeds_have_means_deviations_and_paired_margins(found):
    table = found["seeds"]
    ours = row(table, "52M", "RoPE", "ours")
    assert ours[3:6] == pytest.approx([3.4093, 3.4110, 3.4101], abs=1e-5)
    # Margins 0.0098, 0.0106, 0.0112.
    assert ours[6:] == pytest.approx([3.41013, 0.00085, 0.010533], abs=1e-5)
    assert row(table, "217M", "LeRoPE", "paper")[3:] == ["2.8978", "2.8963", "2.9001", "2.8981", "0.0019", None]


def test_ablations_are_held_against_rope(found):
    table = found["ablations"]
    assert row(table, "RoPE, base 500,000")[2] == pytest.approx(3.4049 - 3.4093, abs=1e-5)
    assert row(table, "RoPE, base 500,000")[3:] == ["2.8996", "-0.0039"]
    assert row(table, "LeRoPE, own to each layer and head")[1:] == [None, None, "2.8996", "-0.0039"]
    assert row(table, "RoPE")[2] is None


def test_dominant_bands_of_ours_and_both_estimators_of_the_papers(found):
    table = found["dominant-bands"]
    assert cell(table, ("52M-lerope-42",), "L") == LENGTH
    assert cell(table, ("52M-lerope-42",), "wavelength / L") == pytest.approx(2.1, abs=0.1)
    assert cell(table, ("52M-lerope-42-length2048",), "wavelength, tokens") == pytest.approx(4300, abs=200)
    assert cell(table, ("paper, slope through the origin",), "wavelength / L") == pytest.approx(2.205, abs=5e-4)
    assert cell(table, ("paper, mean of 6 runs",), "wavelength / L") == pytest.approx(2.138, abs=5e-4)


def test_learning_rates_ladder_extrapolation_code_and_recipe(found):
    assert row(found["learning-rates"], "52M", "LeRoPE", "ours")[3:6] == [2**-6.5, 13, 5]
    assert row(found["learning-rates"], "2.52B", "all", "paper")[3] == "3.45e-4"
    sizes = row(found["ladder"], "608M")
    assert sizes[1:5] == [18, 24, 1536, 6144]
    assert sizes[5:9] == [pytest.approx(509.61, abs=0.005), "509.61M", pytest.approx(607.91, abs=0.005), "607.91M"]
    beyond = row(found["extrapolation"], "LeRoPE", "naive")
    assert beyond[4] > 2 * beyond[3]
    assert row(found["extrapolation"], "LeRoPE", "YaRN", "paper, 2.52B")[3:] == ["10.106", "8.776", "10.005"]
    assert row(found["code"], "LeRoPE", "ours, 52M")[3:5] == pytest.approx([1.2398, -0.0103])
    assert row(found["code"], "LeRoPE", "paper, 217M")[3:] == ["1.2398", "-0.0104", "5,250"]
    assert row(found["recipe"], "batch_tokens") == ["batch_tokens", "131,072", "131,072"]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_without_runs_the_papers_values_stand_alone(make):
    table = make(Bundle([]))
    assert table.rows
    assert not any("ours" in str(cell) for row in table.rows for cell in row)


def test_a_run_of_any_name_stays_text(found):
    table = found["dominant-bands"]
    assert ODD_NAME in [row[0] for row in csv.reader(io.StringIO(table.csv()))]
    (line,) = [line for line in table.markdown().splitlines() if "alert" in line]
    assert not {"<", ">"} & set(line)
    assert len(re.findall(r"(?<!\\)\|", line)) == len(table.columns) + 1
    (line,) = [line for line in table.latex().splitlines() if "alert" in line]
    name = line.strip().split(" & 52M")[0]
    assert name == (
        r"\textless{}script\textgreater{}alert(1)\textless{}script\textgreater{} \& 100\%\_\$x\$ \#\{\}"
        r"\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )


def test_numbers_keep_their_digits_in_csv_and_are_rounded_for_people():
    table = Table("t", "A, b", [Column("name"), Column("x", ".2f")], [['a,"b"|c\nd', 1 / 3], ["none", None]])
    assert list(csv.reader(io.StringIO(table.csv()))) == [["name", "x"], ['a,"b"|c\nd', str(1 / 3)], ["none", ""]]
    assert table.markdown().splitlines()[2:] == [
        "| name | x |",
        "| --- | ---: |",
        '| a,"b"\\|c d | 0.33 |',
        "| none | — |",
    ]
    assert r"    a,\"b\"\textbar{}c d & 0.33 \\".replace('\\"', '"') in table.latex()


def test_files(bundle, tmp_path):
    files = write_tables(bundle, tmp_path / "tables")
    assert len(files) == 3 * len(MAKERS)
    assert {file.suffix for file in files} == {".csv", ".md", ".tex"}
    assert (tmp_path / "tables" / "perplexity.tex").read_text().count(r"\\") == 8 + 1


def test_a_validation_loss_does_not_stand_beside_evaluations(bundle):
    """Of the documents of training's validation; it may be other text, or less of it."""
    runs = [
        RunFiles(files.run, {name: result for name, result in files.results.items() if name != "eval"})
        if files.run.name == "52M-lerope-44"
        else files
        for files in bundle.runs
    ]
    seeds = {table.name: table for table in tables(Bundle(runs, bundle.comparison))}["seeds"]
    assert cell(seeds, ("52M", "LeRoPE", "ours"), "seed 43") == pytest.approx(3.4004, abs=1e-5)
    assert cell(seeds, ("52M", "LeRoPE", "ours"), "seed 44") is None
