"""Leave-one-out against models changed by hand, standard errors against their definition, and going on after a stop."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lerope.analyze.ablation import enough_tokens, leave_one_out, paired_difference, remove_slowest
from lerope.analyze.subjects import OwnModel, Removal
from lerope.analyze.targets import open_target
from lerope.core.ladder import ModelConfig
from lerope.core.run import read_run
from lerope.core.signals import Stopped
from lerope.data.shards import Corpus
from lerope.evaluate.documents import Documents, Texts
from lerope.evaluate.perplexity import EvalRequest, select
from lerope.model.init import init_weights
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.results import Ablation, SlowestRemovals
from lerope.rotary.encodings import FrozenRoPE, LeRoPE, RoPE

CPU = torch.device("cpu")
LENGTH = 32


def by_hand(model: Transformer, removal: Removal | None) -> Transformer:
    """Queries lose their band through a gain of zero; a band is still because its frequency is zero."""
    if removal is None:
        return model
    half = model.encoding.layout == "half"
    first = [band if half else 2 * band for band in removal.bands]
    dims = [*first, *(dim + (8 if half else 1) for dim in first)]
    with torch.no_grad():
        if removal.meaning == "contribution":
            for block in model.blocks:
                block.attention.q_norm.weight[dims] = 0.0
        else:
            frozen = model.encoding.freeze()
            frozen.theta[..., list(removal.bands)] = 0.0
            model.encoding = frozen
    return model


def document_losses(model: Transformer, tokens: np.ndarray) -> np.ndarray:
    """The first window in float64, whole logits."""
    model = model.double()
    ids = torch.from_numpy(tokens.astype("int64"))
    inputs = ids[: min(LENGTH, len(ids) - 1)]
    with torch.no_grad():
        scores = model(inputs[None])[0].log_softmax(-1)
    return -scores.gather(1, ids[1 : 1 + len(inputs), None])[:, 0].numpy()


def test_equals_models_changed_by_hand(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    got = leave_one_out(open_target(tmp_path / "run", EvalRequest(device="cpu")), 300, CPU)
    split = Corpus(read_run(run).starts[-1].data).validation
    documents = [split.document(index) for index in range(len(split))][: got.num_documents]
    whole = [document_losses(load_model(run), tokens) for tokens in documents]
    assert got.num_tokens == sum(map(len, whole)) >= 300
    assert got.loss == pytest.approx(np.concatenate(whole).mean(), abs=1e-6)
    assert len(got.removals) == 16
    arrays = load_file(tmp_path / "run" / "results" / "ablation.safetensors")
    for row in got.removals:
        removal = Removal((row["band"],), row["meaning"])
        changed = by_hand(load_model(run), removal)
        parts = [document_losses(changed, tokens) for tokens in documents]
        want = np.concatenate(parts).mean() - np.concatenate(whole).mean()
        assert row["increase"] == pytest.approx(want, abs=2e-6), row
        stored = arrays["without"][["contribution", "frequency"].index(row["meaning"]), row["band"]]
        np.testing.assert_allclose(stored, [part.sum() for part in parts], rtol=1e-5)
    assert max(abs(row["increase"]) for row in got.removals) > 1e-3
    assert Ablation.load(tmp_path / "run" / "results" / "ablation.json") == got
    assert not list((tmp_path / "run" / "results").glob("*.partial"))


def test_without_the_slowest_equals_models_changed_by_hand(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    got = remove_slowest(open_target(tmp_path / "run", EvalRequest(device="cpu")), 300, CPU)
    split = Corpus(read_run(run).starts[-1].data).validation
    documents = [split.document(index) for index in range(len(split))][: got.num_documents]
    whole = np.concatenate([document_losses(load_model(run), tokens) for tokens in documents])
    order = np.argsort(abs(load_model(run).encoding.theta.double().numpy()), kind="stable").tolist()
    assert [row["num_bands"] for row in got.removals] == [*range(1, 9)] * 2
    assert [row["band"] for row in got.removals] == order * 2
    for row in got.removals:
        changed = by_hand(load_model(run), Removal(tuple(order[: row["num_bands"]]), row["meaning"]))
        want = np.concatenate([document_losses(changed, tokens) for tokens in documents]).mean() - whole.mean()
        assert row["increase"] == pytest.approx(want, abs=2e-6), row
    assert SlowestRemovals.load(tmp_path / "run" / "results" / "slowest.json") == got


@pytest.mark.parametrize("meaning", ["contribution", "frequency"])
@pytest.mark.parametrize(
    "make",
    [lambda: RoPE(16, layout="interleaved"), lambda: LeRoPE(16, sharing="layer_head", num_layers=2, num_heads=2)],
    ids=["interleaved", "layer_head"],
)
def test_other_layouts_and_sharings(make, meaning):
    config = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)
    rows = [np.random.default_rng(size).integers(3, 50, size) for size in (9, 30)]

    def built() -> Transformer:
        torch.manual_seed(0)
        model = Transformer(config, make())
        init_weights(model, 0)
        if isinstance(model.encoding, LeRoPE):
            torch.nn.init.normal_(model.encoding.alpha, std=0.5)
        return model

    subject = OwnModel(built())
    whole = subject.losses(rows)
    for band in (0, 2, 7):
        got = subject.losses(rows, Removal((band,), meaning))
        changed = by_hand(built(), Removal((band,), meaning))
        for row, losses in zip(rows, got, strict=True):
            np.testing.assert_allclose(losses[: len(row) - 1], document_losses(changed, row), atol=2e-5)
        if band == 2:
            assert not torch.allclose(got, whole, atol=1e-4)


def test_a_still_band_costs_nothing_to_hold_still():
    config = ModelConfig(num_layers=1, num_heads=2, head_dim=16, vocab_size=50)
    theta = RoPE(16).frequencies().clone()
    theta[5] = 0.0
    model = Transformer(config, FrozenRoPE(theta))
    init_weights(model, 0)
    subject, rows = OwnModel(model), [np.arange(3, 40)]
    assert torch.equal(subject.losses(rows, Removal((5,), "frequency")), subject.losses(rows))
    assert not torch.equal(subject.losses(rows, Removal((5,), "contribution")), subject.losses(rows))


def test_standard_error_is_that_of_documents():
    """Equal documents: the textbook error of a mean. Any documents: the spread over resamples of them."""
    random = np.random.default_rng(0)
    equal = random.normal(size=50)
    mean, error = paired_difference(equal * 10, np.full(50, 10.0))
    assert mean == pytest.approx(equal.mean())
    assert error == pytest.approx(equal.std(ddof=1) / np.sqrt(50))
    counts = random.integers(5, 200, 400).astype(float)
    sums = counts * random.normal(0.1, 0.05, 400)
    mean, error = paired_difference(sums, counts)
    assert mean == pytest.approx(sums.sum() / counts.sum())
    drawn = random.integers(0, 400, (2000, 400))
    spread = (sums[drawn].sum(1) / counts[drawn].sum(1)).std()
    assert error == pytest.approx(spread, rel=0.1)
    assert paired_difference(np.array([3.0]), np.array([6.0])) == (0.5, None)


def test_goes_on_with_the_band_it_was_at(run, tmp_path, monkeypatch):
    for name in ("once", "stopped"):
        shutil.copytree(run, tmp_path / name / "run")
    want = leave_one_out(open_target(tmp_path / "once" / "run", EvalRequest(device="cpu")), 300, CPU)
    real, asked = OwnModel.losses, []

    def until_the_sixth(self, rows, removal=None):
        if len(asked) == 6:
            raise Stopped(15)
        asked.append(removal)
        return real(self, rows, removal)

    def remembered(self, rows, removal=None):
        asked.append(removal)
        return real(self, rows, removal)

    target = open_target(tmp_path / "stopped" / "run", EvalRequest(device="cpu"))
    monkeypatch.setattr(OwnModel, "losses", until_the_sixth)
    with pytest.raises(Stopped):
        leave_one_out(target, 300, CPU)
    asked.clear()
    monkeypatch.setattr(OwnModel, "losses", remembered)
    got = leave_one_out(target, 300, CPU)
    assert got.removals == want.removals
    assert None not in asked  # the whole model was scored before the stop
    assert Removal((0,), "contribution") not in asked
    assert Removal((7,), "frequency") in asked


@pytest.mark.parametrize(
    ("document", "length", "documents", "tokens"),
    [
        (20_000, 16_384, 32, 32 * 16_384),
        (5_000, 2_048, 32, 65_536),
        (501, 2_048, 66, 33_000),
        (5_000, 256, 128, 32_768),
    ],
    ids=["long rows", "long documents", "short documents", "short rows"],
)
def test_by_default_an_error_rests_on_many_documents(document, length, documents, tokens):
    texts = Texts([np.zeros(document, np.uint16)] * 200)
    found = select(
        Documents("texts", texts, "", 0, False),
        length,
        True,
        enough_tokens(Documents("texts", texts, "", 0, False), length),
    )
    assert (len(found), sum(window.stop - window.start for window in found)) == (documents, tokens)


def test_without_a_number_of_tokens_it_reads_the_default(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    target = open_target(tmp_path / "run", EvalRequest(device="cpu"))
    got = leave_one_out(target, None, CPU)
    assert got.settings["max_tokens"] == enough_tokens(target.documents, target.length)
    assert got.num_documents == len(target.documents.source.lengths)
