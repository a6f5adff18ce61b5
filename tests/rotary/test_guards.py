"""Parameter groups, clipping and the gradient check, on models that are right and on models that are broken."""

import math

import pytest
import torch
from torch import nn

import lerope


class Attention(nn.Module):
    """One attention layer; subclasses break its rotation in the ways real code does."""

    def __init__(self, encoding: lerope.Encoding):
        super().__init__()
        self.encoding = encoding
        self.qkv = nn.Linear(32, 96, bias=False)

    def rotate(self, q, k):
        return self.encoding(q, k, 0)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).unbind(-3)
        q, k = self.rotate(q, k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)


class Detached(Attention):
    """What a fused kernel that returns None for its tables amounts to."""

    def rotate(self, q, k):
        frequencies = self.encoding.frequencies().detach()
        return lerope.rotate(q, 0, frequencies), lerope.rotate(k, 0, frequencies)


class UnderNoGrad(Attention):
    """What Hugging Face's rotary module does."""

    def rotate(self, q, k):
        with torch.no_grad():
            rotation = self.encoding.rotation(torch.arange(q.shape[1]))
        return rotation(q, k)


class HalfDetached(Attention):
    """Queries learn, keys do not: a gradient arrives, and it is wrong."""

    def rotate(self, q, k):
        frequencies = self.encoding.frequencies()
        return lerope.rotate(q, 0, frequencies), lerope.rotate(k, 0, frequencies.detach())


class Silent(Attention):
    def forward(self, x):
        return "nothing to see"


class Unused(Attention):
    def rotate(self, q, k):
        return q, k


class SecondLayerDetached(Attention):
    """One of two layers with frequencies of their own is cut off: a gradient arrives, orthogonal to what is missing."""

    def rotate(self, q, k):
        frequencies = self.encoding.frequencies(self.layer)
        frequencies = frequencies.detach() if self.layer else frequencies
        return lerope.rotate(q, 0, frequencies), lerope.rotate(k, 0, frequencies)


class LanguageModel(nn.Module):
    def __init__(self, attention: type[Attention] = Attention, encoding: lerope.Encoding | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList([attention(encoding or lerope.LeRoPE(16)) for _ in range(2)])
        for i, layer in enumerate(self.layers):
            layer.encoding, layer.layer = self.layers[0].encoding, i
        self.norm = nn.RMSNorm(32)
        self.head = nn.Linear(32, 50, bias=True)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(self.norm(x)), "hidden": [x]}


@pytest.mark.parametrize("sharing", ["shared", "head"])
def test_check_gradients_passes_on_a_sound_model(sharing):
    model = LanguageModel(encoding=lerope.LeRoPE(16, sharing=sharing, num_heads=2))
    norms = lerope.check_gradients(model)
    assert set(norms) == {"layers.0.encoding.alpha"}
    assert norms["layers.0.encoding.alpha"] > 0


@pytest.mark.parametrize("broken", [Detached, UnderNoGrad, HalfDetached, Unused])
def test_check_gradients_finds_broken_rotations(broken):
    with pytest.raises(ValueError, match=r"layers\.0\.encoding\.alpha receives"):
        lerope.check_gradients(LanguageModel(broken))
    with pytest.raises(ValueError, match=r"encoding\.alpha receives"):
        lerope.check_gradients(broken(lerope.LeRoPE(16)))


def test_check_gradients_finds_a_layer_that_is_cut_off():
    encoding = lerope.LeRoPE(16, sharing="layer", num_layers=2)
    with pytest.raises(ValueError, match="receives a wrong gradient"):
        lerope.check_gradients(LanguageModel(SecondLayerDetached, encoding))


class Halved(nn.Module):
    """What most language models do: 16 bits inside, float32 logits. Finite differences mean nothing here."""

    def __init__(self, model: nn.Module, autocast: bool):
        super().__init__()
        self.model, self.autocast = (model if autocast else model.to(torch.bfloat16)), autocast

    def forward(self, ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.model(ids)["logits"].float()


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("length", [32, 512])
def test_check_gradients_does_not_accuse_sound_16_bit_models(autocast, length):
    ids = torch.randint(50, (2, length), generator=torch.Generator().manual_seed(1))
    assert lerope.check_gradients(Halved(LanguageModel(), autocast), ids)


@pytest.mark.parametrize("length", [32, 1024, 2048])
def test_check_gradients_accepts_long_rows_and_small_weights(length):
    ids = torch.randint(50, (1, length), generator=torch.Generator().manual_seed(length))
    model = LanguageModel()
    assert lerope.check_gradients(model, ids)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "encoding" not in name:
                p.mul_(0.02)
    assert lerope.check_gradients(model, ids)


def test_check_gradients_restores_the_frequencies_when_a_model_fails():
    class Fails(LanguageModel):
        calls = 0

        def forward(self, ids):
            Fails.calls += 1
            if Fails.calls == 3:  # after the guess of an input and the backward pass
                raise MemoryError
            return super().forward(ids)

    model = Fails()
    with pytest.raises(ValueError, match="could not be run"):
        lerope.check_gradients(model)
    assert torch.equal(model.layers[0].encoding.alpha, torch.zeros(8))


def test_check_gradients_guesses_inputs_whatever_is_defined_first():
    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(32, 50)
            self.rest = LanguageModel()

        def forward(self, ids):
            return self.head(self.rest(ids)["hidden"][0])

    assert lerope.check_gradients(HeadFirst())


@pytest.mark.parametrize(("kind", "count"), [("cuda", 4), ("mps", 1), (None, 0)])
def test_check_gradients_keeps_the_random_state_of_the_devices_there_are(monkeypatch, kind, count):
    """Torch warns, at length, where `fork_rng` is not told of which; and takes CUDA for meant unless told otherwise."""
    kept, fork_rng = [], torch.random.fork_rng

    def keep(devices=None, device_type="cuda"):
        kept.append((list(devices), device_type if devices else None))
        return fork_rng(devices=[])

    accelerator = None if kind is None else torch.device(kind)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: accelerator)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: count)
    monkeypatch.setattr("torch.random.fork_rng", keep)
    assert lerope.check_gradients(LanguageModel())
    assert kept
    assert all(each == (list(range(count)), kind) for each in kept)


