"""On a device without float64, as on a Mac: everything runs, and gives what the CPU gives to float32."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import lerope
from tests.narrow import narrow_device

POSITIONS = torch.arange(16)


@pytest.fixture
def device(monkeypatch):
    with narrow_device(monkeypatch) as name:
        yield name


def test_the_device_refuses_what_such_devices_refuse(device):
    x = torch.ones(3, device=device)
    assert x.device.type == device
    assert (x * 2).cpu().tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match="float64"):
        x.double()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)


@pytest.mark.parametrize(
    "encoding",
    [
        *(lerope.RoPE(64), lerope.PRoPE(64), lerope.preset("english", head_dim=64, train_length=2048)),
        *(lerope.LeRoPE(64, parametrization=name) for name in ("log", "linear", "direct")),
        lerope.LeRoPE(64, sharing="layer_head", num_layers=2, num_heads=4),
    ],
    ids=repr,
)
def test_encodings(encoding, device, tmp_path):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 16, 4, 64, generator=generator) for _ in range(2))
    layer = 1 if "(2, 4, 32)" in repr(encoding) else None

    def turned(q, k, positions):
        q, k = q.requires_grad_(), k.requires_grad_()
        found = encoding(q, k, positions, layer=layer)
        torch.stack(found).square().mul(torch.stack(found)).sum().backward()
        learned = [parameter.grad.clone() for parameter in encoding.parameters()]
        encoding.zero_grad()
        return [*found, q.grad, k.grad, *learned]

    expected = turned(q, k, POSITIONS)
    encoding.to(device)
    moved = (each.detach().to(device) for each in (q, k))
    for one, other in zip(expected, turned(*moved, POSITIONS.to(device)), strict=True):
        assert other.device.type == device
        torch.testing.assert_close(other.cpu(), one, rtol=1e-4, atol=1e-4 * float(one.detach().abs().max()))
    encoding.save(tmp_path / "frequencies.json")
    assert "band" in str(encoding.diagnostics(2048, layer))
    assert torch.isfinite(encoding.freeze().to(device).frequencies(layer).cpu()).all()


@pytest.mark.parametrize("method", ["none", "pi", "ntk_by_parts", "yarn", "slow_bands", "dominant_band", "logits"])
@pytest.mark.parametrize("length", [8192, torch.tensor([4096, 8192])], ids=["one", "two"])
def test_extensions(method, length, device):
    theta = lerope.RoPE(64).frequencies()
    rest = {"train_length": 2048, "method": method, "dominant_band": 3}
    expected = lerope.extend(theta, length=length, **rest)
    moved = length.to(device) if isinstance(length, torch.Tensor) else length
    found = lerope.extend(theta.to(device), length=moved, **rest)
    torch.testing.assert_close(found.frequencies.cpu(), expected.frequencies)
    one, other = (
        torch.as_tensor(scale.cpu() if isinstance(scale, torch.Tensor) else scale) for scale in (found[1], expected[1])
    )
    torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_the_rest_of_the_library(device):
    assert lerope.scale_by_position(POSITIONS.to(device), 8, 0.2).device.type == device
    theta, keys = lerope.RoPE(64).frequencies(), torch.randn(2, 16, 4, 64)
    expected = lerope.rerotate(keys, POSITIONS, theta, 2 * theta)
    found = lerope.rerotate(keys.to(device), POSITIONS.to(device), theta.to(device), 2 * theta.to(device))
    torch.testing.assert_close(found.cpu(), expected)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.encoding, self.head = nn.Embedding(50, 64), lerope.LeRoPE(16), nn.Linear(64, 50)

    def forward(self, ids):
        x = self.embedding(ids)
        heads = x.view(*ids.shape, 4, 16)
        q, k = self.encoding(heads, heads, torch.arange(ids.shape[1], device=ids.device))
        out = functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, heads)), is_causal=True)
        return self.head(out.transpose(1, 2).reshape(x.shape))


def test_training(device):
    model = Attention().to(device)
    lerope.check_gradients(model)
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-2, weight_decay=0.1))
    for _ in range(2):
        model(torch.randint(50, (2, 16), device=device)).square().mean().backward()
        lerope.clip_grad_norm_(model, max_norm=1.0)
        optimizer.step()
    assert bool((model.encoding.alpha.cpu() != 0).all())


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma3"])
def test_converted_models(family, device):
    transformers = pytest.importorskip("transformers")
    from lerope.interop.trainer import log_scales

    name = f"{family}Text" if family == "Gemma3" else family
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, **heads, attn_implementation="eager")
    model = lerope.convert(getattr(transformers, f"{family}ForCausalLM")(config))
    ids = torch.randint(50, (2, 16))

    def trained(ids):
        model.zero_grad()
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss, *(p.grad for name, p in model.named_parameters() if name.endswith("alpha"))

    expected = [each.detach().clone() for each in trained(ids)]
    model.to(device)
    for one, other in zip(expected, trained(ids.to(device)), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one, rtol=1e-4, atol=1e-6)
    assert all(scale == 0 for scales in log_scales(model).values() for scale in scales)
