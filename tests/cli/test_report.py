"""lerope report and lerope watch as users call them."""

import importlib.util
import json
import math
import re
import signal
import subprocess
import sys
import urllib.request
from functools import partial

import pytest

from lerope.cli.main import main
from tests.report.example import _Run


@pytest.fixture
def runs(tmp_path):
    """Two small runs with an evaluation."""
    for encoding, loss in (("rope", 3.4), ("lerope", 3.39)):
        run = _Run(tmp_path / "runs" / f"19M-{encoding}-42", "19M", encoding, 42)
        run.write(loss)
        run.evaluation(loss)
        run.frequencies()
    return tmp_path / "runs"


def refused(capsys, *args) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def embedded_data(page) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    return json.loads(found)


def test_report_writes_a_page_and_tables_and_says_where(runs, tmp_path, capsys):
    out = tmp_path / "my report"
    main(["report", str(runs), "--out", str(out), "--no-figures"])
    data = embedded_data(out / "index.html")
    assert [run["id"] for run in data["runs"]] == ["19M-rope-42", "19M-lerope-42"]
    assert data["verdict"]["text"].startswith("LeRoPE is 0.01")
    assert data["files"]
    assert all((out / file).is_file() for file in data["files"])
    assert {file.split("/")[0] for file in data["files"]} == {"tables"}
    assert not (out / "figures").exists()
    said = capsys.readouterr().out
    assert said.rstrip().endswith(f"file://{out}/index.html".replace(" ", "%20"))


def test_figures_are_drawn_and_linked_and_those_without_inputs_are_not(runs, tmp_path, monkeypatch, capsys):
    from lerope.report.figures import Written
    from lerope.report.style import Missing

    drawn = []

    def write_figures(bundle, folder, progress):
        progress("one", 1, 1)
        folder.mkdir()
        (folder / "one.svg").write_text("<svg/>")
        drawn.append(len(bundle.runs))
        return Written([folder / "one.svg"], {"code": Missing("There is no run on code", "lerope train")})

    monkeypatch.setattr("lerope.report.figures.write_figures", write_figures)
    main(["report", str(runs / "19M-lerope-42"), "--out", str(tmp_path / "out")])
    assert drawn == [1]
    data = embedded_data(tmp_path / "out" / "index.html")
    assert "figures/one.svg" in data["files"]
    assert data["missing"] == [{"name": "code", "text": "There is no run on code", "command": "lerope train"}]
    assert "not drawn, code: There is no run on code: lerope train" in capsys.readouterr().out


@pytest.mark.parametrize(
    "encoding", ["lerope,rotary_dim=32", pytest.param("runs/other/model/frequencies.json", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "trained"])
def test_runs_with_fewer_bands_than_half_the_head(encoding, analyzed, tmp_path, capsys):
    """Learned prefix-partial rotary, and frozen frequencies of it, beside a RoPE run of all bands."""
    pytest.importorskip("matplotlib")
    for name, bands in (("rope", 32), (encoding, 16)):
        run = _Run(tmp_path / "runs" / f"19M-{len(name)}", "19M", name, 42, num_bands=bands)
        run.write(3.4)
        if analyzed:
            run.frequencies()
            run.bands()
            run.ablation(3.4)
            run.phasors(3.4)
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    data = embedded_data(tmp_path / "out" / "index.html")
    (found,) = [run for run in data["runs"] if run["method"] != "rope"]
    assert len(found["frequencies"]["rope"]) == len(found["frequencies"]["wavelengths"][-1]) == 16
    assert found["frequencies"]["rope"][-1] == pytest.approx(2 * math.pi * 1e4 ** (15 / 16), rel=1e-4)
    assert not [note for note in data["notes"] if "error" in note.lower()]
    names = {file["name"] for file in data["missing"]}
    assert ("gradient-phasors" in names) == (not analyzed)


def test_what_commands_leave_for_themselves_is_no_result(runs, tmp_path, capsys):
    """A study of the ladder keeps .measured.json among results."""
    (runs / "19M-rope-42" / "results" / ".measured.json").write_text('{"kind": "nothing"}')
    main(["report", str(runs), "--out", str(tmp_path / "out"), "--no-figures"])
    assert "measured" not in capsys.readouterr().out
    (runs / "19M-rope-42" / "results" / "measured.json").write_text('{"kind": "nothing"}')
    main(["report", str(runs), "--out", str(tmp_path / "out"), "--no-figures"])
    assert "measured.json is not a result file" in capsys.readouterr().out


def test_arrays_that_are_not_those_of_their_result_are_named(runs, tmp_path, capsys):
    (runs / "19M-rope-42" / "results" / "frequencies.safetensors").write_bytes(b"no")
    main(["report", str(runs), "--out", str(tmp_path / "out"), "--no-figures"])
    said = capsys.readouterr().out
    assert "frequencies.safetensors does not match frequencies.json" in said


def test_without_matplotlib_there_is_a_page_and_a_sentence(runs, tmp_path, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    main(["report", str(runs), "--out", str(tmp_path / "out")])
    assert "pip install 'matplotlib" in capsys.readouterr().out
    assert len(embedded_data(tmp_path / "out" / "index.html")["runs"]) == 2


def test_an_earlier_report_is_written_over_and_nothing_else(runs, tmp_path, capsys):
    out = tmp_path / "out"
    main(["report", str(runs), "--out", str(out), "--no-figures"])
    main(["report", str(runs / "19M-rope-42"), "--out", str(out), "--no-figures"])
    assert len(embedded_data(out / "index.html")["runs"]) == 1
    capsys.readouterr()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "index.html").write_text("<html>my own page</html>")
    assert "out must be a new or empty folder" in refused(capsys, "report", runs, "--out", mine, "--no-figures")
    assert (mine / "index.html").read_text() == "<html>my own page</html>"
    assert "out must be a new or empty folder" in refused(capsys, "report", runs, "--out", runs / "19M-rope-42")
    assert "out must be a new or empty folder" in refused(
        capsys, "report", runs, "--out", runs / "19M-rope-42" / "run.json"
    )


@pytest.mark.parametrize("command", ["report", "watch"])
def test_what_holds_no_run_is_one_sentence(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "holds no run" in refused(capsys, command, tmp_path)
    assert "name at least one run" in refused(capsys, command)
    assert list(tmp_path.iterdir()) == []


def test_watch_serves_until_it_is_interrupted(runs):
    command = [sys.executable, "-m", "lerope", "watch", str(runs), "--port", "0"]
    # A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heeding)
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        with urllib.request.urlopen(address + "data.json", timeout=30) as answer:
            assert [run["id"] for run in json.load(answer)["runs"]] == ["19M-rope-42", "19M-lerope-42"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == ""


def test_a_damaged_run_alone_is_named(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"identity": ')
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "run.json is not" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
