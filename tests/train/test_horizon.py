"""Training on positions that skip: any encoding, told apart by name, the same after a restart, exact beyond the row."""

import pytest
import torch

import lerope
from lerope.core.encoding import EncodingSpec
from lerope.core.ladder import ModelConfig
from lerope.core.recipe import recipe
from lerope.core.run import read_run
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer
from tests.train.runs import StopAt, metrics, same, tiny_corpus, tiny_recipe, tiny_run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("data") / "tiny")


@pytest.mark.parametrize(
    "text", ["rope,horizon=128", "lerope,horizon=128,horizon_share=0.25", "prope,horizon=128,p=0.5"]
)
def test_a_method_of_its_own(text):
    spec = EncodingSpec.parse(text)
    assert EncodingSpec.parse(spec.text) == spec
    assert spec.method != EncodingSpec.parse(spec.family).method
    assert "positions to 128" in spec.label
    assert "horizon128" in tiny_recipe(encoding=text).name
    assert EncodingSpec.parse("rope,horizon=128,horizon_share=0.5") == EncodingSpec.parse("rope,horizon=128")


def test_other_losses_and_other_frequencies_than_without(data, tmp_path):
    losses = {}
    for encoding in ("lerope", "lerope,horizon=128,horizon_share=1"):
        tiny_run(data, tmp_path / encoding, encoding=encoding, steps=6)
        losses[encoding] = [record["loss"] for record in metrics(tmp_path / encoding) if "loss" in record]
    one, other = losses.values()
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert other[-1] < other[0]
    assert read_run(tmp_path / "lerope,horizon=128,horizon_share=1").recipe.spec.horizon == 128


def test_the_end_of_training_alone(data, tmp_path):
    """The same run up to where positions begin to skip, another from there."""
    losses = {}
    for encoding in ("lerope", "lerope,horizon=128,horizon_share=1,horizon_from=0.75"):
        tiny_run(data, tmp_path / encoding, encoding=encoding, steps=8)
        losses[encoding] = [record["loss"] for record in metrics(tmp_path / encoding) if "loss" in record]
    one, other = losses.values()
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 6 + [False] * 2


def test_the_same_after_a_restart(data, tmp_path):
    encoding = "lerope,horizon=128"
    tiny_run(data, tmp_path / "straight", encoding=encoding, steps=8)
    tiny_run(data, tmp_path / "run", {"checkpoint_steps": 4}, [StopAt(5)], encoding=encoding, steps=8)
    tiny_run(data, tmp_path / "run", {"checkpoint_steps": 4}, encoding=encoding, steps=8)
    same(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_positions_beyond_the_row_are_turned_exactly(kernel):
    """The fused kernel reads a table that reaches as far as the horizon; without it such positions would be NaN."""
    if kernel == "triton":
        pytest.importorskip("triton")
    model = Transformer(ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50), lerope.LeRoPE(16))
    init_weights(model, 0)
    tokens = torch.arange(24).view(2, 12)
    positions = torch.tensor([0, 1, 2, 30, 31, 32, 33, 70, 71, 72, 98, 99]).expand(2, -1)
    model.use_kernel("reference")
    expected = model.double()(tokens, positions)
    model.float().use_kernel(kernel)
    model.horizon = 100
    torch.testing.assert_close(model(tokens, positions).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lerope,horizon=16", ("horizon", "row_length = 32", "16")),
        ("lerope,horizon=0", ("horizon", "0")),
        ("lerope,horizon=4.5", ("horizon", "4.5")),
        ("lerope,horizon_share=0.5", ("horizon_share", "horizon")),
        ("lerope,horizon=64,horizon_share=0", ("horizon_share", "0")),
        ("lerope,horizon=64,horizon_share=2", ("horizon_share", "2")),
        ("lerope,horizon=64,horizon_share=abc", ("horizon_share", "abc")),
        ("lerope,horizon=64,horizon_share=None", ("horizon_share", "None")),
        ("lerope,horizon_from=0.9", ("horizon_from", "horizon")),
        ("lerope,horizon=64,horizon_from=1", ("horizon_from", "1")),
        ("lerope,horizon=64,horizon_from=-0.1", ("horizon_from", "-0.1")),
        ("lerope,horizon=64,horizon_from=x", ("horizon_from", "x")),
        ("lerope,horizon=3000000000", ("horizon", "3,000,000,000")),
        ("nope,horizon=64", ("horizon", "nope")),
    ],
)
def test_bad_input(text, words):
    with pytest.raises(ValueError, match="horizon") as caught:
        recipe("demo", text, row_length=32, batch_tokens=256, steps=10)
    assert all(word in str(caught.value) for word in words)
