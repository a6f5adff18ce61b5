"""Band contributions against a plain double loop, and a dominant band that is known."""

import numpy as np
import pytest
import torch

from lerope.analyze.bands import contributions, dominant_band, full_rows
from lerope.evaluate.documents import Texts
from lerope.model.config import ModelConfig
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer
from lerope.rotary.encodings import Encoding, LeRoPE, RoPE
from lerope.rotary.rotate import rotate

CONFIG = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)


def model_with(encoding: Encoding) -> Transformer:
    model = Transformer(CONFIG, encoding)
    init_weights(model, 0)
    if isinstance(encoding, LeRoPE):
        torch.nn.init.normal_(encoding.alpha, std=0.3)
    return model


def rotated_queries_and_keys(model: Transformer, row: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pre-rotation q and k of each layer by forward hooks, then rotated by the library's function in float64."""
    seen: list[list[torch.Tensor]] = []
    for block in model.blocks:
        kept: list[torch.Tensor] = []
        seen.append(kept)
        for norm in (block.attention.q_norm, block.attention.k_norm):
            norm.register_forward_hook(lambda module, args, out, kept=kept: kept.append(out[0]))
    with torch.no_grad():
        model(torch.from_numpy(row)[None])
    found = []
    for layer, (q, k) in enumerate(seen):
        theta = model.encoding.frequencies(layer).detach().double()
        layout = model.encoding.layout
        found.append(tuple(rotate(x.double(), 0, theta, layout) for x in (q, k)))
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoPE(16),
        lambda: RoPE(16, layout="interleaved"),
        lambda: LeRoPE(16, sharing="layer_head", num_layers=2, num_heads=2),
    ],
    ids=["rope", "interleaved", "layer_head"],
)
def test_equals_a_double_loop(make):
    encoding = make()
    model = model_with(encoding)
    rows = [np.random.default_rng(size).integers(3, 50, size) for size in (9, 13)]
    got = contributions(model, rows)
    sums, pairs = np.zeros((2, 8, 13)), np.zeros(13)
    for row in rows:
        layers = rotated_queries_and_keys(model_with_weights(model, make()), row)
        for layer, (q, k) in enumerate(layers):
            for m in range(8):
                dims = [m, m + 8] if encoding.layout == "half" else [2 * m, 2 * m + 1]
                for s in range(len(row)):
                    for t in range(s + 1):
                        sums[layer, m, s - t] += float((q[s, :, dims] * k[t, :, dims]).sum()) / 4
        for s in range(len(row)):
            for t in range(s + 1):
                pairs[s - t] += 2  # heads
    np.testing.assert_allclose(got, sums / pairs, atol=1e-6)


def model_with_weights(model: Transformer, encoding: Encoding) -> Transformer:
    other = Transformer(CONFIG, encoding)
    other.load_state_dict(model.state_dict())
    return other


def test_a_constant_band_does_not_dominate():
    distances = np.arange(64)
    values = np.zeros((2, 4, 64))
    values[:, 0] = 5.0
    values[:, 1] = 0.1 * np.cos(distances / 3)
    values[:, 2] = 0.4 * np.cos(distances / 20)
    values[:, :, 0] = 100.0  # distance 0 says nothing about position
    assert dominant_band(values) == 2


def test_full_rows_are_chosen_first():
    source = Texts([np.arange(size) for size in (5, 40, 12, 41)])
    assert [len(row) for row in full_rows(source, 40, 2)] == [40, 40]
    assert [len(row) for row in full_rows(source, 100, 2)] == [41, 40]
