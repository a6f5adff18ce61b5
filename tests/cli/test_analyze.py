"""`lerope analyze` as people type it."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

from lerope.cli.main import main
from lerope.results import BandContribution, Bands
from tests.data.corpora import write_corpus
from tests.train.runs import tiny_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """RoPE, LeRoPE and NoPE on the same data."""
    folder = tmp_path_factory.mktemp("runs")
    lengths = random.Random(3)
    splits = {"train": [lengths.randint(5, 90) for _ in range(60)], "validation": [40, 50, 20, 60]}
    data = write_corpus(folder / "data", splits)
    return {name: tiny_run(data, folder / name, steps=4, encoding=name).path for name in ("rope", "lerope", "nope")}


@pytest.fixture
def copies(runs, tmp_path):
    return {name: shutil.copytree(path, tmp_path / name) for name, path in runs.items()}


def printed(capsys, *args) -> str:
    main(["analyze", *map(str, args), "--device", "cpu"])
    return capsys.readouterr().out


def test_tables_and_sentences(copies, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, copies["rope"], copies["lerope"], "--rows", "2", "--phasor-rows", "1")
    assert max(map(len, out.splitlines())) <= 80
    for words in ("RoPE's", "RMS in", "coherence", "No band is suppressed", "Phasors add up", "Wavelengths, tokens"):
        assert words in out, words
    for name in ("frequencies", "bands", "phasors"):
        assert (copies["lerope"] / "results" / f"{name}.json").is_file()
    assert not (copies["lerope"] / "results" / "ablation.json").exists()


def test_json_holds_what_the_files_hold(copies, capsys, monkeypatch):
    monkeypatch.setattr("lerope.core.terminal._LINE_SECONDS", -1.0)  # progress at every chance, beside the JSON
    out = printed(capsys, copies["lerope"], "--parts", "bands", "ablation", "--max-tokens", "60", "--json")
    (found,) = json.loads(out)
    assert list(found) == ["bands", "ablation"]
    for part, content in found.items():
        assert json.loads((copies["lerope"] / "results" / f"{part}.json").read_text()) == content


def test_leave_one_out_has_two_columns(copies, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, copies["lerope"], "--parts", "ablation", "--max-tokens", "60")
    assert "zeroed" in out
    assert "not rotated" in out
    assert "rises most" in out
    assert max(map(len, out.splitlines())) <= 80


def test_nope_has_no_band(copies, capsys):
    out = printed(capsys, copies["nope"], "--rows", "2", "--phasor-rows", "1")
    assert "No band" in out
    assert "∞" in out


def planted(path, band: int, wavelength: float, dominance: float) -> None:
    """A result of the kind that a long training leaves, in the place of this run's own."""
    found = Bands.load(path / "results" / "bands.json")
    rows = [
        BandContribution(**{**row, "rms": dominance if row["band"] == band else 1.0, "wavelength": wavelength})
        for row in found.bands
    ]
    changed = replace(found, dominant_band=band, dominant_wavelength=wavelength, dominance=dominance, bands=rows)
    changed.save(path / "results" / "bands.json")


def test_dominant_bands_and_both_ratios(copies, capsys, monkeypatch):
    """lambda / L of 2 and 3 at equal lengths: mean and slope 2.5, sd 0.707."""
    monkeypatch.setenv("COLUMNS", "250")
    parts = ("--parts", "bands", "--rows", "2")
    other = shutil.copytree(copies["lerope"], copies["lerope"].with_name("other"))
    printed(capsys, copies["rope"], copies["lerope"], other, *parts)
    planted(copies["rope"], 4, 640.0, 9.0)  # fixed frequencies say nothing about what is learned
    planted(other, 5, 64.0, 4.0)
    planted(copies["lerope"], 6, 96.0, 3.0)
    out = printed(capsys, copies["rope"], other, copies["lerope"], *parts)
    assert "Band 5 carries position: wavelength 64.0 tokens, 2.00 train lengths; its RMS is 4.0 times the next." in out
    assert "Band 6 carries position: wavelength 96.0 tokens, 3.00 train lengths" in out
    assert "over 2 runs with one set of learned frequencies where a band stands out: mean 2.500 ± 0.707" in out
    assert "slope through the origin 2.500, where one run has 50% of the weight" in out
    planted(copies["lerope"], 6, 96.0, 1.5)
    out = printed(capsys, copies["rope"], other, copies["lerope"], *parts)
    assert "No band stands out: the largest RMS, that of band 6, is only 1.50 times the next." in out
    assert "slope through the origin" not in out


def test_names_are_not_markup(copies, capsys):
    path = copies["lerope"].rename(copies["lerope"].with_name("[red]x"))
    out = printed(capsys, path, "--parts", "frequencies")
    assert "[red]x" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "name at least one run"),
        (("--rows", "0"), "rows must be a positive whole number; got 0"),
        (("--layer", "9"), "layer must be 0 to 1; got 9"),
        (("--max-tokens", "0"), "max_tokens must be a positive whole number"),
    ],
)
def test_bad_input_is_one_sentence(copies, capsys, args, words):
    given = [copies["rope"], *args] if args else []
    with pytest.raises(SystemExit) as stop:
        printed(capsys, *given)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_a_folder_that_is_nothing_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        printed(capsys, tmp_path)
    assert stop.value.code == 2
    assert "run.json does not exist" in capsys.readouterr().err


def test_the_model_within_a_run_leads_to_the_run(copies, capsys):
    with pytest.raises(SystemExit) as stop:
        printed(capsys, copies["rope"] / "model")
    assert stop.value.code == 2
    assert f"name the run, {copies['rope']}" in capsys.readouterr().err


def test_a_hugging_face_folder_has_bands(tmp_path, capsys):
    pytest.importorskip("transformers")
    from tests.analyze.test_huggingface import with_tokenizer, write

    folder = with_tokenizer(write(tmp_path / "tiny-llama", "llama"))
    (tmp_path / "t.txt").write_text(" ".join(np.random.default_rng(0).choice(list("abcdefgh"), 150)))
    out = printed(capsys, folder, "--text", tmp_path / "t.txt", "--length", "20", "--rows", "3")
    assert "tiny-llama" in out
    assert "RMS in" in out
    assert (folder / "results" / "bands.json").is_file()
