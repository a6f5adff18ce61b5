"""lerope.preset, what starts from one, and where frequencies say they come from."""

import json
import math
import warnings

import numpy as np
import pytest
import torch

import lerope
from lerope.rotary.artifact import Frequencies, Origin
from tests.made_presets import made_log_scales, made_preset, save_preset


@pytest.fixture
def path(tmp_path):
    return save_preset(tmp_path, 2048, 8192)


def test_a_preset_is_fixed_frequencies_for_any_size(path):
    encoding = lerope.preset(path, head_dim=64, train_length=2048)
    assert type(encoding) is lerope.FrozenRoPE
    assert not list(encoding.parameters())
    want = np.exp(made_log_scales(32, 2048)) * 10_000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(encoding.frequencies().double().numpy(), want, rtol=6e-8)
    for head_dim in (16, 80, 128, 256):
        other = lerope.preset(str(path), head_dim, 4096)
        assert other.head_dim == head_dim
        assert bool((other.frequencies().diff() < 0).all())
    q = torch.randn(1, 5, 2, 64)
    assert encoding(q, q, 0)[0].shape == q.shape


def test_it_warns_beyond_what_was_measured_and_nowhere_else(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (2048, 3000, 8192):
            lerope.preset(path, 128, length)
    with pytest.warns(UserWarning, match="train length 16,384 is outside of what mine was learned at"):
        encoding = lerope.preset(path, 128, 16_384)
    assert len(encoding.origin.notes) == 2


def test_the_file_says_where_frequencies_come_from(path, tmp_path):
    encoding = lerope.preset(path, 128, 4096)
    encoding.save(tmp_path / "frequencies.json", train_length=4096)
    content = json.loads((tmp_path / "frequencies.json").read_text())
    assert content["origin"] == {
        "source": "preset:mine",
        "train_length": 4096,
        "fingerprint": made_preset(2048, 8192).fingerprint(),
        "notes": [
            "resampled from head_dim 64 to 128.",
            "train length 4,096 is interpolated between the measured 2,048 and 8,192.",
        ],
    }
    again = lerope.FrozenRoPE.load(tmp_path / "frequencies.json")
    assert again.origin == encoding.origin == encoding.freeze().origin
    assert encoding.freeze(encoding.frequencies() / 2).origin is None
    plain = lerope.FrozenRoPE(encoding.frequencies())
    plain.base = 10_000.0
    assert plain.artifact().fingerprint() == encoding.artifact().fingerprint()


def test_learned_frequencies_come_from_their_run(path):
    learned = lerope.LeRoPE(64).artifact(2048, "52M-lerope-42").origin
    assert learned == Origin(source="52M-lerope-42", train_length=2048, fingerprint=None, notes=[])
    warm = lerope.LeRoPE(init=lerope.preset(path, 64, 2048))
    assert warm.artifact(2048, "mine").origin.notes == ["started from preset:mine."]
    # It may have learned since, and nobody said where.
    assert warm.artifact(2048).origin is warm.freeze().origin is None
    frozen = lerope.preset(path, 64, 2048)
    assert frozen.artifact(2048, "52M-preset-mine-42").origin == frozen.origin
    assert lerope.RoPE(64).artifact(2048, "52M-rope-42").origin is None


def test_a_file_without_an_origin_is_read_as_before(tmp_path):
    folder = tmp_path / "52M-lerope-42" / "model"
    folder.mkdir(parents=True)
    lerope.LeRoPE(16).save(folder / "frequencies.json", train_length=512)
    content = json.loads((folder / "frequencies.json").read_text())
    del content["origin"]
    (folder / "frequencies.json").write_text(json.dumps(content))
    found = lerope.FrozenRoPE.load(folder / "frequencies.json").origin
    assert found == Origin(source="52M-lerope-42", train_length=512, fingerprint=content["fingerprint"], notes=[])
    lerope.RoPE(16).save(tmp_path / "rope.json", train_length=512)
    assert lerope.FrozenRoPE.load(tmp_path / "rope.json").origin is None


@pytest.mark.parametrize("parametrization", ["log", "linear", "direct"])
def test_learning_starts_there(path, parametrization):
    encoding = lerope.preset(path, 32, 2048)
    for learned in (encoding.learnable(parametrization), lerope.LeRoPE(32, 5e5, parametrization, init=encoding)):
        # alpha is float32: half a unit in the last place of a log-scale up to 6 is 2.4e-7.
        torch.testing.assert_close(learned.frequencies(), encoding.frequencies(), rtol=4e-7, atol=0)
        assert learned.alpha.requires_grad
        learned.frequencies().sum().backward()
        assert bool(learned.alpha.grad.isfinite().all())
        with torch.no_grad():
            learned.alpha.add_(1)
        learned.reset_parameters()
        torch.testing.assert_close(learned.frequencies(), encoding.frequencies(), rtol=4e-7, atol=0)
    assert encoding.learnable().base == encoding.base == 10_000.0


def test_learning_starts_there_after_the_meta_device(path):
    encoding = lerope.preset(path, 32, 2048)
    with torch.device("meta"):
        learned = lerope.LeRoPE(init=encoding)
    learned.to_empty(device="cpu")
    torch.testing.assert_close(learned.frequencies(), encoding.frequencies(), rtol=4e-7, atol=0)


def test_sets_of_its_own_learn_too():
    values = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(1)) + 0.1
    frozen = lerope.FrozenRoPE(values, head_dim=32, sharing="layer_head", layout="interleaved")
    learned = frozen.learnable()
    assert (learned.head_dim, learned.rotary_dim, learned.layout) == (32, 16, "interleaved")
    # Half a unit in the last place of a log-scale up to 8.2, ln(1.1 / 10,000^(-7/8)), is 4.8e-7.
    torch.testing.assert_close(learned.frequencies(1), values[1], rtol=6e-7, atol=0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: lerope.LeRoPE(), "head_dim must be a positive whole number; got None"),
        (lambda: lerope.LeRoPE(16, init="mine"), "init must be an encoding, such as lerope.preset"),
        (lambda: lerope.LeRoPE(16, init=lerope.RoPE(32)), r"init must have one set of 8 bands.*got \(16,\)"),
        (lambda: lerope.LeRoPE(16, init=lerope.PRoPE(16)), "init must have positive frequencies"),
        (lambda: lerope.preset("nothing", 64, 2048), "preset 'nothing' is unknown"),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("sharing", ["shared", "layer", "head", "layer_head"])
