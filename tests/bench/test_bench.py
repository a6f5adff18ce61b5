"""lerope bench in quick mode: every section runs, counts what must be counted, and survives what fails."""

import json
import math
import os
import signal
import sys
import types

import numpy as np
import pytest
import torch

from lerope.bench import peers, rotary
from lerope.bench.attention import attention_flops
from lerope.bench.documents import Documents
from lerope.bench.head import head_flops
from lerope.bench.run import SECTIONS, run
from lerope.bench.step import LEROPE, NANOGPT, ROPE, _ratios
from lerope.bench.timing import Times
from lerope.cli.main import main
from lerope.core.ladder import rung
from lerope.core.terminal import Display
from lerope.data.loader import Loader
from lerope.data.shards import Corpus
from lerope.results import Benchmark, load_result
from lerope.rotary.encodings import RoPE
from lerope.rotary.rotation import Rotation
from tests.bench.nanogpt import MODEL
from tests.data.corpora import write_corpus

pytestmark = pytest.mark.slow

ELEMENT = 2 if torch.cuda.is_available() else 4


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "model.py").write_text(MODEL)
    return folder


@pytest.fixture(scope="module")
def whole(nanogpt):
    """All sections, and which were reported when."""
    reported = []
    found = run(report=lambda section, found: reported.append(section), quick=True, rounds=2, nanogpt=nanogpt)
    return found, reported


@pytest.fixture(scope="module")
def found(whole):
    return whole[0]


def call(*args):
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return stop.value.code


def test_bytes_that_must_move():
    """131,072 tokens x 8 heads x 64 in bfloat16 are 134,217,728 bytes; 32 heads four times that."""
    x, q = 134_217_728, 536_870_912
    assert rotary.needed_bytes("forward", [x], learned=False, norm=False) == 268_435_456
    assert rotary.needed_bytes("forward", [x], learned=True, norm=True) == 268_435_456
    assert rotary.needed_bytes("backward", [x], learned=False, norm=False) == 268_435_456
    assert rotary.needed_bytes("backward", [x], learned=True, norm=False) == 402_653_184
    assert rotary.needed_bytes("backward", [x], learned=False, norm=True) == 402_653_184
    assert rotary.needed_bytes("backward", [x], learned=True, norm=True) == 402_653_184
    assert rotary.needed_bytes("backward", [q, x], learned=True, norm=False) == 2_013_265_920


def test_flops_are_those_of_a_causal_half_and_of_three_products():
    assert attention_flops("forward", 64, 8, 2048, 64) == 274_877_906_944
    assert attention_flops("forward + backward", 64, 8, 2048, 64) == 824_633_720_832
    assert head_flops(131_072, 512, 32_000) == 12_884_901_888_000


def test_every_section_is_measured_and_reported_in_order(whole):
    found, reported = whole
    assert tuple(reported) == SECTIONS
    assert not found.stopped
    lists = (found.ceilings, found.rotary, found.layouts, found.attention, found.head, found.steps)
    for rows in lists:
        assert rows
        for row in rows:
            assert bool(row["note"]) == (row["median_ms"] is None)
            if not row["note"]:
                assert 0 < row["q1_ms"] <= row["median_ms"] <= row["q3_ms"]
                assert all(value > 0 for value in row.values() if isinstance(value, float))
    assert [row["name"] for row in found.ceilings if row["rate"]] == ["matmul", "copy"]


def test_rows_of_rotary_count_their_bytes_against_the_copy(found):
    """512 tokens x 2 or 4 heads x 64."""
    x = {2: 65_536 * ELEMENT, 4: 131_072 * ELEMENT}
    copy = next(row["rate"] for row in found.ceilings if row["name"] == "copy")
    rows = {(r["tensors"], r["num_heads"], r["name"], r["part"]): r for r in found.rotary}
    want = {
        ("x", 2, "lerope, learned", "forward"): 2 * x[2],
        ("x", 2, "lerope, learned", "backward"): 3 * x[2],
        ("x", 4, "lerope, fixed", "backward"): 2 * x[4],
        ("q and k", 2, "lerope, fixed", "forward"): 4 * x[2],
        ("q and k", 4, "lerope, learned", "backward"): 6 * x[4],
        ("q and k", 4, "lerope, QK-norm, learned", "forward"): 4 * x[4],
        ("q and k", 4, "lerope, QK-norm, learned", "backward"): 6 * x[4],
        ("q and k", 4, "rotary-embedding-torch", "backward"): 6 * x[4],
    }
    for key, num_bytes in want.items():
        row = rows[key]
        assert row["num_bytes"] == num_bytes, key
        assert row["note"] == "", key
        assert row["share_of_copy"] == pytest.approx(num_bytes / (row["median_ms"] / 1e3) / copy)
    assert {r["name"]: r["learned"] for r in found.rotary} == {
        "lerope, learned": True,
        "lerope, fixed": False,
        "lerope, QK-norm, learned": True,
        "torch.compile, learned": True,
        "eager, learned": True,
        "Liger": False,
        "flash-attn": False,
        "rotary-embedding-torch": True,
    }
    assert not any(r["name"] in ("Liger", "lerope, QK-norm, learned") for r in found.rotary if r["tensors"] == "x")


