"""On a GPU the same numbers as on a CPU."""

import numpy as np
import pytest
import torch

from lerope.analyze.bands import measure
from lerope.analyze.phasors import gradient_phasors
from lerope.analyze.subjects import OwnModel, Removal
from lerope.core.ladder import ModelConfig
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer
from lerope.rotary.encodings import RoPE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS = [np.random.default_rng(size).integers(3, 50, size) for size in (300, 2500)]


def built(dtype: torch.dtype) -> Transformer:
    model = Transformer(ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50), RoPE(16))
    init_weights(model, 0)
    return model.to(dtype)


def test_contributions_and_losses():
    one, other = (OwnModel(built(torch.float32), device) for device in ("cpu", "cuda"))
    want, got = (measure(subject, ROWS, "test") for subject in (one, other))
    np.testing.assert_allclose(got.contributions, want.contributions, atol=1e-4)
    np.testing.assert_allclose(got.bounds, want.bounds, rtol=1e-4)
    for removal in (Removal((2,), "contribution"), Removal((2, 5), "frequency")):
        torch.testing.assert_close(other.losses(ROWS, removal).cpu(), one.losses(ROWS, removal), atol=1e-4, rtol=1e-4)


def test_phasors():
    want, got = (gradient_phasors(built(torch.float64), ROWS, [0, 1], device, "test") for device in ("cpu", "cuda"))
    np.testing.assert_allclose(got.turned, want.turned, atol=1e-12 * abs(want.turned).max())
    assert got.error < 1e-12
    assert gradient_phasors(built(torch.float32), ROWS, [0, 1], "cuda", "test").error < 1e-5
