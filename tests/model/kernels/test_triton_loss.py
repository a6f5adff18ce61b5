"""The cross-entropy kernel against float64, in Triton's interpreter where there is no GPU, and z-loss everywhere."""

import pytest
import torch

from lerope.model import loss
from lerope.model.kernels import layers
from lerope.model.kernels.layers import FastHead
from lerope.model.loss import Head
from tests.train.runs import metrics, tiny_corpus, tiny_run

pytest.importorskip("triton")

from lerope.model.kernels import triton_loss
from lerope.model.kernels.triton_loss import cross_entropy_

pytestmark = pytest.mark.usefixtures("_rounds_as_a_gpu")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def definition(logits, targets, z_weight):
    """Each row's loss and the gradient of their sum, in float64."""
    logits = logits.detach().double().requires_grad_()
    logsumexp = torch.logsumexp(logits, -1)
    each = logsumexp - logits.gather(-1, targets.clamp(min=0)[:, None])[:, 0] + z_weight * logsumexp.square()
    each = torch.where(targets >= 0, each, 0.0)
    each.sum().backward()
    return each.detach(), logits.grad


def example(rows, vocab_size, dtype=torch.float32, scale=3.0):
    torch.manual_seed(vocab_size)
    logits = (scale * torch.randn(rows, vocab_size)).to(DEVICE, dtype)
    targets = torch.randint(vocab_size, (rows,)).to(DEVICE)
    targets[::3] = -1
    targets[1] = vocab_size - 1
    targets[2] = 0
    return logits, targets


@pytest.fixture(params=[16, 1024], ids=lambda n: f"block-{n}")
def _block(request, monkeypatch):
    monkeypatch.setattr(triton_loss, "_BLOCK", request.param)


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("z_weight", [0.0, 0.01])
@pytest.mark.parametrize("vocab_size", [2, 16, 17, 50, 1025])
def test_losses_and_gradient_equal_the_definition(vocab_size, z_weight):
    """Blocks that the vocabulary fills, overflows and leaves nearly empty."""
    logits, targets = example(7, vocab_size)
    losses, gradient = definition(logits, targets, z_weight)
    got = cross_entropy_(logits, targets, z_weight, gradient=True)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), losses, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(logits.double(), gradient, rtol=2e-5, atol=1e-6)
    assert not logits[targets < 0].any()
    assert not got[targets < 0].any()


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("z_weight", [0.0, 0.01])
def test_16_bits_cost_one_rounding_of_the_gradient(dtype, z_weight):
    logits, targets = example(6, 37, dtype)
    losses, gradient = definition(logits, targets, z_weight)
    got = cross_entropy_(logits, targets, z_weight, gradient=True)
    torch.testing.assert_close(got.double(), losses, rtol=2e-6, atol=2e-6)
    rounding = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(logits.double(), gradient, rtol=1.01 * rounding, atol=1e-6)


def test_without_a_gradient_the_logits_stay():
    logits, targets = example(6, 37)
    before = logits.clone()
    got = cross_entropy_(logits, targets, 0.1, gradient=False)
    assert torch.equal(logits, before)
    torch.testing.assert_close(got.double(), definition(before, targets, 0.1)[0], rtol=2e-6, atol=2e-6)


