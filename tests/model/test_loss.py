"""Head and loss in chunks against float64 and against torch's own cross-entropy."""

import weakref

import pytest
import torch
from torch.nn import functional

from lerope.model import loss as module
from lerope.model.loss import Head


def example(rows=3, length=7, width=16, vocab_size=50, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, length, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocab_size, width, generator=generator, dtype=torch.float64)
    targets = torch.randint(-1, vocab_size, (rows, length), generator=generator)
    targets[0, 0] = -1
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def make_head(weight):
    head = Head(weight.shape[1], weight.shape[0])
    head.weight = torch.nn.Parameter(weight.detach().clone())
    return head


def reference(x, weight, targets):
    """The definition, token by token, in float64."""
    x, weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    logits = x @ weight.t()
    each = torch.logsumexp(logits, -1) - logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    each = torch.where(targets >= 0, each, 0.0)
    each.sum().backward()
    return each.detach(), x.grad, weight.grad


@pytest.fixture(params=[1, 60, 175, 1 << 20], ids=lambda n: f"chunk-{n}")
def chunk(request, monkeypatch):
    monkeypatch.setitem(module._CHUNK_LOGITS, "cpu", request.param)


@pytest.mark.parametrize("targets_dtype", [torch.int64, torch.int32])
def test_value_and_gradients_equal_the_definition(chunk, targets_dtype):
    x, weight, targets = example()
    head = make_head(weight)
    each, grad_x, grad_weight = reference(x, weight, targets)
    total = head(x, targets.to(targets_dtype))
    assert total.dtype == torch.float64
    (3 * total).backward()
    torch.testing.assert_close(total.detach(), each.sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(x.grad, 3 * grad_x.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.weight.grad, 3 * grad_weight.float(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(head(x, targets), total.detach())


@pytest.mark.parametrize("gradient", [True, False])
def test_chunks_are_alike_and_one_is_alive_at_a_time(monkeypatch, gradient):
    """Of 12 tokens with room for 5: three chunks, none of them a small rest."""
    monkeypatch.setitem(module._CHUNK_LOGITS, "cpu", 5 * 16)
    made, alive, sizes = [], [], []

    class Watched(Head):
        def logits(self, *args):
            alive.append(sum(reference() is not None for reference in made))
            out = super().logits(*args)
            made.append(weakref.ref(out))
            sizes.append(len(out))
            return out

        def losses_(self, logits, *args):
            return torch.zeros(len(logits)), logits

    head = Watched(8, 16).requires_grad_(gradient)
    head(torch.randn(12, 8, requires_grad=gradient), torch.zeros(12, dtype=torch.long))
    assert sizes == [4, 4, 4]
    assert alive == [0, 0, 0]


def test_losses_of_single_tokens(chunk):
    x, weight, targets = example()
    got = make_head(weight).token_losses(x, targets)
    assert got.dtype == torch.float32
    assert not got.requires_grad
    torch.testing.assert_close(got.double(), reference(x, weight, targets)[0], rtol=1e-5, atol=1e-5)


def test_float64_stays_float64(chunk):
    x, weight, targets = example(dtype=torch.float64)
    head = make_head(weight).double()
    _, grad_x, grad_weight = reference(x, weight, targets)
    head(x, targets).backward()
    torch.testing.assert_close(x.grad, grad_x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(head.weight.grad, grad_weight, rtol=1e-12, atol=1e-12)


def test_gradcheck(chunk):
    x, weight, targets = example(1, 4, 3, 5, torch.float64)
    head = make_head(weight).double()
    call = torch.func.functional_call
    torch.autograd.gradcheck(lambda x, w: call(head, {"weight": w}, (x, targets)), (x, weight))


def test_bf16_autocast_is_as_close_as_torch(chunk):
    """Against float64, the error under autocast is no larger than that of a linear layer and cross_entropy."""
    x, weight, targets = example(4, 32, 64, 300)
    each, grad_x, grad_weight = reference(x, weight, targets)
    errors = {}
    for name in ("ours", "torch"):
        head, inputs = make_head(weight), x.detach().clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            if name == "ours":
                total = head(inputs, targets)
            else:
                logits = head(inputs).flatten(0, -2)
                total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum")
        total.backward()
        assert inputs.grad.dtype == head.weight.grad.dtype == torch.float32
        pairs = ((total.detach(), each.sum()), (inputs.grad, grad_x), (head.weight.grad, grad_weight))
        errors[name] = [float((got.double() - want).norm() / want.norm()) for got, want in pairs]
    assert all(ours <= 1.2 * theirs + 1e-4 for ours, theirs in zip(errors["ours"], errors["torch"], strict=True)), (
        errors
    )


def test_autocast_computes_logits_in_bf16():
    """Not merely as close: the products are those of bf16, or a GPU would spend its time in float32."""
    x, weight, targets = example(4, 32, 64, 300)
    head = make_head(weight)
    with torch.autocast("cpu", torch.bfloat16):
        got = head(x, targets).detach()
    logits = (x.detach().bfloat16() @ weight.detach().bfloat16().t()).float().flatten(0, -2)
    want = functional.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum")
    assert float(got) == pytest.approx(float(want), rel=1e-6)
    assert float(got) != pytest.approx(float(head(x, targets).detach()), rel=1e-6)


def test_nothing_to_predict_is_zero():
    x, weight, _ = example()
    head = make_head(weight)
    total = head(x, torch.full((3, 7), -1))
    total.backward()
    assert total == 0
    assert not x.grad.any()
    assert not head.weight.grad.any()


def test_without_gradients_none_is_computed(monkeypatch):
    """Validation must not pay for the head's gradient."""
    x, weight, targets = example()
    monkeypatch.setattr(module, "_add_product", lambda *args: pytest.fail("a gradient was computed"))
    with torch.no_grad():
        make_head(weight)(x.detach(), targets)


def test_a_second_derivative_is_refused():
    """It would be that of the scaling alone, without a word."""
    x, weight, targets = example()
    total = make_head(weight)(x, targets)
    (gradient,) = torch.autograd.grad(total.square(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