def test_rows_of_layouts_count_their_bytes(found):
    rows = {(r["layout"], r["norm"], r["part"]): r for r in found.layouts}
    assert len(rows) == len(found.layouts) == 15 * 2 * 2
    assert all(row["note"] == "" for row in found.layouts)
    eight_heads = 512 * 8 * 64
    want = {
        ("half", False, "forward"): 2 * 2 * eight_heads * ELEMENT,
        ("half", False, "backward"): 3 * 2 * eight_heads * ELEMENT,
        ("interleaved", True, "backward"): 3 * 2 * eight_heads * ELEMENT,
        ("grouped queries", False, "forward"): 2 * 5 * eight_heads * ELEMENT,
        ("head_dim 128, 24 and 8 heads", True, "backward"): 3 * 8 * eight_heads * ELEMENT,
        ("partial, 32 of 64", False, "forward"): 2 * 2 * eight_heads * ELEMENT,
        ("partial, 32 of 64", False, "backward"): 5 * eight_heads * ELEMENT,
        ("partial, 64 of 256", False, "backward"): 9 * eight_heads * ELEMENT,
        ("partial, 64 of 256", True, "backward"): 3 * 4 * eight_heads * ELEMENT,
        ("views of qkv", True, "forward"): 2 * 2 * eight_heads * ELEMENT,
        ("head_dim 128", False, "backward"): 3 * 4 * eight_heads * ELEMENT,
        ("head_dim 256", False, "backward"): 3 * 4 * eight_heads * ELEMENT,
        ("float16", True, "backward"): 3 * 2 * eight_heads * 2,
        ("float32", True, "backward"): 3 * 2 * eight_heads * 4,
    }
    for key, num_bytes in want.items():
        assert rows[key]["num_bytes"] == num_bytes, key


def test_attention_names_what_auto_takes(found):
    both = {row["name"]: row for row in found.attention if row["part"] == "forward + backward"}
    assert {"sdpa", "flex", "cuDNN causal", "flash causal"} <= set(both)
    assert [row["name"] for row in both.values() if row["chosen"]] == (
        ["sdpa"] if not torch.cuda.is_available() else [next(n for n, r in both.items() if r["chosen"])]
    )
    assert both["sdpa"]["masked"]
    assert not both["flash causal"]["masked"]
    sdpa = both["sdpa"]
    assert sdpa["flops"] == 3 * 2 * 4 * 4 * 128**2 * 64
    assert sdpa["flops_per_second"] == pytest.approx(sdpa["flops"] / (sdpa["median_ms"] / 1e3))
    assert sdpa["num_documents"] >= sdpa["num_rows"] == 4


def test_the_head_is_measured_against_its_products(found):
    matmul = found.ceilings[0]["rate"]
    ours, plain = (next(r for r in found.head if r["name"] == name) for name in ("lerope", "all logits in float32"))
    for row in (ours, plain):
        assert row["flops"] == 6 * 512 * 256 * 2048
        assert row["share_of_matmul"] == pytest.approx(row["flops"] / (row["median_ms"] / 1e3) / matmul)


def test_steps_train_and_are_compared_pair_by_pair(found):
    rows = {row["name"]: row for row in found.steps}
    assert list(rows) == [ROPE, LEROPE, NANOGPT]
    for row in rows.values():
        assert row["note"] == ""
        assert row["batch_tokens"] == 512
        assert row["tokens_per_second"] == pytest.approx(512 / (row["median_ms"] / 1e3))
        assert row["loss"] == pytest.approx(math.log(2048), abs=1.5)
    assert rows[ROPE]["kernels"] == rows[LEROPE]["kernels"]
    assert rows[ROPE]["kernels"].startswith("rotary reference (fused kernels need a CUDA device")
    assert rows[NANOGPT]["kernels"] == ""
    assert [ratio["num_pairs"] for ratio in found.step_ratios] == [2, 2]
    assert all(0 < ratio["q1"] <= ratio["median"] <= ratio["q3"] for ratio in found.step_ratios)