def test_a_file_is_resampled_where_asked(tmp_path, sharing):
    encoding = lerope.LeRoPE(32, 500.0, sharing=sharing, num_layers=2, num_heads=3)
    with torch.no_grad():
        encoding.alpha.add_(0.3 * torch.randn(encoding.alpha.shape, generator=torch.Generator().manual_seed(1)))
    encoding.save(tmp_path / "f.json", train_length=512)
    assert lerope.FrozenRoPE.load(tmp_path / "f.json").head_dim == 32
    got = lerope.FrozenRoPE.load(tmp_path / "f.json", head_dim=64)
    assert got.head_dim == 64
    logs = encoding.alpha.detach().double().numpy() - math.log(500.0) * np.arange(16) / 16
    between = (logs[..., 1:] + logs[..., :-1]) / 2
    np.testing.assert_allclose(got.theta.double().log().numpy()[..., ::2], logs, rtol=0, atol=5e-7)
    np.testing.assert_allclose(got.theta.double().log().numpy()[..., 1:-1:2], between, rtol=0, atol=5e-7)
    assert got.origin.notes == ["resampled from head_dim 32 to 64."]
    assert lerope.FrozenRoPE.load(tmp_path / "f.json", head_dim=32).origin.notes == []


@pytest.mark.parametrize(
    ("encoding", "sentence"),
    [
        (lerope.RoPE(32, rotary_dim=16), "f.json: rotary_dim must be head_dim = 32 for .* got 16"),
        (lerope.PRoPE(32), "frequencies must be positive and have a base"),
        (lerope.FrozenRoPE(torch.rand(16) + 1), "frequencies must be positive and have a base"),
    ],
)
def test_what_has_no_profile_is_not_resampled(tmp_path, encoding, sentence):
    encoding.save(tmp_path / "f.json")
    with pytest.raises(ValueError, match=sentence):
        lerope.FrozenRoPE.load(tmp_path / "f.json", head_dim=64)


def test_a_resampled_file_is_whole(tmp_path):
    lerope.LeRoPE(32).save(tmp_path / "f.json", train_length=512)
    lerope.FrozenRoPE.load(tmp_path / "f.json", head_dim=64).save(tmp_path / "g.json")
    assert Frequencies.load(tmp_path / "g.json").head_dim == 64
