"""frequencies.json: what it holds, and that it comes back bit by bit."""

import json

import pytest
import torch

import lerope

FIELDS = {"head_dim", "base", "layout", "parametrization", "log_scales", "frequencies", "train_length", "fingerprint"}


@pytest.mark.parametrize("parametrization", ["log", "linear", "direct"])
@pytest.mark.parametrize("sharing", ["shared", "layer", "head", "layer_head"])
def test_round_trip(tmp_path, parametrization, sharing):
    path = tmp_path / "frequencies.json"
    encoding = lerope.LeRoPE(
        32, 500_000.0, parametrization, sharing, num_layers=3, num_heads=2, rotary_dim=16, layout="interleaved"
    )
    with torch.no_grad():
        encoding.alpha.mul_(1.1).add_(0.01 * torch.rand(encoding.alpha.shape))
    encoding.save(path, train_length=2048)
    content = json.loads(path.read_text())
    assert set(content) >= FIELDS
    assert content["train_length"] == 2048
    frozen = lerope.FrozenRoPE.load(path)
    learned = lerope.LeRoPE.load(path)
    assert torch.equal(frozen.frequencies(layer=2), encoding.frequencies(layer=2))
    torch.testing.assert_close(learned.frequencies(layer=2), encoding.frequencies(layer=2), rtol=1.3e-7, atol=0)
    assert learned.alpha.shape == encoding.alpha.shape
    assert learned.alpha.requires_grad
    x = torch.randn(2, 5, 2, 32)
    for got, want in zip(frozen(x, x, 3, layer=1), encoding(x, x, 3, layer=1), strict=True):
        assert torch.equal(got, want)
    frozen.save(tmp_path / "again.json", train_length=2048)
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["frequencies"] == content["frequencies"]
    assert again["base"] == 500_000.0


def test_log_scales_are_alpha(tmp_path):
    encoding = lerope.LeRoPE(16)
    with torch.no_grad():
        encoding.alpha.copy_(torch.linspace(0.6, -4, 8))
    scales = torch.tensor(encoding.artifact().log_scales)
    torch.testing.assert_close(scales, encoding.alpha.detach(), rtol=0, atol=2e-7)


def test_bands_without_a_logarithm_are_null(tmp_path):
    path = tmp_path / "frequencies.json"
    lerope.PRoPE(16, p=0.5).save(path)
    content = json.loads(path.read_text())
    assert content["log_scales"] == [0.0] * 4 + [None] * 4
    assert content["frequencies"][4:] == [0.0] * 4
    assert content["train_length"] is None
    assert torch.equal(lerope.FrozenRoPE.load(path).frequencies(), lerope.PRoPE(16, p=0.5).frequencies())
    with pytest.raises(ValueError, match="frequencies must be positive"):
        lerope.LeRoPE.load(path)


def test_frequencies_without_a_base(tmp_path):
    path = tmp_path / "frequencies.json"
    lerope.FrozenRoPE(torch.rand(8)).save(path)
    content = json.loads(path.read_text())
    assert content["base"] is None
    assert content["log_scales"] is None
    lerope.FrozenRoPE.load(path)
    with pytest.raises(ValueError, match="base is null"):
        lerope.LeRoPE.load(path)


def test_the_fingerprint_names_the_content():
    one, same, other = lerope.LeRoPE(16), lerope.LeRoPE(16), lerope.LeRoPE(16)
    with torch.no_grad():
        other.alpha[3] += 1e-6
    assert one.artifact(64).fingerprint() == same.artifact(64).fingerprint()
    assert one.artifact(64).fingerprint() != one.artifact(65).fingerprint()
    assert one.artifact(64).fingerprint() != other.artifact(64).fingerprint()


def test_saving_replaces_whole_files_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "frequencies.json"
    path.write_text("old")
    lerope.RoPE(16).save(path)
    lerope.RoPE(16).save(str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["frequencies.json"]
    lerope.FrozenRoPE.load(path)


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"got the folder .*folder"):
        lerope.RoPE(16).save(tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        lerope.RoPE(16).save(tmp_path / "file" / "frequencies.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
