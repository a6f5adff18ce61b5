"""GGUF files: what llama.cpp reads in them, and llama.cpp itself where it is installed."""

import json

import numpy as np
import pytest
import torch

import lerope
from lerope.interop.engines import llama_cpp_table
from lerope.interop.gguf import put_factors, read_gguf
from lerope.model.saved import load_model
from tests.interop.trained import TRAIN_LENGTH, VOCAB_SIZE, text, tokenizer_path, tokens, trained

gguf = pytest.importorskip("gguf", reason="GGUF files need the package gguf")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return lerope.export(trained(), tmp_path_factory.mktemp("gguf") / "out", format="gguf")


def fields(path):
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}, {t.name: t for t in reader.tensors}


def rewritten(source, target, keep=lambda name: True, **changes):
    """A copy of a GGUF file with some tensors or keys changed."""
    keys, stored = fields(source)
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, changes.pop("architecture", keys["general.architecture"]))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, changes.pop(name, field.contents()), kind, sub_type=inner)
    for name, tensor in stored.items():
        if keep(name):
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert not changes
    return target


def test_what_llama_cpp_reads(exported):
    keys, stored = fields(exported / "model.gguf")
    saved = json.loads((trained() / "model" / "frequencies.json").read_text())
    assert keys["general.architecture"] == "apertus"
    assert keys["apertus.rope.scaling.type"] == "none"
    assert keys["apertus.rope.freq_base"] == 10_000
    assert keys["apertus.rope.dimension_count"] == 64
    assert keys["apertus.context_length"] == TRAIN_LENGTH
    assert stored["rope_freqs.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    factors = np.exp(-np.array(saved["log_scales"]))
    # llama.cpp's own theta^m is off by up to 2.3e-6, which the factors take back.
    np.testing.assert_allclose(stored["rope_freqs.weight"].data, factors, rtol=3e-6)
    for name, value in {"alpha_p": np.log(np.e - 1), "alpha_n": -200, "beta": 0, "eps": -1e-6}.items():
        np.testing.assert_allclose(keys[f"xielu.{name}"], [value] * 2, rtol=1e-7)
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"] is False
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert len(keys["tokenizer.ggml.tokens"]) == len(keys["tokenizer.ggml.scores"]) == VOCAB_SIZE
    model = load_model(trained())
    q, k, v = model.blocks[1].attention.qkv.weight.detach().chunk(3)
    for name, rows in {"q": q, "k": k, "v": v}.items():
        assert torch.equal(torch.from_numpy(stored[f"blk.1.attn_{name}.weight"].data.copy()), rows)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 12_000_000.0])
def test_llama_cpp_turns_by_our_frequencies_to_1e_6(base, tmp_path):
    encoding = lerope.LeRoPE(128, base=base)
    with torch.no_grad():
        encoding.alpha.copy_(torch.randn(64, generator=torch.Generator().manual_seed(0)))
    from lerope.interop.gguf import rope_factors

    wanted = encoding.frequencies().detach().double().numpy()
    config = {"rope_scaling_type": "none", "rope_theta": base}
    table = llama_cpp_table(config, rope_factors(encoding.artifact()))
    np.testing.assert_allclose(table.frequencies, wanted, rtol=1e-6)


