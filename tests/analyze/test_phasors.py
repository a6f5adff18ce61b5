"""Phasors against autograd, finite differences and a plain double loop."""

import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from lerope.analyze import phasors as phasors_module
from lerope.analyze.phasors import gradient_phasors, head_phasors, measure_phasors
from lerope.analyze.targets import open_target
from lerope.core.ladder import ModelConfig
from lerope.evaluate.perplexity import EvalRequest
from lerope.model.init import init_weights
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.results import Phasors
from lerope.rotary.encodings import Encoding, FrozenRoPE, LeRoPE, NoPE, RoPE

CONFIG = ModelConfig(num_layers=2, num_heads=3, head_dim=16, vocab_size=50)
CPU = torch.device("cpu")


def model_with(encoding: Encoding, dtype: torch.dtype = torch.float64) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(CONFIG, encoding)
    init_weights(model, 0)
    if isinstance(encoding, LeRoPE):
        torch.nn.init.normal_(encoding.alpha, std=0.3)
    return model.to(dtype)


def rows_of(*lengths: int) -> list[np.ndarray]:
    return [np.random.default_rng(length).integers(3, 50, length) for length in lengths]


def gradient(sums) -> np.ndarray:
    return -(sums.turned * np.arange(sums.turned.shape[-1])).imag.sum(-1)


def loss_of(model: Transformer, rows: list[np.ndarray], theta: Tensor) -> float:
    """The mean loss with other frequencies."""
    other = Transformer(CONFIG, FrozenRoPE(theta.float(), layout=model.encoding.layout)).double()
    other.encoding.theta = theta
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("encoding.")}
    other.load_state_dict(weights, strict=False)
    total = 0.0
    with torch.no_grad():
        for row in rows:
            ids = torch.from_numpy(row)
            scores = other(ids[None, :-1])[0].log_softmax(-1)
            total -= float(scores.gather(1, ids[1:, None]).sum())
    return total / sum(len(row) - 1 for row in rows)


ENCODINGS = {
    "fixed": lambda: RoPE(16),
    "interleaved": lambda: RoPE(16, layout="interleaved"),
    "partial": lambda: RoPE(16, rotary_dim=8),
    "still": lambda: NoPE(16),
    "shared": lambda: LeRoPE(16),
    "layer": lambda: LeRoPE(16, sharing="layer", num_layers=2),
    "head": lambda: LeRoPE(16, sharing="head", num_heads=3),
    "layer_head": lambda: LeRoPE(16, sharing="layer_head", num_layers=2, num_heads=3),
}


@pytest.mark.parametrize("kind", ENCODINGS)
def test_float64_sums_are_autograds(kind):
    """Rows longer than a tile in both directions, and one shorter than any."""
    sums = gradient_phasors(model_with(ENCODINGS[kind]()), rows_of(300, 20), [0, 1], "cpu", "test")
    assert abs(sums.autograd).max() > 1e-4
    assert sums.error < 1e-12
    assert sums.covariance_error < 1e-12
    np.testing.assert_allclose(gradient(sums), sums.autograd, atol=1e-12 * abs(sums.autograd).max())
    layers, heads = (2 if "layer" in kind else 1), (3 if "head" in kind else 1)
    assert sums.turned.shape == (layers, heads, 4 if kind == "partial" else 8, 299)


def test_float32_sums_are_autograds_on_a_trained_model(run):
    rows = [np.concatenate([[1], 3 + (n + np.arange(598)) % 47, [2]]) for n in range(3)]
    sums = gradient_phasors(load_model(run), rows, [0, 1], "cpu", "test")
    assert 0 < sums.error < 1e-5
    assert 0 < sums.covariance_error < 1e-5


def test_the_gradient_is_a_finite_difference_of_the_loss():
    """Nothing of autograd in it."""
    model = model_with(RoPE(16))
    rows = rows_of(40)
    sums = gradient_phasors(model, rows, [0, 1], "cpu", "test")
    theta = model.encoding.frequencies().detach().double()
    assert sums.loss == pytest.approx(loss_of(model, rows, theta), rel=1e-12)
    for band in range(8):
        step = torch.zeros_like(theta)
        step[band] = 1e-5
        slope = (loss_of(model, rows, theta + step) - loss_of(model, rows, theta - step)) / 2e-5
        assert gradient(sums)[0, 0, band] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_layers_are_told_apart():
    """One layer at a time gives parts of the whole."""
    model = model_with(RoPE(16))
    rows = rows_of(30)
    whole = gradient_phasors(model, rows, [0, 1], "cpu", "test")
    parts = [gradient_phasors(model, rows, [layer], "cpu", "test") for layer in (0, 1)]
    np.testing.assert_allclose(whole.turned, sum(part.turned for part in parts), atol=1e-15)
    assert abs(parts[0].turned - parts[1].turned).max() > 1e-6