def test_ratios_say_how_much_slower_and_how_much_faster():
    """Steps of 100, 101 and 126.25 ms; a step missing at the end, where it was stopped, has no pair."""
    found = {
        ROPE: Times((0.1, 0.1), 1000),
        LEROPE: Times((0.101, 0.101), 1010),
        NANOGPT: Times((0.12625,), 2020),
    }
    learned, peer = _ratios("52M", found)
    assert learned["what"] == "time, LeRoPE by RoPE"
    assert (learned["median"], learned["memory"], learned["num_pairs"]) == (pytest.approx(1.01), 1.01, 2)
    assert peer["what"] == "tokens/s, LeRoPE by nanoGPT"
    assert (peer["median"], peer["memory"], peer["num_pairs"]) == (pytest.approx(1.25), 0.5, 1)
    assert _ratios("52M", {ROPE: Times((0.1,)), LEROPE: Times(note="out of memory")}) == []


def test_what_is_written_is_read_back(found, tmp_path):
    found.save(tmp_path / "bench.json")
    assert Benchmark.load(tmp_path / "bench.json") == found
    assert load_result(tmp_path / "bench.json") == found
    assert {"date", "commit", "torch", "gpu", "cuda", "packages"} <= set(found.provenance)
    assert "log-normal" in found.settings["documents"]
    assert found.settings["data"] is None


def test_a_peer_that_is_broken_is_a_note(monkeypatch):
    def broken(**options):
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setitem(sys.modules, "rotary_embedding_torch", types.SimpleNamespace(RotaryEmbedding=broken))
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    found = run(["rotary"], quick=True, rounds=1)
    notes = {row["name"]: row["note"] for row in found.rotary}
    assert notes["rotary-embedding-torch"] == "RuntimeError: no kernel image"
    assert notes["Liger"] == "liger_kernel is not installed"
    assert notes["lerope, learned"] == ""
    assert not found.stopped


def test_documents_of_ones_own_are_packed_as_for_training(tmp_path):
    data = write_corpus(tmp_path / "data", {"train": [90, 300, 17, 220, 40], "validation": [20]})
    documents = Documents(data, tmp_path, 1000)
    want, _ = Loader(Corpus(data).train, 128, 4, 0).load(0)
    assert np.array_equal(documents.batch(50, 128, 4).document_ids, want.document_ids)
    assert documents.fitted(rung("demo")).vocab_size == 50
    assert str(data) in documents.source
    found = run(["attention"], quick=True, rounds=1, data=data)
    assert found.settings["data"] == Corpus(data).manifest.fingerprint()
    assert found.attention[0]["num_documents"] == int((want.positions == 0).sum())


def test_made_up_documents_are_whole_and_always_the_same(tmp_path):
    one, other = (Documents(None, tmp_path / name, 1 << 15).corpus(2048).train for name in "ab")
    assert np.array_equal(one.lengths, other.lengths)
    assert 1 << 15 <= one.lengths.sum() < (1 << 15) + 32_768
    for index in range(len(one)):
        tokens = one.document(index)
        assert (tokens[0], tokens[-1]) == (1, 2)
        assert tokens[1:-1].min(initial=3) >= 3
        assert np.array_equal(tokens, other.document(index))


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class FakeLiger(torch.autograd.Function):
    """q and k as (rows, heads, length, head_dim), cos and sin as (1, length, head_dim)."""

    @staticmethod
    def forward(ctx, q, k, cos, sin):
        assert cos.shape == (1, q.shape[2], q.shape[3])
        half = q.shape[3] // 2
        ctx.tables = (cos[..., :half], sin[..., :half])
        return turned(q, *ctx.tables), turned(k, *ctx.tables)

    @staticmethod
    def backward(ctx, q, k):
        cos, sin = ctx.tables
        return turned(q, cos, -sin), turned(k, cos, -sin), None, None


