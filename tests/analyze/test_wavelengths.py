"""Wavelengths of runs, where they are suppressed, and their way there."""

import json
import math
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

import lerope
from lerope.analyze.targets import open_target
from lerope.analyze.wavelengths import describe_frequencies, suppressed_from
from lerope.evaluate.perplexity import EvalRequest
from lerope.results import LearnedFrequencies
from tests.train.runs import edit

# The paper's figure of learned frequencies, as others read it off: 32 bands, train length 2,048.
PROFILE = np.array(
    [
        *(1.9, 1.1, 0.67, 0.45, 0.31, 0.24, 0.16, 0.11, 0.084, 0.059, 0.044, 0.031, 0.023, 0.016, 0.0094, 0.0042),
        *(0.0015, 0.0011, 1.0e-4, 4.9e-5, 3.6e-5, 2.4e-5, 2.0e-5, 2.0e-5),
        *(1.2e-5, 1.8e-5, 1.0e-5, 1.5e-5, 1.2e-5, 9.9e-6, 9.4e-6, 1.5e-5),
    ]
)
ROPE = 10_000.0 ** (-np.arange(32) / 32)


def test_suppression_points_that_are_known():
    # Bands 16 and 17 have 2 and 2.8 train lengths: slowed, and in use. Band 18 has 31.
    assert suppressed_from(PROFILE, ROPE, 2048) == 18
    assert suppressed_from(ROPE, ROPE, 2048) is None
    assert suppressed_from(lerope.PRoPE(64, p=0.75).frequencies().double().numpy(), ROPE, 2048) == 24
    assert suppressed_from(np.zeros(32), ROPE, 2048) == 0
    assert suppressed_from(np.zeros(32), None, 2048) is None
    late = ROPE.copy()
    late[20:31] = 1e-7  # the slowest band still turns as RoPE's does
    assert suppressed_from(late, ROPE, 2048) is None
    # With rows 40 times as long, bands up to 23, at 2e-5, turn by more than a quarter.
    assert suppressed_from(PROFILE, ROPE, 2048 * 40) == 24


@pytest.fixture
def described(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run", describe_frequencies(open_target(tmp_path / "run", EvalRequest(device="cpu")))


def test_bands_equal_the_saved_frequencies(described):
    path, got = described
    saved = json.loads((path / "model" / "frequencies.json").read_text())
    assert LearnedFrequencies.load(path / "results" / "frequencies.json") == got
    assert [row["frequency"] for row in got.bands] == pytest.approx(saved["frequencies"], rel=1e-6)
    assert [row["log_scale"] for row in got.bands] == pytest.approx(saved["log_scales"], abs=1e-6)
    assert max(abs(scale) for scale in saved["log_scales"]) > 1e-3
    for row in got.bands:
        assert row["wavelength"] == pytest.approx(2 * math.pi / saved["frequencies"][row["band"]], rel=1e-6)
        assert row["rope_wavelength"] == pytest.approx(2 * math.pi * 10_000 ** (row["band"] / 8), rel=1e-6)
        assert row["turns"] == pytest.approx(32 / row["wavelength"])
    assert got.sets == [
        {
            "layer": None,
            "head": None,
            "suppressed_from": None,
            "suppressed_rope_wavelength": None,
            "num_aliased": 0,
            "num_dead": sum(32 / row["wavelength"] < 0.01 for row in got.bands),
        }
    ]


def test_history_begins_with_rope_and_ends_with_what_was_saved(described):
    path, got = described
    arrays = load_file(path / "results" / "frequencies.safetensors")
    assert arrays["steps"][0] == 0
    assert arrays["steps"][-1] == 30
    np.testing.assert_allclose(arrays["frequencies"][0], 10_000.0 ** (-np.arange(8) / 8), rtol=1e-6)
    np.testing.assert_allclose(arrays["frequencies"][-1], [row["frequency"] for row in got.bands], rtol=1e-6)


def test_long_histories_are_thinned(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    lines = [json.dumps({"step": step, "log_scales": [step / 1e4] * 8}) for step in range(1001)]
    (tmp_path / "run" / "frequencies.jsonl").write_text("\n".join(lines) + "\n")
    describe_frequencies(open_target(tmp_path / "run", EvalRequest(device="cpu")))
    arrays = load_file(tmp_path / "run" / "results" / "frequencies.safetensors")
    assert len(arrays["steps"]) == 200
    assert (arrays["steps"][0], arrays["steps"][-1]) == (0, 1000)
    rope = 10_000.0 ** (-np.arange(8) / 8)
    np.testing.assert_allclose(arrays["frequencies"], rope * np.exp(arrays["steps"][:, None] / 1e4), rtol=1e-6)


def test_layers_and_heads_with_frequencies_of_their_own(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    theta = lerope.RoPE(16).frequencies().expand(2, 2, 8).clone()
    theta[1, 0, 4:] = 1e-9
    theta[0, 1, 0] = 4.0
    frozen = lerope.FrozenRoPE(theta, sharing="layer_head")
    frozen.base = 10_000.0
    frozen.save(tmp_path / "run" / "model" / "frequencies.json", 32)
    with pytest.raises(ValueError, match=r"frequencies\.json is not what this run finished with"):
        describe_frequencies(open_target(tmp_path / "run", EvalRequest(device="cpu")))
    edit(tmp_path / "run" / "run.json", model_sha256={})
    record = json.dumps({"step": 0, "frequencies": theta.tolist()})
    (tmp_path / "run" / "frequencies.jsonl").write_text(record + "\n")
    got = describe_frequencies(open_target(tmp_path / "run", EvalRequest(device="cpu")))
    places = [(row["layer"], row["head"], row["suppressed_from"], row["num_aliased"]) for row in got.sets]
    assert places == [(0, 0, None, 0), (0, 1, None, 1), (1, 0, 4, 0), (1, 1, None, 0)]
    assert got.sets[2]["suppressed_rope_wavelength"] == pytest.approx(2 * math.pi * 100)
    assert [(row["layer"], row["head"], row["band"]) for row in got.bands if row["aliased"]] == [(0, 1, 0)]
    assert load_file(tmp_path / "run" / "results" / "frequencies.safetensors")["frequencies"].shape == (1, 2, 2, 8)


def test_data_that_is_gone_does_not_matter(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    edit(tmp_path / "run" / "run.json", starts=[{**content["starts"][-1], "data": str(tmp_path / "gone")}])
    describe_frequencies(open_target(tmp_path / "run", EvalRequest(device="cpu")))


def test_a_run_without_records_is_one_sentence(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "frequencies.jsonl").unlink()
    with pytest.raises(ValueError, match="has no records; restore it"):
        describe_frequencies(open_target(tmp_path / "run", EvalRequest(device="cpu")))