def test_bfloat16(tmp_path):
    lerope.export(trained(), tmp_path / "out", format="gguf", dtype="bfloat16")
    _, stored = fields(tmp_path / "out" / "model.gguf")
    assert stored["blk.0.ffn_up.weight"].tensor_type == gguf.GGMLQuantizationType.BF16
    assert stored["blk.0.attn_q_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    _, weights, _ = read_gguf(tmp_path / "out" / "model.gguf")
    up = load_model(trained()).blocks[0].mlp.up.weight.detach()
    assert torch.equal(weights["model.layers.0.mlp.up_proj.weight"], up.bfloat16().float())


def test_a_file_without_factors_is_not_taken_for_whole(exported, tmp_path):
    bare = rewritten(exported / "model.gguf", tmp_path / "bare.gguf", keep=lambda name: "rope_freqs" not in name)
    with pytest.raises(ValueError, match=r"no tensor rope_freqs.weight: llama.cpp would turn by plain RoPE"):
        read_gguf(bare)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((exported / "model.gguf").read_bytes()[:1000])
    with pytest.raises(ValueError, match="not a complete GGUF file"):
        read_gguf(cut)


def test_an_export_that_does_not_read_back_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr("lerope.interop.gguf.XIELU", {})
    monkeypatch.setattr("lerope.interop.gguf.FACTORS", "rope.freqs")
    original = gguf.GGUFWriter.add_tensor

    def dropping(self, name, *args, **kwargs):
        if name != "rope.freqs":
            original(self, name, *args, **kwargs)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", dropping)
    with pytest.raises(OSError, match="does not read back"):
        lerope.export(trained(), tmp_path / "out", format="gguf")
    assert list(tmp_path.iterdir()) == []


def test_factors_for_a_file_that_another_converter_wrote(exported, tmp_path):
    source = exported / "model.gguf"
    longrope = {"apertus.rope.scaling.type": "longrope"}
    foreign = rewritten(source, tmp_path / "foreign.gguf", keep=lambda name: "rope_freqs" not in name, **longrope)
    put_factors(str(foreign), str(tmp_path / "mended.gguf"), str(exported))
    want_keys, want = fields(source)
    keys, found = fields(tmp_path / "mended.gguf")
    assert {key: keys[key] for key in want_keys if not key.startswith("GGUF.")} == {
        key: value for key, value in want_keys.items() if not key.startswith("GGUF.")
    }
    assert found.keys() == want.keys()
    assert all(np.array_equal(found[name].data, want[name].data) for name in want)
    with pytest.raises(ValueError, match="exists; name a new file"):
        put_factors(foreign, tmp_path / "mended.gguf", exported)
    other = folder_like(exported, tmp_path / "other", 1.0)
    lerope.RoPE(64, base=500.0).save(other / "frequencies.json")
    with pytest.raises(ValueError, match=r"turns 64 dimensions at base 10000; got frequencies for 64 at base 500"):
        put_factors(foreign, tmp_path / "no.gguf", other)
    qwen = rewritten(source, tmp_path / "qwen.gguf", architecture="qwen3")
    with pytest.raises(ValueError, match=r"llama\.cpp ignores frequency factors in architecture 'qwen3'"):
        put_factors(qwen, tmp_path / "no.gguf", exported)
    assert not (tmp_path / "no.gguf").exists()


def folder_like(exported, folder, attention_factor):
    """What an export says about itself, with another attention factor."""
    folder.mkdir()
    record = json.loads((exported / "export.json").read_text()) | {"attention_factor": attention_factor}
    (folder / "export.json").write_text(json.dumps(record))
    (folder / "frequencies.json").write_bytes((exported / "frequencies.json").read_bytes())
    return folder


def test_an_attention_factor_is_put_in_and_kept(exported, tmp_path):
    source, key = exported / "model.gguf", "apertus.rope.scaling.attn_factor"
    put_factors(source, tmp_path / "a.gguf", folder_like(exported, tmp_path / "folder", 1.25))
    assert fields(tmp_path / "a.gguf")[0][key] == 1.25
    assert read_gguf(tmp_path / "a.gguf")[0]["rope_attention_factor"] == 1.25
    put_factors(tmp_path / "a.gguf", tmp_path / "b.gguf", None)
    keys, stored = fields(tmp_path / "b.gguf")
    assert keys[key] == 1.25
    assert "rope_freqs.weight" not in stored
    put_factors(tmp_path / "a.gguf", tmp_path / "c.gguf", exported)
    assert key not in fields(tmp_path / "c.gguf")[0]
    config, _, factors = read_gguf(tmp_path / "a.gguf")
    assert llama_cpp_table(config, factors).attention_factor == 1.25


def test_llama_cpp_multiplies_by_the_attention_factor(exported, tmp_path):
    """Its square is what logits of attention get, as if the gains of queries had it."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: pip install llama-cpp-python")
    from lerope.interop.engine_runs import llama_cpp_logits

    put_factors(str(exported / "model.gguf"), tmp_path / "a.gguf", folder_like(exported, tmp_path / "folder", 1.25))
    ids, model = tokens()[:TRAIN_LENGTH], load_model(trained())
    found = llama_cpp_logits(tmp_path / "a.gguf", ids.tolist())
    with torch.no_grad():
        without = model(ids[None])[0].numpy()
        for block in model.blocks:
            block.attention.q_norm.weight *= 1.25**2
        wanted = model(ids[None])[0].numpy()
    assert np.abs(found - wanted).max() / np.abs(wanted).max() < 1e-3
    assert np.abs(without - wanted).max() / np.abs(wanted).max() > 1e-2


def perplexity(logits, ids):
    wide = torch.from_numpy(np.asarray(logits, np.float64))[:-1]
    return float(torch.nn.functional.cross_entropy(wide, ids[1:]).exp())


def test_llama_cpp_really_run(exported, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: pip install llama-cpp-python")
    from lerope.interop.engine_runs import llama_cpp_logits

    ids = tokens()[:TRAIN_LENGTH]
    with torch.no_grad():
        logits = load_model(trained())(ids[None])[0].numpy()
    ours = perplexity(logits, ids)
    found = llama_cpp_logits(exported / "model.gguf", ids.tolist())
    assert np.abs(found - logits).max() / np.abs(logits).max() < 1e-3
    assert perplexity(found, ids) == pytest.approx(ours, rel=1e-4)
    bare = rewritten(exported / "model.gguf", tmp_path / "bare.gguf", keep=lambda name: "rope_freqs" not in name)
    assert perplexity(llama_cpp_logits(bare, ids.tolist()), ids) > 1.01 * ours
    engine = llama_cpp.Llama(str(exported / "model.gguf"), vocab_only=True, verbose=False)
    from lerope.data.tokenizer import Tokenizer

    sample = text()[:3000] + " \u00e9\u65e5\U0001f642  \n\n"
    expected = Tokenizer(tokenizer_path()).encode([sample])[0].tolist()[:-1]
    assert engine.tokenize(sample.encode(), add_bos=True, special=False) == expected


@pytest.mark.parametrize("length", [None, 2 * TRAIN_LENGTH])
def test_llama_cpp_in_bfloat16(length, tmp_path):
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: pip install llama-cpp-python")
    from lerope.interop.verify import verify

    out = lerope.export(trained(), tmp_path / "out", format="gguf", dtype="bfloat16", length=length)
    for run in (None, trained()):
        (row,) = verify(out, run=run, prompt=text()[:1000], num_tokens=32).runs
        assert row["verdict"] == "agrees"
        assert row["logit_error"] < 5e-3  # without its factors the model is off by much more


def test_llama_cpp_with_yarn_baked_in(tmp_path):
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: pip install llama-cpp-python")
    from lerope.interop.verify import verify

    out = lerope.export(trained(), tmp_path / "out", format="gguf", length=2 * TRAIN_LENGTH)
    found = verify(out, run=trained(), prompt=text()[:2000], num_tokens=64)
    assert found.settings["num_prompt_tokens"] == 2 * TRAIN_LENGTH - 64
    assert [(row["verdict"], row["num_same_tokens"]) for row in found.runs] == [("agrees", 64)]
