"""The ladder's model: masks, initial weights, pairing, and agreement with a slow float64 forward pass."""

import math

import pytest
import torch
from torch import nn

import lerope
from lerope.core.ladder import LADDER, ModelConfig, rung
from lerope.model.attention import DocumentMask
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer
from tests.rotary.reference import rotated

TINY = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)


def make(encoding: lerope.Encoding | None = None, config: ModelConfig = TINY, seed: int = 0) -> Transformer:
    model = Transformer(config, encoding or lerope.LeRoPE(config.head_dim))
    init_weights(model, seed)
    return model


def packed(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One row of documents: tokens, positions that restart, document ids."""
    tokens = torch.randint(50, (1, sum(lengths)), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    return tokens, positions, ids


def norm64(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain.double()


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_logits_match_a_float64_forward_pass_written_from_the_recipe(activation):
    config = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50, activation=activation)
    model = make(config=config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    tokens, positions, ids = packed([7, 1, 12])
    got = model(tokens, positions, ids)

    w = {name: p.detach().double() for name, p in model.named_parameters()}
    frequencies = w["encoding.alpha"].exp() * lerope.RoPE(16).frequencies().double()
    visible = (ids[0, :, None] == ids[0, None, :]) & torch.ones(20, 20, dtype=torch.bool).tril()
    x = w["embedding.weight"][tokens[0]]
    for i in range(2):
        h = norm64(x, w[f"blocks.{i}.attention_norm.weight"]) @ w[f"blocks.{i}.attention.qkv.weight"].T
        q, k, v = h.view(20, 3, 2, 16).unbind(1)
        q = rotated(norm64(q, w[f"blocks.{i}.attention.q_norm.weight"]), positions[0], frequencies)
        k = rotated(norm64(k, w[f"blocks.{i}.attention.k_norm.weight"]), positions[0], frequencies)
        logits = torch.einsum("shd,thd->hst", q, k) / math.sqrt(16)
        read = torch.einsum("hst,thd->shd", logits.masked_fill(~visible, -torch.inf).softmax(-1), v)
        x = x + read.flatten(-2) @ w[f"blocks.{i}.attention.out.weight"].T
        h = norm64(x, w[f"blocks.{i}.mlp_norm.weight"]) @ w[f"blocks.{i}.mlp.up.weight"].T
        h = h.clamp(min=0) ** 2 if activation == "relu2" else h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        x = x + h @ w[f"blocks.{i}.mlp.down.weight"].T
    want = norm64(x, w["norm.weight"]) @ w["head.weight"].T
    torch.testing.assert_close(got[0].double(), want, rtol=0, atol=2e-5)


def test_packed_equals_unpacked_in_logits_and_gradients():
    model = make()
    tokens, positions, ids = packed([9, 30, 1, 24])
    weight = torch.randn(64, 50)

    def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    logits = model(tokens, positions, ids)[0]
    together = gradients((logits * weight).sum())
    alone = [model(part)[0] for part in tokens.split([9, 30, 1, 24], dim=1)]
    torch.testing.assert_close(logits, torch.cat(alone), rtol=0, atol=1e-5)
    apart = gradients((torch.cat(alone) * weight).sum())
    for name in together:
        torch.testing.assert_close(together[name], apart[name], rtol=1e-4, atol=2e-4)


def test_one_document_cannot_touch_another():
    model = make()
    tokens, positions, ids = packed([20, 15, 29])
    before = model(tokens, positions, ids)
    changed = tokens.clone()
    changed[0, 20:35] = (changed[0, 20:35] + 1) % 50
    after = model(changed, positions, ids)
    assert torch.equal(before[0, :20], after[0, :20])
    assert torch.equal(before[0, 35:], after[0, 35:])
    assert not torch.allclose(before[0, 20:35], after[0, 20:35])


def test_the_future_cannot_touch_the_past():
    model = make()
    tokens, _, _ = packed([40])
    before = model(tokens)
    tokens[0, 25:] = 0
    after = model(tokens)
    torch.testing.assert_close(before[0, :25], after[0, :25], rtol=0, atol=1e-6)
    assert not torch.allclose(before[0, 25:], after[0, 25:])


ENCODINGS = [
    lerope.NoPE(16),
    lerope.RoPE(16),
    lerope.PRoPE(16),
    lerope.LeRoPE(16),
    lerope.LeRoPE(16, parametrization="direct", sharing="layer_head", num_layers=2, num_heads=2),
    lerope.FrozenRoPE(torch.rand(8)),
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=repr)
def test_every_encoding_starts_from_the_same_weights(encoding):
    reference = make(lerope.RoPE(16), seed=7)
    model = make(encoding, seed=7)
    for name, p in model.named_parameters():
        if not name.startswith("encoding."):
            assert torch.equal(p, reference.get_parameter(name))
    assert model(torch.randint(50, (2, 9))).shape == (2, 9, 50)


def test_rope_and_lerope_are_one_model_until_the_frequencies_move():
    """The paired comparison: same logits at the start, and the same step where alpha is held."""
    models = [make(lerope.RoPE(16)), make(lerope.LeRoPE(16))]
    tokens, positions, ids = packed([20, 15, 29])
    models[1].encoding.alpha.requires_grad_(False)
    for model in models:
        optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-2, weight_decay=0.1))
        nn.functional.cross_entropy(model(tokens, positions, ids)[0], tokens[0]).backward()
        lerope.clip_grad_norm_(model, 1.0)
        optimizer.step()
    for name, p in models[0].named_parameters():
        assert torch.equal(p, models[1].get_parameter(name))


def test_initial_weights_have_the_recipes_size_and_their_own_streams():
    config = ModelConfig(num_layers=3, num_heads=4, head_dim=64, vocab_size=1000)
    model = make(lerope.RoPE(64), config, seed=42)
    width = 256
    expected = {
        "embedding.weight": width**-0.5,
        "head.weight": width**-0.5,
        "blocks.1.attention.qkv.weight": width**-0.5,
        "blocks.1.mlp.up.weight": width**-0.5,
        "blocks.1.attention.out.weight": (2 * 3 * width) ** -0.5,
        "blocks.1.mlp.down.weight": (2 * 3 * 4 * width) ** -0.5,
    }
    for name, std in expected.items():
        weight = model.get_parameter(name)
        assert weight.std().item() == pytest.approx(std, rel=0.02)
        assert abs(weight.mean().item()) < 4 * std / math.sqrt(weight.numel())
    assert torch.equal(model.norm.weight, torch.ones(width))
    assert not torch.equal(model.blocks[0].mlp.up.weight, model.blocks[1].mlp.up.weight)
    other = make(lerope.RoPE(64), config, seed=43)
    assert not torch.equal(other.head.weight, model.head.weight)
    # Deeper models share the streams of the layers they have in common, apart from the depth factor.
    with torch.device("meta"):
        empty = Transformer(config, lerope.RoPE(64))
    empty.to_empty(device="cpu")
    init_weights(empty, 42)
    for name, p in empty.named_parameters():
        assert torch.equal(p, model.get_parameter(name))


def test_gradients_reach_the_frequencies():
    for sharing in ("shared", "layer", "head"):
        lerope.check_gradients(make(lerope.LeRoPE(16, sharing=sharing, num_layers=2, num_heads=2)))


def test_parameter_groups_follow_the_paper():
    """Decay on all matrices and the head; none on embedding, gains and frequencies."""
    model = make()
    names = {id(p): name for name, p in model.named_parameters()}
    groups = {g["name"]: {names[id(p)] for p in g["params"]} for g in lerope.param_groups(model, 1e-3, 0.1)}
    assert groups["frequencies"] == {"encoding.alpha"}
    assert "head.weight" in groups["decay"]
    assert "embedding.weight" in groups["no_decay"]
    assert all("norm" in name or name == "embedding.weight" for name in groups["no_decay"])


def test_bad_input_is_named():
    tokens = torch.zeros(1, 4, dtype=torch.long)
    cases = [
        (lambda: rung("60M"), "rung must be one of demo, 19M"),
        (lambda: ModelConfig(num_layers=0, num_heads=2), "num_layers must be a positive whole number; got 0"),
        (lambda: ModelConfig(num_layers=1, num_heads=2, head_dim=15), "head_dim must be even.*15"),
        (lambda: ModelConfig(num_layers=1, num_heads=2, activation="swish"), "activation must be one of.*'swish'"),
        (lambda: ModelConfig(num_layers=1, num_heads=2, norm_eps=0.0), "norm_eps must lie between 0 and 1; got 0.0"),
        (lambda: Transformer(TINY, lerope.RoPE(64)), "encoding must have the model's head_dim of 16; got 64"),
        (lambda: init_weights(make(), -1), "seed must be a whole number of 0 or more; got -1"),
        (lambda: make()(tokens[0]), r"tokens must have shape \(rows, length\); got \(4,\)"),
        (lambda: DocumentMask(tokens, "flash"), "backend must be one of sdpa, flex, varlen, flash4; got 'flash'"),
        (lambda: DocumentMask(tokens, "flex"), "backend 'flex' needs a CUDA device"),
        (lambda: DocumentMask(None, "flex"), "backend 'flex' needs document_ids"),
        (lambda: DocumentMask(tokens[0]), r"document_ids must be integers of shape \(rows, length\)"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_the_ladder_is_built_by_one_rule():
    for name, config in LADDER.items():
        assert config.num_heads * 3 == config.num_layers * 4, name
        assert config.head_dim == 64
        assert config.mlp_width == 4 * config.width
