"""lerope multipliers, as a user calls it."""

import json

import pytest

from lerope.cli.main import main

CSV = "rung,rope,lerope\n52M,3.4093,3.3995\n217M,2.9035,2.8978\n608M,2.6304,2.6253\n1.34B,2.4488,2.4457\n"


def complaint(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["multipliers", *map(str, args)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_paper_s_tables_reproduce_but_for_one_entry(capsys):
    main(["multipliers", "--paper"])
    text = capsys.readouterr().out
    assert "60 of 61 entries reproduce to their last printed digit." in text
    assert text.count("differs") == 1
    main(["multipliers", "--paper", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["table"], row["name"]) for row in rows if not row["reproduces"]] == [("floor held at 0", "rmse")]


def test_a_table_of_losses(tmp_path, capsys):
    (tmp_path / "losses.csv").write_text(CSV)
    main(["multipliers", str(tmp_path / "losses.csv")])
    text = capsys.readouterr().out
    assert "piecewise" in text
    assert "hinge" in text
    main(["multipliers", str(tmp_path / "losses.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["multipliers"]["lerope"][1] == pytest.approx(1.04, abs=0.01)
    assert set(found["fits"]) == {"fitted", "E = 0", "E = 0.3", "E = 0.5", "E = 0.8", "E = 1", "shared E", "hinge"}
    (tmp_path / "two.csv").write_text("compute,a,b\n1e18,3.0,2.9\n1e19,2.5,2.45\n")
    main(["multipliers", str(tmp_path / "two.csv"), "--baseline", "a", "--json"])
    assert json.loads(capsys.readouterr().out)["fits"] == {}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist; name a CSV file of losses"),
        ("", "must have a column rung or compute and two methods or more"),
        ("rung,rope\n52M,3\n", "two methods or more; got ['rung', 'rope']"),
        ("size,rope,lerope\n52M,3,2\n", "must have a column rung or compute"),
        ("rung,rope,lerope\n53M,3,2\n", "line 2: rung must be one of 19M, 52M"),
        ("rung,rope,lerope\n52M,3,\n", "line 2: could not convert string to float: ''; every cell must be filled"),
        ("rung,rope,lerope\n52M,3,2\n", "compute must be two or more different positive numbers"),
        ("rung,a,b\n52M,3,2\n217M,2,1\n", "baseline must be one of a, b; got 'rope'"),
    ],
)
def test_bad_tables_are_one_sentence(tmp_path, capsys, content, sentence):
    path = tmp_path / "losses.csv"
    if content is not None:
        path.write_text(content)
    assert sentence in complaint(capsys, path)


def test_either_a_file_or_the_paper(tmp_path, capsys):
    assert "give either a FILE of losses or --paper" in complaint(capsys)
    assert "give either" in complaint(capsys, tmp_path, "--paper")
