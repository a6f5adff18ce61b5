"""Training with a preset, from one, and a preset from what was trained."""

import json

import pytest
import torch

import lerope
from lerope.core.run import read_run
from lerope.model.saved import load_model
from lerope.scaling.presets import make_preset
from tests.made_presets import save_preset
from tests.train.runs import StopAt, tiny_corpus, tiny_run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("data") / "corpus")


def test_a_run_with_a_preset_says_where_its_frequencies_come_from(data, tmp_path, capsys):
    path = save_preset(tmp_path, 16, 64)
    encoding = f"preset:{path}"
    tiny_run(data, tmp_path / "run", hooks=[StopAt(8)], encoding=encoding, steps=16)
    tiny_run(data, tmp_path / "run", encoding=encoding, steps=16)
    said = capsys.readouterr().out
    assert "note  preset:mine: resampled from head_dim 64 to 16." in said
    assert "note  preset:mine: train length 32 is interpolated between the measured 16 and 64." in said
    run = read_run(tmp_path / "run")
    assert run.recipe.encoding == encoding
    assert run.finished
    wanted = lerope.preset(path, 16, 32)
    assert run.identity.initial_frequencies == wanted.artifact().fingerprint()
    saved = json.loads((run.model / "frequencies.json").read_text())
    assert saved["train_length"] == 32
    assert saved["origin"]["source"] == "preset:mine"
    for model in (load_model(run.path), load_model(run.path, encoding)):
        assert torch.equal(model.encoding.frequencies(), wanted.frequencies())
    save_preset(tmp_path, 16, 128)
    with pytest.raises(ValueError, match="its encoding started from"):
        tiny_run(data, tmp_path / "run", encoding=encoding, steps=16)


def test_a_run_learns_from_a_preset_and_makes_the_next(data, tmp_path):
    path = save_preset(tmp_path, 32, num_bands=8)
    runs = [tmp_path / f"run-{seed}" for seed in (7, 8)]
    for run, seed in zip(runs, (7, 8), strict=True):
        tiny_run(data, run, encoding=f"lerope,init=preset:{path}", steps=4, seed=seed)
    start = torch.tensor(made_scales(path))
    saved = [json.loads((run / "model" / "frequencies.json").read_text()) for run in runs]
    for each in saved:
        learned = torch.tensor(each["log_scales"])
        assert 0 < (learned - start).abs().max() < 0.2
        assert each["origin"] == {
            "source": f"demo-lerope-initpreset-mine-{7 + saved.index(each)}",
            "train_length": 32,
            "fingerprint": None,
            "notes": ["started from preset:mine."],
        }
    profile = make_preset(runs, "next").preset.profiles[0]
    mean = (torch.tensor(saved[0]["log_scales"]) + torch.tensor(saved[1]["log_scales"])) / 2
    torch.testing.assert_close(torch.tensor(profile.log_scales), mean, rtol=0, atol=1e-6)
    assert (profile.seeds, profile.train_length, profile.steps) == ([7, 8], 32, [4])


def made_scales(path):
    return json.loads(path.read_text())["profiles"][0]["log_scales"]
