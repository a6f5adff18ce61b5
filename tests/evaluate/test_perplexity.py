"""`lerope eval` against a slow float64 loop, whatever the batch, order, ranks, padding or backend."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch

from lerope.core.files import read_lines
from lerope.core.signals import Stopped
from lerope.data.packing import windows
from lerope.data.shards import Corpus
from lerope.data.tokenizer import Tokenizer
from lerope.evaluate import work
from lerope.evaluate.documents import Texts
from lerope.evaluate.losses import window_losses
from lerope.evaluate.perplexity import EvalRequest, evaluate
from lerope.evaluate.scorer import Scorer
from lerope.model.saved import load_model
from lerope.results import Evaluation
from lerope.results.token_losses import position_edges
from lerope.rotary.frequencies import geometric
from lerope.train.parallel import Ranks
from tests.evaluate.padded_losses import padded_losses
from tests.ranks import run_ranks
from tests.train.runs import cut, edit, plant_weights

LENGTH = 32
ALONE = Ranks(0, 1, 1, torch.device("cpu"))


@pytest.fixture
def fresh(run, tmp_path):
    """A copy of the run without results."""
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("eval*", ".eval*"))
    return tmp_path / "run"


def corpus_of(run: Path) -> Corpus:
    return Corpus(json.loads((run / "run.json").read_text())["starts"][-1]["data"])


def slow_losses(run: Path, length: int = LENGTH, truncate: bool = False) -> list[np.ndarray]:
    """Per document: every window by itself through a float64 model, whole logits, no batching."""
    model = load_model(run).double()
    split = corpus_of(run).validation
    found = []
    for index in range(len(split)):
        tokens = torch.from_numpy(split.document(index).astype("int64"))
        parts = []
        for start in range(0, len(tokens) - 1, length):
            inputs = tokens[start : min(start + length, len(tokens) - 1)]
            targets = tokens[start + 1 : start + 1 + len(inputs)]
            with torch.no_grad():
                scores = model(inputs[None])[0].log_softmax(-1)
            parts.append(-scores.gather(1, targets[:, None])[:, 0].numpy())
            if truncate:
                break
        found.append(np.concatenate(parts))
    return found


def check_sums(arrays, want, length):
    """By document and bin of positions, and by position, one token at a time."""
    edges = position_edges(length)
    sums, counts = np.zeros((2, len(want), len(edges) - 1))
    position_sums, position_counts = np.zeros((2, length))
    for document, losses in enumerate(want):
        for index, loss in enumerate(losses):
            position = index % length
            place = document, max(at for at, edge in enumerate(edges[:-1]) if edge <= position)
            sums[place] += loss
            counts[place] += 1
            position_sums[position] += loss
            position_counts[position] += 1
    np.testing.assert_allclose(arrays["document_sums"], sums, atol=1e-3)
    np.testing.assert_allclose(arrays["position_sums"], position_sums, atol=1e-3)
    assert arrays["document_counts"].tolist() == counts.tolist()
    assert arrays["position_counts"].tolist() == position_counts.tolist()


@pytest.mark.parametrize("encoding", ["rope", "rope,base=500000", "nope"])
def test_other_frequencies_are_a_hard_swap(fresh, encoding):
    """A file of its own, and what the weights say when they are turned otherwise."""
    own = evaluate(fresh, EvalRequest(device="cpu"))
    got = evaluate(fresh, EvalRequest(device="cpu", encoding=encoding))
    model = load_model(fresh)
    theta = {"rope": 10_000.0, "rope,base=500000": 500_000.0}.get(encoding)
    rope = 0.0 if theta is None else geometric(model.encoding.rotary_dim, theta)
    with torch.no_grad():
        model.encoding.theta[:] = rope
    split = corpus_of(fresh).validation
    parts = []
    for index in range(len(split)):
        tokens = torch.from_numpy(split.document(index).astype("int64"))
        for start in range(0, len(tokens) - 1, LENGTH):
            inputs, targets = tokens[start : start + LENGTH], tokens[start + 1 : start + LENGTH + 1]
            with torch.no_grad():
                scores = model.double()(inputs[: len(targets)][None])[0].log_softmax(-1)
            parts.append(-scores.gather(1, targets[:, None])[:, 0].numpy())
    assert got.loss == pytest.approx(np.concatenate(parts).mean(), abs=1e-6)
    assert abs(got.loss - own.loss) > 1e-5
    assert Evaluation.load(fresh / "results" / "eval.json") == own
    assert [file.name for file in (fresh / "results").glob("eval-with-*.json")] != []


def test_an_evaluation_without_sums_is_made_again(fresh):
    """Those of an earlier version."""
    whole = evaluate(fresh, EvalRequest(device="cpu"))
    file = fresh / "results" / "eval.json"
    arrays = load_file(file.with_suffix(".safetensors"))
    whole.save_with(file, {name: arrays[name] for name in ("losses", "ends")})
    assert evaluate(fresh, EvalRequest(device="cpu")).arrays_sha256 == whole.arrays_sha256


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("length", [LENGTH, 20])
def test_equals_a_slow_float64_loop(fresh, length, truncate):
    want = slow_losses(fresh, length, truncate)
    got = evaluate(fresh, EvalRequest(length=length, truncate=truncate, device="cpu"))
    every = np.concatenate(want)
    assert got.num_tokens == len(every)
    assert got.num_documents == len(want)
    assert got.loss == pytest.approx(every.mean(), abs=1e-6)
    assert got.perplexity == pytest.approx(math.exp(every.mean()), rel=1e-6)
    assert got.document_mean_loss == pytest.approx(np.mean([losses.mean() for losses in want]), abs=1e-6)
    name = "eval" + "-truncated" * truncate + f"-{length}" * (length != LENGTH)
    arrays = load_file(fresh / "results" / f"{name}.safetensors")
    assert arrays["ends"].tolist() == np.cumsum([len(losses) for losses in want]).tolist()
    np.testing.assert_allclose(arrays["losses"], every, atol=2e-5)
    check_sums(arrays, want, length)
    for each in got.by_position:
        parts = [losses[at : at + length] for losses in want for at in range(0, len(losses), length)]
        here = np.concatenate([part[each["start"] : each["stop"]] for part in parts])
        assert each["num_tokens"] == len(here)
        assert each["loss"] == pytest.approx(here.mean(), abs=1e-5)
    assert sum(each["num_tokens"] for each in got.by_position) == got.num_tokens


def test_equals_the_trainer_s_own_validation(fresh):
    last = [record for record in read_lines(fresh / "metrics.jsonl") if "validation_loss" in record][-1]
    tokens = json.loads((fresh / "run.json").read_text())["identity"]["recipe"]["validation_tokens"]
    got = evaluate(fresh, EvalRequest(max_tokens=tokens, device="cpu"))
    assert got.num_tokens == last["validation_tokens"]
    assert got.loss == pytest.approx(last["validation_loss"], abs=1e-6)


@pytest.mark.parametrize(("gigabytes", "tokens"), [(16, 32_768), (25, 32_768), (80, 98_304), (141, 131_072)])
def test_larger_gpus_take_larger_batches(monkeypatch, gigabytes, tokens):
    memory = SimpleNamespace(total_memory=gigabytes * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert work.useful_batch_tokens(torch.device("cuda")) == tokens
    assert work.useful_batch_tokens(torch.device("cpu")) == 8192


@pytest.mark.parametrize("batch_tokens", [1, 70, 500, 100_000])
def test_independent_of_the_batch(run, tmp_path, batch_tokens):
    got = scored(run, tmp_path / "partial", batch_tokens=batch_tokens)
    for losses, want in zip(got, scored(run, tmp_path / "other"), strict=True):
        np.testing.assert_allclose(losses, want, atol=3e-6)
    assert mean(got) == pytest.approx(np.concatenate(slow_losses(run)).mean(), abs=1e-6)


def test_independent_of_the_order(run, tmp_path):
    split = corpus_of(run).validation
    documents = [split.document(index) for index in range(len(split))]
    order = np.random.default_rng(0).permutation(len(documents))
    got = scored(run, tmp_path / "partial", source=Texts([documents[index] for index in order]))
    assert mean(got) == pytest.approx(mean(scored(run, tmp_path / "other")), abs=1e-6)


def test_padding_changes_nothing(run):
    split = corpus_of(run).validation
    scorer = Scorer(load_model(run), train_length=LENGTH)
    rows = [split.document(index, 0, LENGTH + 1) for index in range(len(split))]
    together = padded_losses(scorer, rows)
    for row, losses in zip(rows, together, strict=True):
        alone = scorer.start([row])()
        torch.testing.assert_close(losses[: len(row) - 1], alone, atol=3e-6, rtol=0)
        assert not losses[len(row) - 1 :].any()


def test_the_backend_does_not_matter(run, tmp_path):
    """Fused causal attention, a dense mask, and the plain formula."""
    fused = mean(scored(run, tmp_path / "fused"))
    assert mean(scored(run, tmp_path / "dense", backend="sdpa")) == pytest.approx(fused, abs=1e-5)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert mean(scored(run, tmp_path / "math")) == pytest.approx(fused, abs=1e-5)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_independent_of_the_number_of_ranks(run, tmp_path, num_ranks):
    run_ranks(score_on_ranks, tmp_path, run, tmp_path / "partial", num_ranks, num_ranks=num_ranks)
    alone = scored(run, tmp_path / "alone", batch_tokens=70)
    np.testing.assert_allclose(
        np.fromfile(tmp_path / "partial", np.float32), np.fromfile(tmp_path / "alone", np.float32), atol=3e-6
    )
    assert np.load(tmp_path / "mean.npy") == pytest.approx(mean(alone), abs=1e-6)


def score_on_ranks(rank: int, run: Path, partial: Path, num_ranks: int) -> None:
    ranks = Ranks(rank, num_ranks, num_ranks, torch.device("cpu"))
    got = scored(run, partial, batch_tokens=70, ranks=ranks)
    if rank == 0:
        np.save(partial.with_name("mean.npy"), mean(got))
    else:
        assert got == []


def scored(run, partial, source=None, backend=None, batch_tokens=None, ranks=ALONE):
    source = source or corpus_of(run).validation
    scorer = Scorer(load_model(run), train_length=LENGTH, backend=backend)
    pieces = windows(source.lengths, LENGTH)
    done = work.Work(ranks=ranks, partial=partial, label="test", batch_tokens=batch_tokens)
    return window_losses(done, scorer, source, pieces)


def mean(losses) -> float:
    return float(np.concatenate(losses).mean(dtype=np.float64))


@pytest.mark.parametrize("num_bytes", [0, 1, 401, 4000])
def test_goes_on_where_it_was_cut_off(run, tmp_path, monkeypatch, num_bytes):
    want = scored(run, tmp_path / "whole", batch_tokens=70)
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "partial").write_bytes(content[:num_bytes])
    rows = []
    before = Scorer.start
    monkeypatch.setattr(Scorer, "start", lambda self, some: rows.extend(some) or before(self, some))
    got = scored(run, tmp_path / "partial", batch_tokens=40)
    for losses, other in zip(got, want, strict=True):
        np.testing.assert_allclose(losses, other, atol=3e-6)
    kept = max(0, num_bytes - 4 * LENGTH)
    assert (tmp_path / "partial").read_bytes()[:kept] == content[:kept]
    scored_again = sum(len(row) - 1 for row in rows)
    assert len(content) // 4 - num_bytes // 4 <= scored_again < len(content) // 4 - num_bytes // 4 + LENGTH


def test_stops_and_goes_on(fresh, monkeypatch):
    whole = evaluate(fresh, EvalRequest(device="cpu", batch_tokens=70))
    (fresh / "results" / "eval.json").unlink()

    class Interrupted(work.Signals):
        def __init__(self):
            super().__init__()
            self.received = 15

    with monkeypatch.context() as patch:
        patch.setattr(work, "Signals", Interrupted)
        with pytest.raises(Stopped):
            evaluate(fresh, EvalRequest(device="cpu", batch_tokens=70))
    (partial,) = (fresh / "results").glob(".eval*.partial")
    assert 0 < partial.stat().st_size < 4 * whole.num_tokens
    again = evaluate(fresh, EvalRequest(device="cpu", batch_tokens=70))
    assert replace(again, provenance={}) == replace(whole, provenance={})
    assert not list((fresh / "results").glob(".eval*.partial"))


def test_a_result_is_not_computed_twice_but_another_request_is(fresh, monkeypatch):
    first = evaluate(fresh, EvalRequest(device="cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "start", None)
        assert evaluate(fresh, EvalRequest(device="cpu", batch_tokens=64)) == first
        renamed = fresh.rename(fresh.with_name("renamed"))
        assert evaluate(renamed, EvalRequest(device="cpu")) == first
    edit(renamed / "run.json", created="another time")
    assert evaluate(renamed, EvalRequest(device="cpu")).run["created"] == "another time"


def test_fewer_tokens_are_answered_from_more_and_replace_nothing(fresh, tmp_path, monkeypatch):
    shutil.copytree(fresh, tmp_path / "other")
    for request in (EvalRequest(device="cpu", max_tokens=100), EvalRequest(device="cpu", max_tokens=400)):
        some = evaluate(tmp_path / "other", request)
        assert request.max_tokens <= some.num_tokens < request.max_tokens + 150
    whole = evaluate(fresh, EvalRequest(device="cpu"))
    files = {path.name: path.read_bytes() for path in (fresh / "results").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "start", None)
        again = evaluate(fresh, EvalRequest(device="cpu", max_tokens=400))
    assert again.loss == pytest.approx(some.loss, abs=1e-6)
    ignored = {"run": {}, "provenance": {}, "loss": 0, "perplexity": 0, "document_mean_loss": 0, "by_position": []}
    ignored["arrays_sha256"] = None
    assert replace(again, **ignored) == replace(some, **ignored)
    assert files == {path.name: path.read_bytes() for path in (fresh / "results").iterdir()}
    assert evaluate(fresh, EvalRequest(device="cpu")) == whole


def test_every_other_request_has_a_file_of_its_own(text_run, tmp_path):
    shutil.copytree(text_run, tmp_path / "run", ignore=shutil.ignore_patterns("eval*"))
    for number, content in enumerate(("one two three", "four five six")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a.txt").write_text(content)
    requests = [
        EvalRequest(device="cpu", **fields)
        for fields in (
            {},
            {"truncate": True},
            {"length": 16},
            {"precision": "bf16"},
            {"text": (str(tmp_path / "0" / "a.txt"),)},
            {"text": (str(tmp_path / "1" / "a.txt"),)},
        )
    ]
    for request in requests:
        evaluate(tmp_path / "run", request)
    assert len(list((tmp_path / "run" / "results").glob("eval*.json"))) == len(requests)


def test_a_cut_file_of_losses_is_made_again(fresh):
    whole = evaluate(fresh, EvalRequest(device="cpu"))
    cut(fresh / "results" / "eval.safetensors")
    assert replace(evaluate(fresh, EvalRequest(device="cpu")), provenance={}) == replace(whole, provenance={})
    assert len(load_file(fresh / "results" / "eval.safetensors")["losses"]) == whole.num_tokens


def test_weights_that_are_not_finite_are_refused(fresh):
    weights = load_torch(fresh / "model" / "model.safetensors")
    weights["norm.weight"][0] = math.nan
    plant_weights(fresh, weights)
    with pytest.raises(ValueError, match="losses of document 0 are not finite"):
        evaluate(fresh, EvalRequest(device="cpu"))
    assert not list((fresh / "results").glob(".eval*"))


def test_memory_that_runs_out_is_a_sentence(fresh, monkeypatch):
    def fail(self, rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Scorer, "start", fail)
    with pytest.raises(ValueError, match=r"memory ran out with 3 rows of 32 tokens at a time; .*--batch-tokens"):
        evaluate(fresh, EvalRequest(device="cpu", batch_tokens=100))


def test_no_more_text_is_read_than_is_scored(text_run, tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("the quick brown fox")
    (tmp_path / "9.txt").write_bytes(b"\xff is never read")
    got = evaluate(text_run, EvalRequest(text=(str(tmp_path),), device="cpu", max_tokens=20))
    assert 20 <= got.num_tokens < 60


def test_the_file_is_typed_and_a_table(fresh):
    got = evaluate(fresh, EvalRequest(device="cpu"))
    file = fresh / "results" / "eval.json"
    assert Evaluation.load(file) == got
    content = json.loads(file.read_text())
    assert content["kind"] == "evaluation"
    assert content["run"]["recipe"]["seed"] == 7
    assert content["provenance"]["torch"] == torch.__version__
    table = pandas.DataFrame(content["by_position"])
    assert float((table.loss * table.num_tokens).sum() / table.num_tokens.sum()) == pytest.approx(got.loss, abs=1e-6)


def test_text_from_outside(text_run, tmp_path):
    text = "seven lazy wizards jump.\nthe dog is quick and brown."
    (tmp_path / "a.txt").write_text(text)
    got = evaluate(text_run, EvalRequest(text=(str(tmp_path / "a.txt"),), device="cpu"))
    tokenizer = Tokenizer(text_run / "model" / "tokenizer.model")
    tokens = tokenizer.encode([text])[0]
    assert tokenizer.decode(tokens) == text
    assert got.num_tokens == len(tokens) - 1
    want = scored(text_run, tmp_path / "partial", source=Texts([tokens]))
    assert got.loss == pytest.approx(mean(want), abs=1e-6)
    assert got.bits_per_byte == pytest.approx(got.loss * got.num_tokens / math.log(2) / len(text.encode()), rel=1e-6)
    assert got.settings["documents"] == "a.txt"
    assert len(list((text_run / "results").glob("eval-a.txt-????????.json"))) == 1


def test_bits_per_byte_of_a_split_are_of_its_whole_text(text_run):
    split = corpus_of(text_run).manifest.splits["validation"]
    got = evaluate(text_run, EvalRequest(device="cpu"))
    assert got.bits_per_byte == pytest.approx(got.loss * got.num_tokens / math.log(2) / split.num_bytes, rel=1e-9)
    assert evaluate(text_run, EvalRequest(device="cpu", max_tokens=20)).bits_per_byte is None


BAD = {
    "unfinished": (lambda run: edit(run / "run.json", finished=False), {}, "is not finished"),
    "no run": (lambda run: (run / "run.json").unlink(), {}, "does not exist; name a folder that `lerope train` wrote"),
    "no model": (lambda run: shutil.rmtree(run / "model"), {}, "holds no model"),
    "cut model": (lambda run: (run / "model/model.safetensors").write_bytes(b"x"), {}, "config.json"),
    "data": (lambda run: None, {"data": Path("nowhere")}, "nowhere/manifest.json does not exist"),
    "both": (
        lambda run: None,
        {"data": Path("nowhere"), "text": ("b",)},
        "give either data or text; got nowhere and b",
    ),
    "no text": (lambda run: None, {"text": ("nowhere.txt",)}, "'nowhere.txt' does not exist"),
    "length": (lambda run: None, {"length": 0}, "length must be a positive"),
    "huge": (lambda run: None, {"length": 10**12, "truncate": True, "text": ("nowhere.txt",)}, "does not exist"),
    "device": (lambda run: None, {"device": "cuda"}, "device must .*got 'cuda'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_sentence(text_run, tmp_path, kind):
    if kind == "device" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    shutil.copytree(text_run, tmp_path / "run")
    spoil, fields, words = BAD[kind]
    spoil(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "results")
    with pytest.raises(ValueError, match=words) as caught:
        evaluate(tmp_path / "run", EvalRequest(**{"device": "cpu", **fields}))
    assert "\n" not in str(caught.value)


def test_data_that_changed_or_has_another_tokenizer_is_refused(run, text_run, tmp_path):
    shutil.copytree(text_run, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    own = content["starts"][-1]["data"]
    other = str(corpus_of(run).directory)
    with pytest.raises(ValueError, match="tokenizer"):
        evaluate(tmp_path / "run", EvalRequest(data=Path(other), device="cpu"))
    content["starts"][-1]["data"] = other
    (tmp_path / "run" / "run.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"has changed since .* was trained on it"):
        evaluate(tmp_path / "run", EvalRequest(device="cpu"))
    content["starts"][-1]["data"] = str(tmp_path / "gone")
    (tmp_path / "run" / "run.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="does not exist here; name its folder with --data"):
        evaluate(tmp_path / "run", EvalRequest(device="cpu"))
    assert evaluate(tmp_path / "run", EvalRequest(data=Path(own), device="cpu")).settings["documents"] == "validation"