@pytest.mark.parametrize("tile", [(32, 256), (7, 10), (64, 16), (256, 2048)], ids=str)
def test_equals_a_double_loop_whatever_the_tiles(tile, monkeypatch):
    monkeypatch.setitem(phasors_module._TILES, "cpu", tile)
    random = torch.Generator().manual_seed(0)
    length, head_dim, num_bands = 45, 8, 4
    q, k, v, g = (torch.randn(length, head_dim, generator=random, dtype=torch.float64) for _ in range(4))
    got, covariance = head_phasors(q, k, v, g, num_bands, "half")
    want, cov = np.zeros((num_bands, length), complex), np.zeros(num_bands)
    for s in range(length):
        logits = np.array([float(q[s] @ k[t]) / math.sqrt(head_dim) for t in range(s + 1)])
        a = np.exp(logits - logits.max())
        a /= a.sum()
        o = sum(a[t] * v[t].numpy() for t in range(s + 1))
        sines = np.zeros((num_bands, s + 1))
        pulls = np.array([float(v[t] @ g[s]) for t in range(s + 1)])
        for t in range(s + 1):
            w = a[t] * float(g[s].numpy() @ (v[t].numpy() - o))
            for m in range(num_bands):
                product = complex(q[s, m], q[s, m + 4]) * complex(k[t, m], k[t, m + 4]).conjugate()
                want[m, s - t] += w * product / math.sqrt(head_dim)
                sines[m, t] = (s - t) * product.imag / math.sqrt(head_dim)
        for m in range(num_bands):
            cov[m] -= (a * pulls * sines[m]).sum() - (a * pulls).sum() * (a * sines[m]).sum()
    np.testing.assert_allclose(got.numpy(), want, atol=1e-13)
    np.testing.assert_allclose(covariance.numpy(), cov, atol=1e-12)


@pytest.fixture
def measured(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    target = open_target(tmp_path / "run", EvalRequest(device="cpu"))
    return (
        measure_phasors(target, 3, None, CPU),
        load_file(tmp_path / "run" / "results" / "phasors.safetensors"),
        target,
    )


def test_file_and_arrays_say_the_same(measured):
    got, arrays, target = measured
    assert Phasors.load(target.path / "results" / "phasors.json") == got
    phasors = arrays["phasors_real"] + 1j * arrays["phasors_imag"]
    distances, theta = arrays["distances"], arrays["frequencies"]
    assert phasors.shape == (1, 1, 8, 31)
    assert distances.tolist() == list(range(1, 32))
    for row in got.bands:
        at = (0, 0, row["band"])
        terms = 1j * distances * phasors[at] * np.exp(1j * distances * theta[at])
        assert row["gradient"] == pytest.approx(terms.sum().real, abs=1e-15)
        assert row["autograd_gradient"] == pytest.approx(row["gradient"], abs=1e-6)
        assert row["covariance_gradient"] == pytest.approx(row["gradient"], abs=1e-12)
        assert row["log_scale_gradient"] == pytest.approx(row["gradient"] * theta[at])
        assert row["direction"] == pytest.approx(np.angle(terms.sum()), abs=1e-9)
        assert row["coherence"] == pytest.approx(abs(terms.sum()) / abs(terms).sum())
        assert row["objective"] == pytest.approx((phasors[at] * np.exp(1j * distances * theta[at])).real.sum())
        for name, radii in (("objective", abs(phasors[at])), ("gradient", distances * abs(phasors[at]))):
            scales = radii / radii.max()
            assert row[f"{name}_scale"] == pytest.approx(scales.mean())
            counts = arrays[f"{name}_histogram"][at]
            assert counts.sum() == 31
            inside = (scales >= arrays["edges"][10]) & (scales < arrays["edges"][30])
            assert counts[10:30].sum() == inside.sum()
    assert got.layers == [0, 1]
    assert {row["layer"] for row in got.bands} == {None}


def test_derivative_on_the_grid_is_that_of_the_objective(measured):
    _, arrays, _ = measured
    phasors = (arrays["phasors_real"] + 1j * arrays["phasors_imag"])[0, 0]
    distances = arrays["distances"]

    def objective(x: float) -> np.ndarray:
        return (phasors * np.exp(1j * distances * x)).real.sum(-1)

    for point in (0, 150, 390):
        x = float(arrays["grid"][point])
        np.testing.assert_allclose(arrays["objective"][0, 0, :, point], objective(x), atol=1e-12)
        slope = (objective(x + 1e-6) - objective(x - 1e-6)) / 2e-6
        np.testing.assert_allclose(arrays["derivative"][0, 0, :, point], slope, rtol=1e-6, atol=1e-8)


def test_one_layer_and_bad_layers(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    target = open_target(tmp_path / "run", EvalRequest(device="cpu"))
    assert {row["layer"] for row in measure_phasors(target, 2, 1, CPU).bands} == {1}
    with pytest.raises(ValueError, match="layer must be 0 to 1; got 2"):
        measure_phasors(target, 2, 2, CPU)