@pytest.mark.usefixtures("_block")
def test_extreme_logits():
    """Nothing overflows: all far up, all far down, one alone far above, equal ones, a target that is far below."""
    logits = torch.zeros(6, 40, device=DEVICE)
    logits[0] = 1e4
    logits[1] = -1e4
    logits[2, 33] = 1e4
    logits[3, 5] = -1e4
    logits[4] = torch.linspace(-1e4, 1e4, 40)
    targets = torch.tensor([3, 3, 33, 5, 0, 39], device=DEVICE)
    losses, gradient = definition(logits, targets, 0.0)
    got = cross_entropy_(logits, targets, 0.0, gradient=True)
    # At 1e4, float32 numbers are 1e-3 apart, and so is the logsumexp.
    torch.testing.assert_close(got.double(), losses, rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(logits.double(), gradient, rtol=1e-3, atol=1e-6)


def test_rows_may_lie_apart():
    """As a slice of wider rows."""
    logits, targets = example(5, 20)
    wide = torch.full((5, 32), 7.0, device=DEVICE)
    wide[:, :20] = logits
    want = cross_entropy_(logits, targets, 0.0, gradient=True)
    assert torch.equal(cross_entropy_(wide[:, :20], targets, 0.0, gradient=True), want)
    assert torch.equal(wide[:, :20], logits)
    assert (wide[:, 20:] == 7.0).all()


def test_a_target_beyond_the_vocabulary_spoils_no_other_row():
    logits, targets = example(4, 10)
    whole, alone = logits.clone(), logits[1:].clone()
    targets[0] = 12
    losses = cross_entropy_(whole, targets, 0.0, True)
    assert losses[0].isnan()
    torch.testing.assert_close(losses[1:], cross_entropy_(alone, targets[1:], 0.0, True))
    torch.testing.assert_close(whole[1:], alone, rtol=0, atol=0)


def test_no_rows():
    assert cross_entropy_(
        torch.zeros(0, 9, device=DEVICE), torch.zeros(0, dtype=torch.long, device=DEVICE), 0.0, True
    ).shape == (0,)


@pytest.mark.parametrize("kernel", ["triton", "reference"])
@pytest.mark.parametrize("z_weight", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 130, 1 << 20])
def test_the_head_with_z_loss_equals_autograd_of_the_definition(monkeypatch, kernel, z_weight, chunk):
    """Both paths of the head, in chunks."""
    monkeypatch.setattr(layers, "triton_obstacle", lambda *tensors: None)
    monkeypatch.setattr(layers, "HEAD_CHUNK_LOGITS", chunk)
    monkeypatch.setitem(loss._CHUNK_LOGITS, DEVICE, chunk)
    torch.manual_seed(0)
    head = (FastHead if kernel == "triton" else Head)(16, 50).to(DEVICE)
    x = torch.randn(2, 7, 16, device=DEVICE, requires_grad=True)
    targets = torch.randint(-1, 50, (2, 7), device=DEVICE)
    total = head(x, targets, z_weight)
    (2 * total).backward()

    x64, weight = x.detach().double().requires_grad_(), head.weight.detach().double().requires_grad_()
    logits = x64 @ weight.t()
    logsumexp = logits.logsumexp(-1)
    each = logsumexp - logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0] + z_weight * logsumexp.square()
    want = torch.where(targets >= 0, each, 0.0).sum()
    (2 * want).backward()
    torch.testing.assert_close(total, want, rtol=1e-6, atol=0)
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.weight.grad.double(), weight.grad, rtol=1e-5, atol=1e-5)


def test_losses_of_single_tokens_have_no_z_loss():
    head, x = Head(16, 50), torch.randn(2, 7, 16)
    targets = torch.randint(-1, 50, (2, 7))
    want = definition(head(x).flatten(0, 1), targets.flatten(), 0.0)[0]
    torch.testing.assert_close(head.token_losses(x, targets).flatten().double(), want, rtol=1e-5, atol=1e-5)


def test_training_has_z_loss_and_validation_has_not(tmp_path):
    """At the first step weights are the same, so losses differ by the z-loss alone; it is w times a mean square."""
    data = tiny_corpus(tmp_path / "c")
    changes = {"steps": 1, "learning_rate": 1e-9, "weight_decay": 0.0}
    runs = {w: tmp_path / str(w) for w in (0.0, 0.01, 0.02)}
    for weight, out in runs.items():
        tiny_run(data, out, z_loss=weight, **changes)
    losses = {w: next(r["loss"] for r in metrics(out) if "loss" in r) for w, out in runs.items()}
    validation = {
        w: next(r["validation_loss"] for r in metrics(out) if "validation_loss" in r) for w, out in runs.items()
    }
    square = (losses[0.01] - losses[0.0]) / 0.01
    # The logits of 50 tokens at the start are about normal: their logsumexp lies between log 50 and a little more.
    assert 3.9**2 < square < 5.5**2
    assert (losses[0.02] - losses[0.0]) / 0.02 == pytest.approx(square, rel=1e-4)
    assert validation[0.01] == pytest.approx(validation[0.0], rel=1e-6)
    assert validation[0.02] == pytest.approx(validation[0.0], rel=1e-6)
