"""Extension inside evaluation is the library's `extend`, document by document, and nothing within the train length."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

import lerope
from lerope.core.ladder import ModelConfig
from lerope.data.shards import Corpus
from lerope.evaluate.extrapolation import extrapolate, stretches
from lerope.evaluate.perplexity import EvalRequest
from lerope.evaluate.scorer import Scorer, Stretch
from lerope.model.init import init_weights
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.results import Extrapolation
from lerope.rotary.encodings import FrozenRoPE, LeRoPE
from tests.evaluate.padded_losses import padded_losses

LENGTH, TO = 32, 96
ALL_WAYS = stretches((0.1, 0.3), dominant_band=2)


def validation(run):
    return Corpus(json.loads((run / "run.json").read_text())["starts"][-1]["data"]).validation


class Scaled(torch.nn.Module):
    """A query norm with a factor after it: the logit scale by hand."""

    def __init__(self, norm: torch.nn.Module, factor: torch.Tensor | float) -> None:
        super().__init__()
        self.norm, self.factor = norm, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * self.factor


def by_hand(run, tokens, stretch: Stretch) -> np.ndarray:
    """A model of its own for one document: `extend`ed frequencies, and queries scaled before attention; float64."""
    model = load_model(run)
    length = len(tokens) - 1
    extension = lerope.extend(
        model.encoding.frequencies(),
        train_length=LENGTH,
        length=length,
        method=stretch.method,
        temperature=stretch.temperature,
        dominant_band=stretch.dominant_band,
    )
    model.encoding = FrozenRoPE(extension.frequencies)
    model = model.double()
    factor = float(extension.logit_scale)
    if stretch.method == "logits":
        seen = [max(1.0, (position + 1) / LENGTH) for position in range(length)]
        scales = [(stretch.temperature * math.log(each) + 1) ** 2 for each in seen]
        factor = torch.tensor(scales, dtype=torch.float64).view(-1, 1, 1)
    for block in model.blocks:
        block.attention.q_norm = Scaled(block.attention.q_norm, factor)
    ids = torch.from_numpy(tokens.astype("int64"))
    with torch.no_grad():
        scores = model(ids[None, :-1])[0].log_softmax(-1)
    return -scores.gather(1, ids[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("stretch", ALL_WAYS, ids=str)
def test_equals_extend_by_hand_for_every_document(run, stretch):
    split = validation(run)
    rows = [split.document(index, 0, TO + 1) for index in range(len(split))]
    got = padded_losses(Scorer(load_model(run), train_length=LENGTH, stretch=stretch), rows)
    changed = 0
    for row, losses in zip(rows, got, strict=True):
        np.testing.assert_allclose(losses[: len(row) - 1], by_hand(run, row, stretch), atol=2e-5)
        plain = by_hand(run, row, Stretch())
        changed += not np.allclose(losses[: len(row) - 1], plain, atol=1e-4)
    # By position, a text that is hardly longer than the train length hardly changes.
    least = 1.5 * LENGTH if stretch.method == "logits" else LENGTH
    long, longest = (sum(len(row) - 1 > length for row in rows) for length in (LENGTH, least))
    assert longest > 5
    assert changed == 0 if stretch.method == "none" else longest <= changed <= long


@pytest.mark.parametrize("stretch", ALL_WAYS, ids=str)
def test_within_the_train_length_every_way_is_bitwise_the_same(run, stretch):
    split = validation(run)
    rows = [split.document(index, 0, TO + 1) for index in range(len(split))]
    model = load_model(run)
    naive = padded_losses(Scorer(model, train_length=LENGTH, stretch=Stretch()), rows)
    got = padded_losses(Scorer(model, train_length=LENGTH, stretch=stretch), rows)
    short = torch.tensor([len(row) - 1 <= LENGTH for row in rows])
    assert 5 < int(short.sum()) < len(rows) - 5
    assert torch.equal(got[short], naive[short])
    if stretch.method != "none":
        assert not torch.equal(got[~short], naive[~short])


def test_logits_by_position_leave_the_window_of_long_documents_as_it_was(run):
    """Every other way changes it, for it goes by a length that these tokens do not see."""
    split = validation(run)
    row = max((split.document(index, 0, TO + 1) for index in range(len(split))), key=len)
    assert len(row) > 2 * LENGTH
    model = load_model(run)
    naive, logits, yarn = (
        Scorer(model, train_length=LENGTH, stretch=Stretch(method=method, temperature=0.2)).start([row])()
        for method in ("none", "logits", "yarn")
    )
    assert torch.equal(logits[:LENGTH], naive[:LENGTH])
    assert not torch.equal(logits[LENGTH:], naive[LENGTH:])
    assert not torch.allclose(yarn[:LENGTH], naive[:LENGTH], atol=1e-4)


@pytest.mark.parametrize("sharing", ["layer", "head", "layer_head"])
def test_frequencies_of_layers_and_heads(sharing):
    torch.manual_seed(0)
    config = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)
    encoding = LeRoPE(16, sharing=sharing, num_layers=2, num_heads=2)
    model = Transformer(config, encoding)
    init_weights(model, 0)
    torch.nn.init.normal_(encoding.alpha, std=0.3)
    rows = [np.random.default_rng(n).integers(3, 50, size) for n, size in enumerate((20, 80))]
    got = padded_losses(Scorer(model, train_length=LENGTH, stretch=Stretch(method="pi")), rows)
    with torch.no_grad():
        for row, losses in zip(rows, got, strict=True):
            # Position interpolation by hand: every frequency is slowed by the same factor.
            slow = max(1.0, (len(row) - 1) / LENGTH)
            slowed = FrozenRoPE(encoding.freeze().theta / slow, sharing=sharing)
            other = Transformer(config, slowed)
            other.load_state_dict({k: v for k, v in model.state_dict().items() if k != "encoding.alpha"}, strict=False)
            ids = torch.from_numpy(row)
            want = -other(ids[None, :-1])[0].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            torch.testing.assert_close(losses[: len(row) - 1], want, atol=2e-5, rtol=0)


def test_columns_and_selections(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    got = extrapolate(tmp_path / "run", TO, EvalRequest(device="cpu"), (0.1,), dominant_band=2)
    assert Extrapolation.load(tmp_path / "run" / "results" / "extrapolation-96.json") == got
    split = validation(run)
    rows = [split.document(index, 0, TO + 1) for index in range(len(split))]
    for stretch in stretches((0.1,), dominant_band=2):
        losses = [by_hand(run, row, stretch) for row in rows]
        for selection, some in (("all", losses), ("long", [values for values in losses if len(values) == TO])):
            (row,) = [
                row
                for row in got.ways
                if (row["selection"], row["method"], row["temperature"])
                == (selection, stretch.method, stretch.temperature)
            ]
            assert row["num_documents"] == len(some)
            columns = {
                "in_distribution": np.concatenate([values[:LENGTH] for values in some]),
                "extrapolated": np.concatenate([values[LENGTH:] for values in some]),
                "full": np.concatenate(some),
            }
            for column, values in columns.items():
                assert row[f"{column}_loss"] == pytest.approx(values.mean(), abs=2e-6), (stretch, selection, column)
                assert row[f"{column}_perplexity"] == pytest.approx(math.exp(values.mean()), rel=1e-5)
            assert row["num_extrapolated"] == len(columns["extrapolated"])
            bins = [each for each in got.by_position if (each["selection"], each["label"]) == (selection, row["label"])]
            assert sum(each["num_tokens"] for each in bins) == row["num_tokens"]
    assert not list((tmp_path / "run" / "results").glob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"to": LENGTH}, "to must be above the train length of 32 tokens; got 32"),
        ({"temperatures": (0.0,)}, "temperatures must be positive"),
        ({"request": EvalRequest(device="cpu", max_tokens=1)}, "has no document longer than the train length"),
        ({"dominant_band": 99}, "dominant_band must be 0 to 7"),
    ],
)
def test_bad_input_is_one_sentence(run, tmp_path, changes, words):
    shutil.copytree(run, tmp_path / "run")
    arguments = {"to": TO, "request": EvalRequest(device="cpu"), **changes}
    with pytest.raises(ValueError, match=words):
        extrapolate(tmp_path / "run", **arguments)
