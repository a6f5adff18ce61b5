"""lerope presets, as a user calls it."""

import json
import subprocess
import sys

import pytest

from lerope.cli.main import main
from lerope.core import preset as presets
from lerope.core.preset import Gain, read_preset
from tests.made_presets import made_preset, save_preset
from tests.scaling.test_presets import write_learned, write_pairs

GAIN = Gain(
    text=["my-text/"],
    train_length=2048,
    head_dim=64,
    rung="52M",
    seeds=[45],
    held_out=True,
    gain=0.0123,
    method="preset:mine",
    captured=0.636,
)


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "FOLDER", tmp_path / "package")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "package"


def call(capsys, *args):
    main(["presets", *map(str, args)])
    return capsys.readouterr().out


def refused(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["presets", *map(str, args)])
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def test_without_any(capsys):
    assert call(capsys) == (
        "This package has no presets yet. Make one from your own runs: lerope presets make RUN... --name NAME\n"
    )
    assert json.loads(call(capsys, "--json")) == []


def test_the_list(capsys, package):
    save_preset(package, 2048, good_for="English text.", gains=[GAIN])
    save_preset(package, 2048, name="other", good_for="Code.")
    lines = call(capsys).splitlines()
    assert lines == call(capsys, "list").splitlines()
    assert lines[0].startswith("mine  ████")
    assert lines[0].endswith("▁▁▁  English text.")
    assert lines[1] == (
        "  52M, train length 2,048, head_dim 64, my-text/, seed 45, held out: learned frequencies gain 0.0123 nats, "
        "preset:mine keeps 63.6% of it"
    )
    assert lines[3] == "  its gain is not measured"
    found = json.loads(call(capsys, "--json"))
    assert found[1] == made_preset(2048, name="other", good_for="Code.").as_dict()


def test_show(capsys, package, tmp_path):
    path = save_preset(package, 2048, 8192)
    text = call(capsys, "show", "mine")
    assert text == call(capsys, "show", path)
    assert "mine, version 1" in text
    assert "train length 8,192: 52M, seeds 42, 43, 4,000 steps" in text
    rows = [line.split() for line in text.splitlines()]
    profile = made_preset(2048).profiles[0]
    assert ["0", "0.000", "6.28", f"{6.2832 * 2.718281828 ** -profile.log_scales[0]:.2f}", "±1.0%"] in [
        row[:5] for row in rows
    ]
    assert sum(row[0].isdigit() for row in rows if row) == 32
    assert json.loads(call(capsys, "show", "mine", "--json")) == made_preset(2048, 8192).as_dict()


def test_show_for_a_model(capsys, package, tmp_path):
    save_preset(package, 2048, 8192)
    text = call(capsys, "show", "mine", "--head-dim", 128, "--train-length", 16384, "--out", tmp_path / "a.svg")
    rows = [line.split() for line in text.splitlines()]
    assert sum(row[0].isdigit() for row in rows if row) == 64
    assert "note: resampled from head_dim 64 to 128." in text
    assert "note: train length 16,384 is outside of what mine was learned at" in text
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    found = json.loads(call(capsys, "show", "mine", "--train-length", 2048, "--json"))["resampled"]
    assert found["frequencies"] == made_preset(2048, 8192).resample(64, 2048).frequencies


def test_make(capsys, tmp_path):
    runs = write_pairs(tmp_path / "runs", (42, 43), {"rope": 3.0, "lerope": 2.99, "fixed": 2.994})
    text = call(capsys, "make", *runs, "--name", "mine", "--out", tmp_path / "out")
    preset = read_preset(tmp_path / "out" / "mine.json")
    assert preset.version == 1
    assert "frozen keeps 60.0% of it" in text
    assert "note: train length 1,000: no dominant band is known" in text
    assert text.splitlines()[-1].endswith(f"train with --encoding preset:{tmp_path / 'out' / 'mine.json'}")
    again = call(capsys, "make", *runs, "--name", "mine", "--out", tmp_path / "out", "--good-for", "This.", "--json")
    found = json.loads(again)
    assert (found["version"], found["good_for"], len(found["notes"])) == (2, "This.", 1)


def test_bad_input_is_one_sentence(capsys, tmp_path):
    assert "preset 'english' is unknown; the package has none yet" in refused(capsys, "show", "english")
    save_preset(tmp_path)
    assert "must end with one of" in refused(capsys, "show", tmp_path / "mine.json", "--out", tmp_path / "a.txt")
    assert "head_dim must be even" in refused(capsys, "show", tmp_path / "mine.json", "--head-dim", 7)
    assert "head_dim must be" in refused(capsys, "show", tmp_path / "mine.json", "--head-dim", 0)
    run = write_learned(tmp_path / "a")
    assert "name must be letters" in refused(capsys, "make", run, "--name", "a b")
    assert "make no preset together: data" in refused(
        capsys, "make", run, write_learned(tmp_path / "b", 43, data="e" * 64), "--name", "mine"
    )


def test_no_torch_is_needed(package):
    code = (
        "import sys; from lerope.cli.main import main; main(['presets']); import lerope.scaling.presets, "
        "lerope.report.figures.preset; print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "False"
