"""Band contributions against a plain double loop, and a dominant band that is known."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_weights

from lerope.analyze.bands import contributions, dominant_band, full_rows, measure, measure_bands
from lerope.analyze.subjects import OwnModel
from lerope.analyze.targets import open_target
from lerope.core.ladder import ModelConfig
from lerope.core.signals import Stopped
from lerope.evaluate.documents import Texts
from lerope.evaluate.perplexity import EvalRequest
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer
from lerope.results import Bands
from lerope.rotary.encodings import Encoding, LeRoPE, NoPE, RoPE
from lerope.rotary.rotate import rotate
from tests.train.runs import plant_weights

CONFIG = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)
CPU = torch.device("cpu")


def model_with(encoding: Encoding) -> Transformer:
    model = Transformer(CONFIG, encoding)
    init_weights(model, 0)
    if isinstance(encoding, LeRoPE):
        torch.nn.init.normal_(encoding.alpha, std=0.3)
    return model


def queries_and_keys(model: Transformer, row: np.ndarray) -> list[list[torch.Tensor]]:
    """Pre-rotation q and k of each layer by forward hooks, in float64."""
    seen: list[list[torch.Tensor]] = []
    hooks = []
    for block in model.blocks:
        kept: list[torch.Tensor] = []
        seen.append(kept)
        for norm in (block.attention.q_norm, block.attention.k_norm):
            hooks.append(norm.register_forward_hook(lambda m, args, out, kept=kept: kept.append(out[0].double())))
    with torch.no_grad():
        model(torch.from_numpy(row)[None])
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoPE(16),
        lambda: RoPE(16, layout="interleaved"),
        lambda: RoPE(16, rotary_dim=8),
        lambda: LeRoPE(16, sharing="head", num_heads=2),
        lambda: LeRoPE(16, sharing="layer_head", num_layers=2, num_heads=2),
    ],
    ids=["rope", "interleaved", "partial", "head", "layer_head"],
)
def test_equals_a_double_loop(make):
    model = model_with(make())
    encoding = model.encoding
    num_bands = encoding.rotary_dim // 2
    rows = [np.random.default_rng(size).integers(3, 50, size) for size in (9, 13)]
    sums, pairs = np.zeros((2, num_bands, 13)), np.zeros(13)
    for row in rows:
        for layer, seen in enumerate(queries_and_keys(model, row)):
            theta = encoding.frequencies(layer).detach().double()
            q, k = (rotate(x, 0, theta, encoding.layout, encoding.rotary_dim) for x in seen)
            for m in range(num_bands):
                dims = [m, m + num_bands] if encoding.layout == "half" else [2 * m, 2 * m + 1]
                for s in range(len(row)):
                    for t in range(s + 1):
                        sums[layer, m, s - t] += float((q[s, :, dims] * k[t, :, dims]).sum()) / 4
        for s in range(len(row)):
            for t in range(s + 1):
                pairs[s - t] += 2  # heads
    got = contributions(model, rows)
    # Queries and keys are float32 in both, everything after them float64.
    np.testing.assert_allclose(got, sums / pairs, atol=1e-13)
    assert abs(got).max() > 0.1


def test_norms_and_bounds_equal_a_loop():
    model = model_with(RoPE(16))
    rows = [np.random.default_rng(size).integers(3, 50, size) for size in (9, 13)]
    got = measure(OwnModel(model), rows, "test")
    lengths, bounds = np.zeros((2, 2, 2, 8)), np.zeros((2, 2, 8))
    for row in rows:
        for layer, seen in enumerate(queries_and_keys(model, row)):
            for head in range(2):
                for m in range(8):
                    q, k = (np.hypot(x[:, head, m].numpy(), x[:, head, m + 8].numpy()) for x in seen)
                    lengths[0, layer, head, m] += q.mean() / 2
                    lengths[1, layer, head, m] += k.mean() / 2
                    bounds[layer, head, m] += np.outer(q, k).mean() / 4 / 2
    np.testing.assert_allclose(got.query_norms, lengths[0], rtol=1e-12)
    np.testing.assert_allclose(got.key_norms, lengths[1], rtol=1e-12)
    np.testing.assert_allclose(got.bounds, bounds, rtol=1e-12)


def test_a_constant_band_does_not_dominate():
    distances = np.arange(64)
    values = np.zeros((2, 4, 64))
    values[:, 0] = 5.0
    values[:, 1] = 0.1 * np.cos(distances / 3)
    values[:, 2] = 0.4 * np.cos(distances / 20)
    values[:, :, 0] = 100.0  # distance 0 says nothing about position
    assert dominant_band(values, torch.tensor([1.0, 0.1, 0.01, 0.001])) == 2
    # A band that does not turn carries no position, however its content varies with distance.
    assert dominant_band(values, torch.tensor([[1.0, 0.1, 0.0, 0.0], [1.0, 0.1, 0.0, 0.0]])) == 1
    assert dominant_band(values, torch.zeros(4)) is None


def test_full_rows_are_chosen_first():
    source = Texts([np.arange(size) for size in (5, 40, 12, 41)])
    assert [len(row) for row in full_rows(source, 40, 2)] == [40, 40]
    assert [len(row) for row in full_rows(source, 100, 2)] == [41, 40]


def plant(model: Transformer, band: int) -> None:
    """Makes every query and key of a band the same vector: what it then adds to logits is position alone."""
    half = CONFIG.head_dim // 2
    with torch.no_grad():
        model.embedding.weight[:, 0] = 4.0  # a feature that all tokens have
        for block in model.blocks:
            for part in range(2):  # queries, keys
                for head in range(CONFIG.num_heads):
                    start = (part * CONFIG.num_heads + head) * CONFIG.head_dim
                    block.attention.qkv.weight[[start + band, start + band + half]] = 0.0
                    block.attention.qkv.weight[start + band, 0] = 2.0


@pytest.mark.parametrize("band", [2, 3, 4])
def test_a_planted_band_is_found_with_its_wavelength(band):
    model = model_with(RoPE(16))
    plant(model, band)
    rows = [np.random.default_rng(n).integers(3, 50, 200) for n in range(8)]
    curves = contributions(model, rows)
    assert dominant_band(curves, torch.ones(curves.shape[1])) == band
    # Two vectors of equal direction: the curve is a cosine of RoPE's wavelength, 2 pi 10000^(band / 8).
    curve = curves.mean(0)[band]
    wave = np.cos(np.arange(200) * 10_000 ** (-band / 8))
    assert np.corrcoef(curve[:150], wave[:150])[0, 1] > 0.99


def test_the_result_of_a_planted_run_names_band_and_wavelength(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    weights = load_weights(tmp_path / "run" / "model" / "model.safetensors")
    model = Transformer(CONFIG, LeRoPE(16))
    model.load_state_dict(weights)
    plant(model, 3)
    plant_weights(tmp_path / "run", model.state_dict())
    got = measure_bands(open_target(tmp_path / "run", EvalRequest(device="cpu")), 4, CPU)
    theta = float(model.encoding.frequencies()[3].detach())
    assert got.dominant_band == 3
    assert got.dominant_wavelength == pytest.approx(2 * np.pi / theta, rel=1e-6)
    assert got.dominance is not None
    assert got.stands_out


def test_a_model_without_turning_bands_has_no_dominant_one(run, tmp_path):
    target = open_target(run, EvalRequest(device="cpu"))
    got = measure_bands(replace(target, path=tmp_path, load=lambda device: OwnModel(model_with(NoPE(16)))), 4, CPU)
    assert got.dominant_band is None
    assert got.dominant_wavelength is None
    assert got.dominance is None
    assert {row["wavelength"] for row in got.bands} == {None}


def test_file_and_arrays_say_the_same(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    target = open_target(tmp_path / "run", EvalRequest(device="cpu"))
    got = measure_bands(target, 3, CPU)
    assert Bands.load(tmp_path / "run" / "results" / "bands.json") == got
    arrays = load_file(tmp_path / "run" / "results" / "bands.safetensors")
    curves = arrays["contributions"]
    assert curves.shape == (2, 8, 32)
    np.testing.assert_allclose(arrays["mean"], curves.mean(0))
    np.testing.assert_allclose(arrays["std"], curves.std(0))
    for row in got.bands:
        mean = curves.mean(0)[row["band"], 1:]
        assert row["rms"] == pytest.approx(np.sqrt(((mean - mean.mean()) ** 2).mean()))
        assert row["mean"] == pytest.approx(mean.mean())
    for row in got.layers:
        at = row["layer"], slice(None), row["band"]
        assert row["query_norm"] == pytest.approx(arrays["query_norms"][at].mean())
        assert row["key_norm"] == pytest.approx(arrays["key_norms"][at].mean())
    assert got.settings["num_rows"] == 3
    assert measure_bands(target, 3, CPU).provenance == got.provenance  # what is there is not measured again
    assert measure_bands(target, 2, CPU).settings["num_rows"] == 2


def test_a_signal_stops_between_rows(monkeypatch):
    from lerope.core import signals

    monkeypatch.setattr(signals.Signals, "received", 15, raising=False)
    monkeypatch.setattr(signals.Signals, "__init__", lambda self: setattr(self, "_before", {}))
    with pytest.raises(Stopped):
        contributions(model_with(RoPE(16)), [np.arange(3, 12)])