def fake_flash(x, cos, sin, conjugate=False):
    assert cos.shape == (x.shape[1], x.shape[3] // 2)
    return turned(x, cos[:, None], -sin[:, None] if conjugate else sin[:, None])


def test_peers_are_given_the_problem_that_we_solve(monkeypatch):
    q, k = (torch.randn(2, 16, 3, 64).requires_grad_() for _ in range(2))
    positions, frequencies = torch.arange(16), RoPE(64).frequencies().detach()
    want = Rotation(positions, frequencies)(q, k)

    def gradients(*shape, heads_first):
        """Ours, of the random gradients that the adapters draw."""
        torch.manual_seed(1)
        drawn = [torch.randn(*shape) for _ in range(2)]
        upstream = [grad.transpose(1, 2) for grad in drawn] if heads_first else drawn
        return torch.autograd.grad(want, (q, k), upstream, retain_graph=True)

    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.ops", types.ModuleType("liger_kernel.ops"))
    liger = types.SimpleNamespace(LigerRopeFunction=FakeLiger)
    monkeypatch.setitem(sys.modules, "liger_kernel.ops.rope", liger)
    torch.manual_seed(1)
    parts = peers.liger_rotary([[q, k]], positions, frequencies)
    for got, ours in zip(parts["forward"][0](), want, strict=True):
        torch.testing.assert_close(got.transpose(1, 2), ours)
    for got, ours in zip(parts["backward"][0](), gradients(2, 3, 16, 64, heads_first=True), strict=True):
        torch.testing.assert_close(got.transpose(1, 2), ours)
    for name in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    flash = types.SimpleNamespace(apply_rotary=fake_flash)
    monkeypatch.setitem(sys.modules, "flash_attn.ops.triton.rotary", flash)
    torch.manual_seed(1)
    parts = peers.flash_rotary([[q, k]], positions, frequencies)
    for got, ours in zip(parts["forward"][0](), want, strict=True):
        torch.testing.assert_close(got, ours)
    for got, ours in zip(parts["backward"][0](), gradients(2, 16, 3, 64, heads_first=False), strict=True):
        torch.testing.assert_close(got, ours)


def test_a_table_and_json(tmp_path, capsys):
    main(["bench", "head", "--rounds", "1", "--quick", "--out", str(tmp_path / "bench.json")])
    text = capsys.readouterr().out
    assert "ceilings" in text
    assert "all logits in float32" in text
    assert "rotary of" not in text
    assert max(map(len, text.splitlines())) <= 80
    main(["bench", "ceilings", "--rounds", "1", "--quick", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["kind"] == "benchmark"
    assert content["settings"]["sections"] == ["ceilings"]
    assert Benchmark.load(tmp_path / "bench.json").settings["sections"] == ["ceilings", "head"]


def interrupt_at(monkeypatch, moment):
    """Sends Ctrl-C when the progress line starts with `moment`."""
    show = Display.show

    def interrupting(self, text):
        if text.startswith(moment):
            os.kill(os.getpid(), signal.SIGINT)
        show(self, text)

    monkeypatch.setattr(Display, "show", interrupting)


def test_ctrl_c_keeps_the_tables_of_a_section_before_it(tmp_path, capsys, monkeypatch):
    interrupt_at(monkeypatch, "rotary of q and k, 2 heads: lerope, learned")
    out = tmp_path / "bench.json"
    assert call("bench", "rotary", "--quick", "--rounds", 1, "--out", out) == 130
    assert "rotary of x, 512 tokens x 2 heads x 64" in capsys.readouterr().out
    found = Benchmark.load(out)
    assert {(row["tensors"], row["num_heads"]) for row in found.rotary} == {("x", 2)}
    assert not found.layouts


@pytest.mark.parametrize(
    ("moment", "num_rows"), [("head of demo: lerope, warming up", 0), ("head of demo: round 1", 3)]
)
def test_ctrl_c_keeps_what_was_measured(tmp_path, capsys, monkeypatch, moment, num_rows):
    interrupt_at(monkeypatch, moment)
    out = tmp_path / "bench.json"
    assert call("bench", "head", "step", "--quick", "--rounds", 5, "--out", out) == 130
    said = capsys.readouterr()
    assert "matrix product" in said.out
    assert ("head and loss" in said.out) == bool(num_rows)
    assert said.err.startswith("Stopped; ")
    assert f" in {out}." in said.err
    found = Benchmark.load(out)
    assert found.stopped
    assert [row["note"] for row in found.ceilings] == ["", ""]
    assert len(found.head) == num_rows
    assert all(row["median_ms"] is not None for row in found.head if row["name"] != "Liger")
    assert not found.steps


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("rotor",), "section must be one of ceilings, rotary, attention, head, step; got 'rotor'."),
        (("--rounds", "0"), "rounds must be"),
        (("--rungs", "53M"), "rung must be one of"),
        (("--nanogpt", "nowhere"), "nanogpt must be a folder with nanoGPT's model.py; got nowhere."),
        (("--data", "nowhere"), "nowhere/manifest.json does not exist"),
    ],
)
def test_bad_input_is_one_sentence(capsys, args, words):
    assert call("bench", *args) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
