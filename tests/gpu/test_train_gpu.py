"""Training on a CUDA device: what the CPU does, compiled and in bf16, stopped and gone on with."""

import pytest
import torch

from lerope.model.config import ModelConfig
from lerope.train.trainer import Trainer
from tests.train.runs import metrics, tiny_corpus, tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SMALL = ModelConfig(num_layers=2, num_heads=2, head_dim=64, vocab_size=50)
SHAPE = {"model": SMALL, "row_length": 128, "batch_tokens": 1024, "steps": 12}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("data") / "c")


def losses(out):
    return [record["loss"] for record in metrics(out) if "loss" in record]


@pytest.mark.parametrize("changes", [{}, {"compile": "yes"}, {"attention": "flex"}, {"recompute": True}], ids=str)
def test_float32_on_the_gpu_is_float32_on_the_cpu(data, tmp_path, changes):
    tiny_run(data, tmp_path / "cpu", **SHAPE)
    tiny_run(data, tmp_path / "gpu", {"device": "cuda", **changes}, **SHAPE)
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)


def test_bf16_compiled_learns_what_float32_does_and_compiles_once(data, tmp_path):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    shape = {**SHAPE, "steps": 40, "precision": "bf16"}
    tiny_run(data, tmp_path / "gpu", {"device": "cuda", "compile": "auto"}, **shape)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    # A block with and without a gradient, and nothing again when documents lie elsewhere in the rows.
    assert graphs <= 4, graphs
    tiny_run(data, tmp_path / "cpu", **{**shape, "precision": "float32"})
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=0.05)
    assert losses(tmp_path / "gpu")[-1] < 0.7 * losses(tmp_path / "gpu")[0]


def test_a_run_moves_from_the_gpu_to_the_cpu(data, tmp_path, monkeypatch):
    """Stopped on one and gone on with on the other."""
    out = tmp_path / "run"
    tiny_run(data, tmp_path / "whole", {"device": "cuda"}, **SHAPE)
    report = Trainer._report
    with monkeypatch.context() as patch:
        patch.setattr(
            Trainer, "_report", lambda self, started: report(self, started) or bool(started and started.step > 5)
        )
        assert not tiny_run(data, out, {"device": "cuda"}, **SHAPE).finished
    assert tiny_run(data, out, {"device": "cpu"}, **SHAPE).finished
    assert losses(out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)
