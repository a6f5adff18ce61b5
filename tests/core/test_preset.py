"""A preset's file: what it holds, how it is found, what it says about what it did."""

import json
import math
import subprocess
import sys

import pytest

from lerope.core import preset as presets
from lerope.core.preset import preset_names, read_preset, sparkline
from tests.made_presets import made_preset, made_profile, save_preset


def test_a_file_comes_back(tmp_path):
    path = save_preset(tmp_path, 2048, 8192)
    assert read_preset(path) == read_preset(str(path)) == made_preset(2048, 8192)
    content = json.loads(path.read_text())
    assert content["fingerprint"] == made_preset(2048, 8192).fingerprint() != made_preset(2048).fingerprint()
    assert content == made_preset(2048, 8192).as_dict()


def test_a_name_is_looked_up_in_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "FOLDER", tmp_path / "presets")
    assert preset_names() == []
    with pytest.raises(
        ValueError, match="preset 'mine' is unknown; the package has none yet, and your own are named by path"
    ):
        read_preset("mine")
    save_preset(tmp_path / "presets")
    assert preset_names() == ["mine"]
    assert read_preset("mine") == made_preset()
    with pytest.raises(ValueError, match="preset 'other' is unknown; those of the package are mine"):
        read_preset("other")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a/b"}, "name must be letters"),
        ({"version": 0}, "version must be a positive whole number"),
        ({"base": 1.0}, "base must be larger than 1"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"profiles": []}, "profiles must be one or more"),
        ({"profiles": [made_profile(4096), made_profile(2048)]}, "at train lengths that rise; got .4096, 2048."),
        ({"profiles": [made_profile(num_bands=31)]}, "log_scales must be 32 finite numbers"),
        ({"profiles": [made_profile(spread=[1.0])]}, "spread must be 32 finite numbers"),
        ({"profiles": [made_profile(dominant_wavelength=-1.0)]}, "dominant_wavelength must be positive"),
    ],
)
def test_bad_content_is_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        made_preset(**changes)


def test_damage_is_noticed(tmp_path):
    path = save_preset(tmp_path)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match=r"does not match the content .* make it again with `lerope presets make"):
        read_preset(path)
    with pytest.raises(ValueError, match=r"nothing\.json does not exist"):
        read_preset(tmp_path / "nothing.json")


def test_what_was_done_is_said():
    preset = made_preset(2048, 8192)
    assert preset.resample(64, 2048).notes == []
    assert preset.resample(128, 8192).notes == ["resampled from head_dim 64 to 128."]
    between = preset.resample(64, 4096)
    assert between.notes == ["train length 4,096 is interpolated between the measured 2,048 and 8,192."]
    assert not between.is_extrapolated
    for length in (1024, 16_384):
        beyond = preset.resample(64, length)
        assert beyond.is_extrapolated
        assert f"train length {length:,} is outside of what mine was learned at (2,048 to 8,192)" in beyond.notes[0]
    assert "learned at (2,048)" in made_preset(2048).resample(64, 4096).notes[0]


def test_measured_frequencies_are_exp_of_their_log_scales():
    preset = made_preset(2048, 8192)
    for profile in preset.profiles:
        got = preset.resample(64, profile.train_length).frequencies
        want = [math.exp(a) * 10_000.0 ** (-m / 32) for m, a in enumerate(profile.log_scales)]
        assert got == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(("head_dim", "length"), [(7, 2048), (0, 2048), (64, 0), (64, 1.5)])
def test_sizes_are_checked(head_dim, length):
    with pytest.raises(ValueError, match=r"(head_dim|train_length) must"):
        made_preset().resample(head_dim, length)


def test_a_sparkline_spans_its_values():
    assert sparkline([0.0, 1.0, 0.5]) == "▁█▅"
    assert sparkline([2.0, 2.0]) == "▁▁"


def test_no_torch_is_needed():
    code = "import sys, lerope.core.preset; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
