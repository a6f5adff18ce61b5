"""Numbers as they were before the code was rearranged (commit 1ac3f0a): who changes one changes every run."""

import hashlib

import pytest
import torch

import lerope
from lerope.core.ladder import ModelConfig
from lerope.data.packing import place, shuffled
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer


def digest(tensor):
    return hashlib.sha256(tensor.detach().float().numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (lerope.RoPE(64), "734f9e6b629f7bac"),
        (lerope.PRoPE(64), "381d89d2da037aaf"),
        (lerope.LeRoPE(64), "734f9e6b629f7bac"),
        (lerope.LeRoPE(64, parametrization="direct", sharing="layer", num_layers=2), "734f9e6b629f7bac"),
    ],
    ids=["rope", "prope", "lerope", "lerope-direct-layer"],
)
def test_first_frequencies_bit_for_bit(encoding, expected):
    assert digest(encoding.frequencies(None if encoding.num_layers is None else 0)) == expected


LOSSES = {
    ("gelu", False): [3482.5484867, 3550.6876361, 3389.4630842, 3380.1713786, 3361.5368671, 3309.8730893],
    ("gelu", True): [3482.5987289, 3550.5616112, 3389.0273395, 3380.1108768, 3361.6210675, 3310.3605943],
    ("relu2", False): [3468.9708672, 3563.5120084, 3407.5289903, 3369.8275909, 3366.9583735, 3311.0756412],
    ("relu2", True): [3468.7777336, 3563.2061665, 3408.3463640, 3370.8288941, 3365.6088085, 3311.5544868],
}


@pytest.mark.parametrize(("activation", "bf16"), LOSSES)
def test_losses_of_a_short_run(activation, bf16):
    """Bit for bit on the machine they come from; other processors sum in another order, which six steps enlarge."""
    model = Transformer(
        ModelConfig(num_layers=2, num_heads=2, head_dim=64, vocab_size=512, activation=activation), lerope.LeRoPE(64)
    )
    init_weights(model, 42)
    optimizer = torch.optim.AdamW(lerope.param_groups(model, 1e-2, 0.1))
    generator = torch.Generator().manual_seed(0)
    count = torch.arange(128)
    ids = (count >= 50).long().expand(4, -1).contiguous()
    positions = torch.where(count >= 50, count - 50, count).expand(4, -1)
    losses = []
    for _ in range(6):
        tokens = torch.randint(0, 512, (4, 129), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(tokens[:, :-1], positions, ids, targets=tokens[:, 1:])
        (loss / 512).backward()
        lerope.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == pytest.approx(LOSSES[activation, bf16], rel=1e-3 if bf16 else 1e-5)


def test_the_order_of_documents_and_rows():
    """Those of commit 5542bb2, the first with an order of rows."""
    assert shuffled(8, 42, 0).tolist() == [3, 6, 0, 4, 7, 1, 2, 5]
    assert [place(number, 10, 42, 0) for number in range(10)] == [8, 2, 1, 5, 3, 7, 0, 4, 6, 9]
    assert place(123_456_789, 10**9, 43, 2) == 696039444
