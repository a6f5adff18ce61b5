"""lerope multipliers, as a user calls it."""

import json

import pytest

from lerope.cli.main import main
from lerope.results import Multipliers
from tests.scaling.run_files import write_study

CSV = "rung,rope,lerope\n52M,3.4093,3.3995\n217M,2.9035,2.8978\n608M,2.6304,2.6253\n1.34B,2.4488,2.4457\n"


def complaint(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["multipliers", *map(str, args)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_paper_s_tables_are_recomputed_and_marked(capsys):
    main(["multipliers", "--paper"])
    text = capsys.readouterr().out
    assert "109 of 128 entries reproduce to their last printed digit" in text
    assert "16 lie within the rounding of their inputs, 3 differ." in text
    assert text.count("differs") == 3
    assert text.count("within rounding") == 16
    main(["multipliers", "--paper", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["table"], row["name"]) for row in rows if row["status"] == "differs"] == [
        ("floor held at 0", "rmse"),
        ("dominant bands", "wavelength / length, mean of runs"),
        ("gain captured, %", "Fixed LeRoPE, in the text"),
    ]


def multipliers_of(found, method, estimator="piecewise in ln C"):
    points = found["multipliers"]
    return [p["multiplier"] for p in points if (p["method"], p["estimator"]) == (method, estimator)]


def test_a_table_of_losses(tmp_path, capsys):
    (tmp_path / "losses.csv").write_text(CSV)
    main(["multipliers", str(tmp_path / "losses.csv")])
    text = capsys.readouterr().out
    assert "piecewise" in text
    assert "hinge" in text
    assert "1.34B" in text
    main(["multipliers", str(tmp_path / "losses.csv"), "--json", "--out", str(tmp_path / "found.json")])
    found = json.loads(capsys.readouterr().out)
    assert found == Multipliers.load(tmp_path / "found.json").as_dict()
    assert multipliers_of(found, "lerope")[1] == pytest.approx(1.04, abs=0.01)
    floors = ["E = 0", "E = 0.3", "E = 0.5", "E = 0.8", "E = 1"]
    assert list(dict.fromkeys(fit["estimator"] for fit in found["fits"])) == ["fitted", *floors, "shared E", "hinge"]
    assert found["settings"] == {"table": "losses.csv"}
    (tmp_path / "two.csv").write_text("compute,a,b\n1e18,3.0,2.9\n1e19,2.5,2.45\n")
    main(["multipliers", str(tmp_path / "two.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], found["fits"]) == ("a", [])


def test_the_joint_fit_has_every_method_and_its_error(tmp_path, capsys):
    (tmp_path / "losses.csv").write_text(CSV)
    main(["multipliers", str(tmp_path / "losses.csv"), "--json"])
    fits = [fit for fit in json.loads(capsys.readouterr().out)["fits"] if fit["estimator"] == "shared E"]
    by_method = {}
    for fit in fits:
        by_method.setdefault(fit["method"], {})[fit["parameter"]] = fit["value"]
    assert list(by_method) == ["rope", "lerope", None]
    assert by_method["rope"]["E"] == by_method["lerope"]["E"]
    assert by_method["rope"]["alpha"] != by_method["lerope"]["alpha"]
    both = [by_method[name]["rmse"] ** 2 for name in ("rope", "lerope")]
    assert by_method[None] == {"rmse": pytest.approx((sum(both) / 2) ** 0.5)}
    main(["multipliers", str(tmp_path / "losses.csv")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name in ("rope", "lerope"):
        values = by_method[name]
        wanted = [name, "shared", "E", f"{values['E']:.4g}", f"{values['A']:.4g}", f"{values['alpha']:.5f}"]
        assert wanted in [row[:6] for row in rows]
    assert ["all", "shared", "E", f"{by_method[None]['rmse']:.2e}"] in rows


def test_a_baseline_that_does_not_fall_costs_what_needs_it_to_and_no_more(tmp_path, capsys):
    (tmp_path / "losses.csv").write_text(CSV.replace("2.6304", "2.9135"))
    main(["multipliers", str(tmp_path / "losses.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert multipliers_of(found, "lerope") == []
    assert len(multipliers_of(found, "lerope", "fitted")) == len(multipliers_of(found, "lerope", "shared E")) == 4
    assert {fit["method"] for fit in found["fits"]} == {"rope", "lerope", None}
    (note,) = [note for note in found["notes"] if "piecewise" in note]
    assert note == (
        "There are no multipliers piecewise in ln C: the loss of rope does not fall with compute at every rung "
        "(3.4093, 2.9035, 2.9135, 2.4488)."
    )
    (tmp_path / "rising.csv").write_text("rung,rope,lerope\n52M,2.5,3\n217M,2.6,3\n608M,2.7,3\n1.34B,2.8,3\n")
    main(["multipliers", str(tmp_path / "rising.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["multipliers"] == []
    assert found["notes"][1].endswith("as fitted, rope gets worse with compute.")


def test_a_method_is_the_same_however_it_is_spelled(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(CSV.replace("rope,lerope", '"rope,base=1e4","prope,p=0.75"'))
    main(["multipliers", str(tmp_path / "a.csv"), "--baseline", "prope,base=10000", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "prope"
    assert {point["method"] for point in found["multipliers"]} == {"rope"}
    (tmp_path / "b.csv").write_text('rung,rope,"rope,base=1e4"\n52M,3.4,3.4\n217M,3.0,3.0\n')
    assert "must name each column once; got rung, rope, rope" in complaint(capsys, tmp_path / "b.csv")


def test_runs(tmp_path, capsys):
    losses = {("19M", "rope", 1): 4.0, ("19M", "lerope", 1): 3.99, ("52M", "rope", 1): 3.5, ("52M", "lerope", 1): 3.49}
    paths = [str(path) for path in write_study(tmp_path, losses)]
    main(["multipliers", *paths])
    assert "52M" in capsys.readouterr().out
    main(["multipliers", *paths, "--json"])
    found = json.loads(capsys.readouterr().out)
    # 16 times the compute (2 layers, 4 width squared, 2 steps) for 0.5 nats: 0.01 nats are 16^0.02.
    assert multipliers_of(found, "lerope") == pytest.approx([16**0.02] * 2, abs=1e-6)
    assert found["settings"]["evaluation"] == "eval"
    assert "prope has no run at 19M" in complaint(capsys, *paths, *write_study(tmp_path, {("52M", "prope", 1): 3.4}))
    assert "name runs of two rungs or more" in complaint(capsys, *paths[2:])
    assert "give either one FILE of losses or run directories" in complaint(capsys, *paths, tmp_path / "losses.csv")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist; name a CSV file of losses"),
        ("", "must have a column rung or compute and two methods or more"),
        ("rung,rope\n52M,3\n", "two methods or more; got ['rung', 'rope']"),
        ("size,rope,lerope\n52M,3,2\n", "must have a column rung or compute"),
        ("rung,rope,lerope\n53M,3,2\n", "line 2: rung must be one of demo, 19M, 52M"),
        ("rung,rope,lerope\n52M,3,\n", "line 2: could not convert string to float: ''; every cell must be filled"),
        ("rung,rope,lerope\n52M,3,2\n", "compute must be two or more different positive numbers"),
    ],
)
def test_bad_tables_are_one_sentence(tmp_path, capsys, content, sentence):
    path = tmp_path / "losses.csv"
    if content is not None:
        path.write_text(content)
    assert sentence in complaint(capsys, path)


def test_the_baseline_must_be_there(tmp_path, capsys):
    (tmp_path / "losses.csv").write_text(CSV)
    sentence = "baseline must be one of rope, lerope; got 'nope'"
    assert sentence in complaint(capsys, tmp_path / "losses.csv", "--baseline", "nope")


def test_either_a_file_or_the_paper(tmp_path, capsys):
    assert "--paper" in complaint(capsys)
    assert "--paper" in complaint(capsys, tmp_path, "--paper")


def test_a_table_from_a_spreadsheet(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("\ufeffrung, rope , lerope\n52M, 3.4, 3.3\n217M,3.0, 2.9\n", encoding="utf-8")
    main(["multipliers", str(tmp_path / "a.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "rope"
    assert all(each["multiplier"] > 1 for each in found["multipliers"])
    (tmp_path / "b.csv").write_text("rung,rope,lerope\n52M,3.4,0\n217M,3.0,2.9\n")
    assert "losses must be 2 positive numbers" in complaint(capsys, tmp_path / "b.csv")
    assert "--baseline" in complaint(capsys, "--paper", "--baseline", "rope")
