"""Tables have our values and the paper's, and text stays text in every format."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest

from lerope.report.collect import Bundle, RunFiles, collect
from lerope.report.tables import MAKERS, Column, Table, tables, write_tables
from lerope.report.tables.lengths import dominant_bands
from lerope.report.tables.losses import seeds
from lerope.results import Bands
from tests.report.example import LENGTH, LOSSES, ODD_NAME, _Run


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


def test_differences_have_the_interval_that_the_verdict_states(bundle, found):
    table = found["differences"]
    (effect,) = [each for each in bundle.comparison.effects if (each["rung"], each["method"]) == ("52M", "lerope")]
    assert cell(table, ("52M", "LeRoPE"), "difference") == effect["difference"] == pytest.approx(-0.0105, abs=5e-4)
    assert cell(table, ("52M", "LeRoPE"), "95 % from") == effect["both_low"]
    assert cell(table, ("52M", "LeRoPE"), "more than noise") == "yes"
    assert cell(table, ("217M", "LeRoPE"), "to") < 0
    assert cell(table, ("217M", "LeRoPE"), "more than noise") == "one seed"


def test_the_gain_of_frozen_frequencies(found):
    table = found["gain-captured"]
    assert "LeRoPE has over RoPE" in table.caption
    # (3.4093 - 3.4030) / (3.4093 - 3.3995)
    assert cell(table, ("Frozen", "ours"), "gain in loss, %") == pytest.approx(64.29, abs=0.2)
    assert cell(table, ("Frozen", "paper"), "gain in perplexity, %") == "63.6"


def test_the_gain_stands_between_rope_and_lerope_with_perplexities(found):
    table = found["gain-captured"]
    assert "LeRoPE has over RoPE" in table.caption
    assert [(row[0], row[4], row[5]) for row in table.rows if row[1] == "paper"] == [
        ("RoPE", "18.2377", "0"),
        ("p-RoPE", "18.2269", "10.4"),
        ("Frozen", "18.1714", "63.6"),
        ("LeRoPE", "18.1335", "100"),
    ]
    ours = [row for row in table.rows if row[1:3] == ["ours", "52M"]]
    assert [row[0] for row in ours] == ["RoPE", "RoPE, base 500,000", "p-RoPE", "Frozen", "LeRoPE"]
    assert [row[5] for row in (ours[0], ours[-1])] == [0, 100]
    # Over seed 42 alone, which is the one that all of them have.
    losses = [LOSSES["52M", name, 42] for name in ("rope", "rope,base=500000", "prope,p=0.75")]
    assert [row[4] for row in ours[:3]] == pytest.approx([math.exp(loss) for loss in losses], rel=1e-5)
    assert ours[-1][4] == pytest.approx(math.exp(LOSSES["52M", "lerope", 42]), rel=1e-5)


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
    assert ours[6:] == pytest.approx([3.41013, 0.00085, 0.010533, 0.000702], abs=1e-5)
    assert row(table, "217M", "LeRoPE", "paper")[3:] == ["2.8978", "2.8963", "2.9001", "2.8981", "0.0019", None, None]
    assert row(table, "217M", "RoPE", "paper")[-2:] == ["0.0066", "0.0019"]


def test_how_many_of_the_slowest_bands_can_go(bundle, found):
    table = found["slowest-bands"]
    (files,) = [files for files in bundle.runs if files.run.name == "52M-lerope-42" and "slowest" in files.results]
    removals = [row for row in files.results["slowest"].removals if row["meaning"] == "frequency"]
    start = ("52M-lerope-42", "52M", 32)
    (own,) = [row for row in table.rows if tuple(row[:3]) == start and row[4] == "their turning"]
    few, most = own[5], own[8]
    assert 0 < few < most <= 32
    assert removals[few - 1]["increase"] <= 0.001 < removals[few]["increase"]
    assert own[9] == removals[-1]["increase"]
    assert own[3] == 32 - files.results["frequencies"].sets[0]["suppressed_from"]


def test_ablations_are_held_against_rope(found):
    table = found["ablations"]
    assert row(table, "RoPE, base 500,000")[2] == pytest.approx(3.4049 - 3.4093, abs=1e-5)
    assert row(table, "RoPE, base 500,000")[3:] == ["2.8996", "-0.0039"]
    assert row(table, "LeRoPE, per layer and head")[1:] == [None, None, "2.8996", "-0.0039"]
    assert row(table, "RoPE")[2] is None


def test_dominant_bands_of_ours_and_both_estimators_of_the_papers(found):
    table = found["dominant-bands"]
    assert cell(table, ("52M-lerope-42",), "L") == LENGTH
    assert cell(table, ("52M-lerope-42",), "wavelength / L") == pytest.approx(2.1, abs=0.1)
    assert cell(table, ("52M-lerope-42-length2048",), "wavelength, tokens") == pytest.approx(4300, abs=200)
    assert cell(table, ("52M-lerope-42",), "counted") == "yes"
    assert cell(table, (ODD_NAME,), "counted") == "no: frequencies are not learned"
    assert cell(table, ("paper, slope through the origin",), "wavelength / L") == pytest.approx(2.205, abs=5e-4)
    assert cell(table, ("paper, mean of 6 runs",), "wavelength / L") == pytest.approx(2.138, abs=5e-4)


def test_learning_rates_ladder_extrapolation_code_and_recipe(found):
    assert row(found["learning-rates"], "52M", "LeRoPE", "ours")[3:6] == [2**-6.5, 13, 5]
    assert row(found["learning-rates"], "2.52B", "all", "paper")[3] == "3.45e-4"
    sizes = row(found["ladder"], "608M")
    assert sizes[1:5] == [18, 24, 1536, 6144]
    assert sizes[5:9] == [pytest.approx(509.61, abs=0.005), "509.61M", pytest.approx(607.91, abs=0.005), "607.91M"]
    for documents in ("all", "long alone"):
        beyond = row(found["extrapolation"], "LeRoPE", "naive", "ours, 52M", documents)
        assert beyond[6] > 2 * beyond[5]
    # The paper's weights of both parts say that its columns are of all documents.
    printed = row(found["extrapolation"], "LeRoPE", "YaRN", "paper, 2.52B")
    assert printed[3:] == ["all", None, "10.106", "8.776", "10.005"]
    assert row(found["code"], "LeRoPE", "ours, 52M")[3:5] == pytest.approx([1.2398, -0.0103])
    assert row(found["code"], "LeRoPE", "paper, 217M")[3:] == ["1.2398", "-0.0104", "5,250"]
    assert row(found["recipe"], "batch_tokens") == ["batch_tokens", "131,072", "131,072"]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_without_runs_the_papers_values_stand_alone(make):
    table = make(Bundle([]))
    assert bool(table.rows) == (table.name not in ("differences", "documents", "gap-by-position", "slowest-bands"))
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
    table = seeds(Bundle(runs, bundle.comparison))
    assert cell(table, ("52M", "LeRoPE", "ours"), "seed 43") == pytest.approx(3.4004, abs=1e-5)
    assert cell(table, ("52M", "LeRoPE", "ours"), "seed 44") is None


def test_only_runs_with_a_dominant_band_of_one_set_count_in_the_ratio(bundle, tmp_path):
    """Others are listed and marked: no band stands out, or layers have frequencies of their own."""
    chosen = [files for files in bundle.runs if files.run.name in ("19M-lerope-42", "52M-lerope-42")]
    assert len(chosen) == 4 - 1  # one of them on code
    runs = [files for files in chosen if files.run.path.parent.name != "code"]
    even = replace(runs[0].result(Bands), dominance=1.9)
    runs[0] = RunFiles(runs[0].run, {**runs[0].results, "bands": even})
    own = _Run(tmp_path / "own", "19M", "lerope,sharing=layer", 42)
    own.write(3.9)
    own.frequencies()
    own.bands()
    table = dominant_bands(Bundle([*runs, *collect([own.path]).runs]))
    assert {row[0]: row[-1] for row in table.rows if "paper" not in row[0] and "ours" not in row[0]} == {
        "19M-lerope-42": "no: no band stands out",
        "52M-lerope-42": "yes",
        "own": "no: per layer",
    }
    assert cell(table, ("ours, mean of 1 runs",), "wavelength / L") == pytest.approx(
        runs[1].result(Bands).dominant_wavelength / LENGTH
    )


def test_the_joint_fit_has_every_method(found):
    table = found["fits"]
    ours = [row for row in table.rows if row[1:3] == ["shared E", "ours"]]
    assert [row[0] for row in ours] == ["RoPE", "p-RoPE", "LeRoPE", "all"]
    assert len({row[3] for row in ours[:3]}) == 1
    assert ours[-1][6] == pytest.approx(math.sqrt(sum(row[6] ** 2 for row in ours[:3]) / 3))
    assert row(table, "all", "shared E", "paper")[3:] == ["0.643", None, "0.0573 to 0.0576", "4.7e-4"]


def test_texts_from_outside_are_named(found):
    rows = [row for row in found["documents"].rows if row[1] == "52M-lerope-42"]
    assert [row[0] for row in rows] == ["essay.txt, windows of 512 tokens", "validation, windows of 512 tokens"]
    assert rows[0][4] == pytest.approx(LOSSES["52M", "lerope", 42] + 0.3, abs=1e-5)
