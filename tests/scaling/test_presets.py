"""A preset from runs: means, spreads, dominant bands, what it is worth, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lerope.core.preset import read_preset
from lerope.core.run import read_run
from lerope.results import Bands
from lerope.scaling.presets import make_preset
from tests.made_presets import made_log_scales
from tests.scaling.run_files import write_run

STEPS = 800


def write_learned(path, seed=42, scales=None, encoding="lerope", length=1000, step=STEPS, dominant=None, **changes):
    """An evaluated run with a record of its last frequencies, and of its dominant band where one is given."""
    recipe = {"row_length": length, "batch_tokens": length, **changes.pop("recipe", {})}
    write_run(path, encoding, seed, changes.pop("losses", 3.0), recipe=recipe, **changes)
    scales = made_log_scales(32, length) if scales is None else scales
    lines = [{"step": 0, "log_scales": [0.0] * 32}, {"step": step, "log_scales": list(scales)}]
    (path / "frequencies.jsonl").write_text("".join(json.dumps({**line, "frequencies": None}) + "\n" for line in lines))
    if dominant is not None:
        band, dominance = dominant
        Bands(
            run=read_run(path).label,
            settings={},
            provenance={},
            train_length=length,
            dominant_band=band,
            dominant_wavelength=wavelength(scales, band),
            dominance=dominance,
            bands=[],
            layers=[],
        ).save(path / "results" / "bands.json")
    return path


def wavelength(scales, band, base=10_000.0):
    return 2 * math.pi * base ** (band / 32) * math.exp(-scales[band])


def test_means_and_spreads_by_train_length(tmp_path):
    rng = np.random.default_rng(0)
    scales = {
        (length, seed): rng.normal(made_log_scales(32, length), 0.1) for length in (500, 2000) for seed in (42, 43, 44)
    }
    paths = [
        write_learned(tmp_path / f"{length}-{seed}", seed, s, length=length) for (length, seed), s in scales.items()
    ]
    made = make_preset(paths[::-1], "mine")
    preset = made.preset
    assert [profile.train_length for profile in preset.profiles] == [500, 2000]
    for profile in preset.profiles:
        rows = np.array([s for (length, _), s in scales.items() if length == profile.train_length])
        np.testing.assert_allclose(profile.log_scales, rows.sum(0) / 3, rtol=0, atol=1e-8)
        np.testing.assert_allclose(profile.spread, np.sqrt(((rows - rows.mean(0)) ** 2).sum(0) / 2), rtol=0, atol=1e-8)
        assert (profile.seeds, profile.rungs, profile.steps) == ([42, 43, 44], ["52M"], [STEPS])
        assert profile.dominant_wavelength is None
        assert len(profile.runs) == 3
    assert (preset.base, preset.head_dim, preset.vocab_size, preset.encoding) == (10_000.0, 64, 32_000, "lerope")
    assert (preset.text, preset.data, preset.gains) == (["my-text/"], "d" * 64, [])
    assert preset.good_for == "Models trained from scratch on text like my-text/, in rows of about 500, 2,000 tokens."
    assert sum("no dominant band is known" in note for note in made.notes) == 2
    assert made.notes[-1].startswith("its gain is not measured; name evaluated runs of rope")
    preset.save(tmp_path / "mine.json")
    assert read_preset(tmp_path / "mine.json") == preset


def test_one_run_comes_back_as_it_was_learned(tmp_path):
    scales = made_log_scales(32, 1000)
    made = make_preset([write_learned(tmp_path / "a", scales=scales, dominant=(13, 3.0))], "mine")
    profile = made.preset.profiles[0]
    assert profile.spread is None
    assert profile.dominant_wavelength == pytest.approx(wavelength(scales, 13), abs=0.01)
    np.testing.assert_allclose(profile.log_scales, scales, rtol=0, atol=2e-8)
    assert "one run, so nothing is known about the spread" in made.notes[0]
    got = made.preset.resample(64, 1000).frequencies
    want = np.exp(scales) * 10_000.0 ** (-np.arange(32) / 32)
    # The dominant wavelength is kept to a hundredth of a token, of two thousand.
    np.testing.assert_allclose(got, want, rtol=5e-6)


def test_the_dominant_band_is_not_smeared_over_two(tmp_path):
    """Two runs whose dominant band has the same wavelength and another number: some band of the mean has it too."""
    one, other = np.array(made_log_scales(32, 1000)), np.array(made_log_scales(32, 1000))
    goal = 2200.0
    for scales, band in ((one, 13), (other, 14)):
        scales[band] = math.log(2 * math.pi * 10_000.0 ** (band / 32) / goal)
        scales[band + 1 :] = -6.0
    paths = [
        write_learned(tmp_path / "a", 42, one.tolist(), dominant=(13, 3.0)),
        write_learned(tmp_path / "b", 43, other.tolist(), dominant=(14, 3.0)),
        write_learned(tmp_path / "c", 44, one.tolist(), dominant=(13, 1.5)),  # does not stand out
    ]
    profile = make_preset(paths[:2], "mine").preset.profiles[0]
    assert profile.dominant_wavelength == pytest.approx(goal, abs=0.01)
    found = [wavelength(profile.log_scales, band) for band in range(32)]
    assert min(abs(each / goal - 1) for each in found) < 1e-6
    plain = [wavelength((one + other) / 2, band) for band in range(32)]
    assert min(abs(each / goal - 1) for each in plain) > 0.05
    assert make_preset(paths[2:], "mine").preset.profiles[0].dominant_wavelength is None


def write_pairs(folder, seeds, losses, frozen="frozen"):
    paths = []
    for seed in seeds:
        paths.append(write_learned(folder / f"lerope-{seed}", seed, losses=losses["lerope"]))
        for method, encoding in (("rope", "rope"), ("fixed", frozen)):
            if method in losses:
                paths.append(write_run(folder / f"{method}-{seed}", encoding, seed, losses[method]))
    return paths


def test_what_it_is_worth(tmp_path):
    paths = write_pairs(tmp_path, (42, 43), {"rope": 3.0, "lerope": 2.99, "fixed": 2.994}, "a/frequencies.json")
    made = make_preset(paths, "mine")
    (gain,) = made.preset.gains
    assert (gain.train_length, gain.head_dim, gain.rung, gain.text) == (1000, 64, "52M", ["my-text/"])
    assert (gain.seeds, gain.held_out) == ([42, 43], False)
    assert gain.method == "frozen"
    assert gain.gain == pytest.approx(0.01, abs=1e-6)
    assert gain.captured == pytest.approx(0.6, abs=1e-4)
    assert made.preset.profiles[0].seeds == [42, 43]


def test_held_out_runs_say_what_it_is_worth_and_nothing_else(tmp_path):
    """Another seed, another train length and another text, each a gain of its own; none changes a profile."""
    own = write_pairs(tmp_path / "own", (42,), {"rope": 3.0, "lerope": 2.99})
    losses = {"rope": 3.0, "lerope": 2.98, "fixed": 2.99}
    others = write_pairs(tmp_path / "seed", (43, 44), losses, "preset:a/mine.json")
    for changes in ({"data": "e" * 64}, {"recipe": {"row_length": 500, "batch_tokens": 1000}}):
        folder = tmp_path / f"other-{len(others)}"
        for encoding, loss in (("rope", 3.0), ("lerope", 2.96), ("preset:mine", 2.97)):
            others.append(write_run(folder / encoding, encoding, 42, loss, **changes))
    preset = make_preset(own, "mine", held_out=others).preset
    assert [(gain.train_length, gain.seeds, gain.held_out, gain.method) for gain in preset.gains] == [
        (1000, [42], False, None),
        (1000, [43, 44], True, "preset:mine"),
        (1000, [42], True, "preset:mine"),
        (500, [42], True, "preset:mine"),
    ]
    assert [gain.captured for gain in preset.gains[1:]] == pytest.approx([0.5, 0.75, 0.75], abs=1e-4)
    assert preset.profiles == make_preset(own, "mine").preset.profiles


def test_a_gain_without_fixed_runs(tmp_path):
    (gain,) = make_preset(write_pairs(tmp_path, (42,), {"rope": 3.0, "lerope": 2.98}), "mine").preset.gains
    assert (gain.gain, gain.method, gain.captured) == (pytest.approx(0.02, abs=1e-6), None, None)


def test_a_gain_over_rope_of_the_same_base(tmp_path):
    paths = [write_learned(tmp_path / "l", encoding="lerope,base=500", losses=2.98)]
    paths += [
        write_run(tmp_path / f"r{base}", f"rope,base={base}", 42, loss) for base, loss in ((500, 3.0), (10000, 4.0))
    ]
    made = make_preset(paths, "mine")
    assert made.preset.base == 500.0
    assert made.preset.gains[0].gain == pytest.approx(0.02, abs=1e-6)


def test_pairs_that_are_none_are_a_note(tmp_path):
    paths = write_pairs(tmp_path, (42,), {"lerope": 2.98})
    paths.append(write_run(tmp_path / "rope", "rope", 42, 3.0, recipe={"z_loss": 0.1}))
    made = make_preset(paths, "mine")
    assert made.preset.gains == []
    assert any("no gain, because" in note and "z_loss" in note for note in made.notes)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"data": "e" * 64}, "data is dddddddddddd in the first and eeeeeeeeeeee in the second"),
        ({"encoding": "lerope,base=500"}, "base is 10000.0 in the first and 500.0 in the second"),
        (
            {"encoding": "lerope,parametrization=linear"},
            "encoding is lerope in the first and lerope,parametrization=linear",
        ),
        ({"encoding": "prope"}, "encoding must be lerope.*has 'prope'"),
        ({"seed": 42}, "are both of rung 52M, row_length 1,000 and seed 42; name one of them"),
        ({"step": 700}, "has no record of its last frequencies"),
        ({"scales": [None] * 32}, "must have learned 32 positive frequencies"),
        ({"scales": [0.0] * 31}, "must have learned 32 positive frequencies"),
        ({"finished": False}, "is not finished"),
    ],
)
def test_what_makes_no_preset_is_one_sentence(tmp_path, other, sentence):
    paths = [write_learned(tmp_path / "a"), write_learned(tmp_path / "b", **{"seed": 43, **other})]
    with pytest.raises(ValueError, match=sentence) as caught:
        make_preset(paths, "mine")
    assert "\n" not in str(caught.value)


def test_runs_without_a_profile(tmp_path):
    for paths in ([], [write_run(tmp_path / "r")]):
        with pytest.raises(ValueError, match="name at least one finished run of --encoding lerope"):
            make_preset(paths, "mine", held_out=[write_learned(tmp_path / "a")])
    with pytest.raises(ValueError, match="a is held out and among the runs of the preset; name it once"):
        make_preset([tmp_path / "a"], "mine", held_out=[tmp_path / "a"])
    with pytest.raises(ValueError, match="encoding must have one set of frequencies for whole heads"):
        make_preset([write_learned(tmp_path / "l", encoding="lerope,sharing=layer")], "mine")
    with pytest.raises(ValueError, match="name must be letters"):
        make_preset([write_learned(tmp_path / "a")], "my/own")


def test_bands_of_an_earlier_training_are_noticed(tmp_path):
    path = write_learned(tmp_path / "a", dominant=(13, 3.0))
    content = json.loads(Path(path / "results" / "bands.json").read_text())
    content["run"]["created"] = "before"
    Path(path / "results" / "bands.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="earlier training"):
        make_preset([path], "mine")
