"""Constraints on learned frequencies keep what they promise, and their gradients are those of the formula."""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

from lerope.core.ladder import ModelConfig
from lerope.core.run import read_metrics
from lerope.evaluate.perplexity import EvalRequest, evaluate
from lerope.model.spec import build_encoding
from lerope.rotary.frequencies import geometric
from tests.train.runs import tiny_corpus, tiny_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
candidates = importlib.import_module("results.candidates")
NAMES = ("Gap", "WholeTurns", "WholeTokens", "Slowed")
SLOW, FAST = math.pi / 2 / 8192, 2 * math.pi / 2048


def test_nothing_lies_in_the_gap_and_far_bands_hardly_move():
    theta = torch.logspace(-6, 0.5, 999, dtype=torch.float64)
    got = candidates.outside(theta, SLOW, FAST)
    assert bool(((got <= SLOW * (1 + 1e-12)) | (got >= FAST * (1 - 1e-12))).all())
    assert bool((got.diff() > 0).all())
    far = (theta > 100 * FAST) | (theta < SLOW / 100)
    assert float((got[far] / theta[far]).log().abs().max()) < 0.01


def test_the_gradient_of_the_gap_is_that_of_the_formula():
    theta = torch.logspace(-5, 0, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: candidates.outside(x, SLOW, FAST), (theta,), eps=1e-8, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_candidate_trains_as_an_encoding_of_one_s_own(name):
    encoding = build_encoding(f"results.candidates:{name}", ModelConfig(num_layers=1, num_heads=1), 2048)
    theta, rope = encoding.frequencies(), geometric(64, 10_000.0)
    theta.sum().backward()
    learned = encoding.alpha.grad != 0
    assert bool(encoding.alpha.grad.isfinite().all())
    if name == "WholeTurns":
        assert theta.tolist() == torch.where(rope < FAST, 0.0, rope).tolist()
        assert learned.tolist() == (rope >= FAST).tolist()
    elif name == "WholeTokens":
        wavelengths = 2 * math.pi / theta.detach().double()
        assert float((wavelengths - wavelengths.round()).abs().div(wavelengths).max()) < 1e-6
        assert bool(learned.all())
    elif name == "Slowed":
        torch.testing.assert_close(theta, torch.where(rope < FAST, rope / 4, rope))
        assert bool(learned.all())
    else:
        assert bool(learned.all())
        assert not bool(((theta > SLOW * 1.001) & (theta < FAST * 0.999)).any())
    assert encoding.artifact(2048).tensor().tolist() == theta.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_candidate_goes_through_training_and_evaluation(name, tmp_path):
    data = tiny_corpus(tmp_path / "data")
    tiny_run(data, tmp_path / "run", encoding=f"results.candidates:{name}", steps=4)
    assert evaluate(tmp_path / "run", EvalRequest(device="cpu")).loss > 0


def test_a_run_of_a_candidate_that_counts_is_the_same_again(tmp_path):
    """What an encoding of one's own keeps beside its frequencies starts as it was made."""
    data = tiny_corpus(tmp_path / "data")
    for name in ("one", "other"):
        tiny_run(data, tmp_path / name, encoding="results.candidates:Slowed,train_length=32,reach=128", steps=4)
    losses = [[record.loss for record in read_metrics(tmp_path / name).steps] for name in ("one", "other")]
    assert losses[0] == losses[1]


def test_slow_bands_are_slowed_by_another_factor_in_each_pass_and_by_the_most_ever_after():
    encoding = candidates.Slowed(64, train_length=256, reach=1024)
    slow, positions = encoding.theta < 2 * math.pi / 256, torch.arange(8)

    def factors() -> torch.Tensor:
        q, _ = encoding.rotation(positions)(torch.ones(1, 8, 1, 64), torch.ones(1, 8, 1, 64))
        # Of position 1, beside the 45 degrees that ones start from.
        angles = torch.atan2(q[0, 1, 0, 32:], q[0, 1, 0, :32]).double() - math.pi / 4
        return encoding.theta.double() / angles

    found = torch.stack([factors() for _ in range(64)])
    torch.testing.assert_close(found[:, ~slow], torch.ones_like(found[:, ~slow]), rtol=1e-3, atol=0)
    drawn = found[:, slow][:, 0].detach().log() / math.log(4)
    assert drawn.sort().values.diff().max() < 3 / 64
    assert 0 <= float(drawn.min()) < 0.05
    assert 0.95 < float(drawn.max()) < 1
    encoding.eval()
    torch.testing.assert_close(factors()[slow][0].item(), 4.0, rtol=1e-3, atol=0)