def test_check_gradients_after_a_backward_of_your_own():
    for attention, sound in ((Attention, True), (Detached, False)):
        model = LanguageModel(attention)
        model(torch.arange(20)[None])["logits"].square().sum().backward()
        if sound:
            assert lerope.check_gradients(model)
        else:
            with pytest.raises(ValueError, match="receives no gradient"):
                lerope.check_gradients(model)


def test_check_gradients_leaves_the_model_as_it_was():
    model = LanguageModel()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    lerope.check_gradients(model, torch.arange(20)[None])
    assert torch.equal(torch.get_rng_state(), state)
    for name, p in model.named_parameters():
        assert torch.equal(p, weights[name])
        assert p.grad is None


def test_check_gradients_in_bf16_and_in_one_direction_only():
    model = LanguageModel().to(torch.bfloat16)
    assert lerope.check_gradients(model)
    with pytest.raises(ValueError, match="receives no gradient"):
        lerope.check_gradients(LanguageModel(Detached).to(torch.bfloat16))


def test_check_gradients_says_what_it_needs():
    with pytest.raises(ValueError, match="no learnable frequencies"):
        lerope.check_gradients(LanguageModel(encoding=lerope.RoPE(16)))
    with pytest.raises(ValueError, match="pass them to check_gradients"):
        lerope.check_gradients(lerope.LeRoPE(16))
    with pytest.raises(ValueError, match="could not be run"):
        lerope.check_gradients(LanguageModel(), torch.randn(2, 3))
    with pytest.raises(ValueError, match="returned no floating-point tensors to check; got str"):
        lerope.check_gradients(Silent(lerope.LeRoPE(16)), 1)
    q = torch.randn(1, 4, 2, 16)
    assert lerope.check_gradients(lerope.LeRoPE(16), q, q, 0)


def test_param_groups_hold_every_parameter_once():
    model = LanguageModel()
    model.head.weight = model.embedding.weight  # tied
    frozen = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
    model.register_parameter("frozen", frozen)
    groups = {group["name"]: group for group in lerope.param_groups(model, lr=3e-4, weight_decay=0.1)}
    ids = [id(p) for group in groups.values() for p in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters() if p.requires_grad}
    assert [*map(id, groups["frequencies"]["params"])] == [id(model.layers[0].encoding.alpha)]
    assert groups["frequencies"]["weight_decay"] == 0
    assert groups["frequencies"]["lr"] == 3e-4
    assert {id(p) for p in groups["decay"]["params"]} == {id(layer.qkv.weight) for layer in model.layers}
    assert groups["decay"]["weight_decay"] == 0.1
    assert groups["no_decay"]["weight_decay"] == 0


@pytest.mark.parametrize("sharing", ["shared", "layer", "head", "layer_head"])
def test_matrices_of_frequencies_are_not_decayed_either(sharing):
    """A layer x head x band parameter looks like a weight matrix to name and shape rules."""
    model = LanguageModel(encoding=lerope.LeRoPE(16, sharing=sharing, num_layers=2, num_heads=2))
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=0.1, weight_decay=0.5, frequency_lr=0.01))
    group = optimizer.param_groups[-1]
    assert group["name"] == "frequencies"
    assert group["weight_decay"] == 0
    assert group["lr"] == 0.01


def test_param_groups_without_frequencies():
    names = [g["name"] for g in lerope.param_groups(LanguageModel(encoding=lerope.RoPE(16)), 1e-3, 0.1)]
    assert names == ["decay", "no_decay"]


def test_decay_does_not_pull_frequencies_and_the_optimizer_moves_them():
    model = LanguageModel()
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-2, weight_decay=10.0))
    alpha = model.layers[0].encoding.alpha
    with torch.no_grad():
        alpha.fill_(0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(alpha, torch.full_like(alpha, 0.5))
    assert model.head.weight.abs().max() < 1


def test_the_two_sets_are_clipped_independently():
    model = LanguageModel()
    alpha = model.layers[0].encoding.alpha
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    alpha.grad = torch.full_like(alpha, 100.0)
    rest = [p for p in model.parameters() if p is not alpha]
    want = math.sqrt(sum(p.numel() for p in rest)) * 1e-3
    norms = lerope.clip_grad_norm_(model, max_norm=1.0)
    assert norms.model.item() == pytest.approx(want, rel=1e-5)
    assert norms.frequencies.item() == pytest.approx(100 * math.sqrt(8), rel=1e-5)
    assert alpha.grad.norm().item() == pytest.approx(1.0, rel=1e-4)
    for p in rest:
        assert torch.equal(p.grad, torch.full_like(p, 1e-3))
    lerope.clip_grad_norm_(model, max_norm=want / 2, frequency_max_norm=0.25)
    assert alpha.grad.norm().item() == pytest.approx(0.25, rel=1e-4)
    assert rest[0].grad.flatten()[0].item() == pytest.approx(0.5e-3, rel=1e-4)


def test_clipping_without_gradients_or_frequencies():
    model = LanguageModel(encoding=lerope.RoPE(16))
    assert lerope.clip_grad_norm_(model, 1.0) == (0, 0)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    norms = lerope.clip_grad_norm_(model, 1.0)
    assert norms.model.item() == pytest.approx(40.0)
    assert norms.frequencies.item() == 0
