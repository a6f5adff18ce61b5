"""Engines' frequency tables from exported files, and what `verify` notices when something is wrong."""

import importlib.metadata
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

import lerope
from lerope.interop import verify as module
from lerope.interop.engines import TABLES
from lerope.interop.export_record import hashes, read_export
from lerope.interop.tried import Tried
from lerope.interop.verify import ENGINES, verify
from tests.interop.toys import SHAPE, make, scaled, shake
from tests.interop.trained import TRAIN_LENGTH, odd_lerope, tokenizer_path, trained, untrained


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return lerope.export(trained(), tmp_path_factory.mktemp("verify") / "out")


@pytest.fixture
def copy(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "copy")
    return tmp_path / "copy"


def edit(folder, change):
    content = json.loads((folder / "config.json").read_text())
    change(content)
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("length", [None, 4 * TRAIN_LENGTH])
@pytest.mark.parametrize("engine", TABLES)
def test_tables_match_to_1e_6(engine, length, tmp_path):
    """Against our frequencies in float64: exp(alpha) base^(-2m / d), extended by the paper's formula."""
    encoding = odd_lerope()
    scales = encoding.alpha.detach().double().numpy()
    wanted = np.exp(scales) * 10_000.0 ** (-np.arange(32) / 32)
    if length is not None:
        turns = wanted * TRAIN_LENGTH / (2 * np.pi)
        wanted = wanted * (0.25 + np.clip((turns - 1) / 31, 0, 1) * 0.75)
    with pytest.warns(UserWarning, match="no tokenizer"):
        lerope.export(untrained(encoding), tmp_path / "out", length=length, train_length=TRAIN_LENGTH)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    table = TABLES[engine](config)
    np.testing.assert_allclose(table.frequencies, wanted, rtol=1e-6)
    assert table.attention_factor == 1.0


def test_bands_that_stand_still(tmp_path):
    with pytest.warns(UserWarning, match="no tokenizer"):
        lerope.export(untrained(lerope.PRoPE(64, p=0.5)), tmp_path / "out", train_length=TRAIN_LENGTH)
    found = verify(tmp_path / "out", num_tokens=4)
    assert all(table["agrees"] is not False for table in found.tables)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for make_table in TABLES.values():
        table = make_table(config).frequencies
        assert np.all(table[:16] > 1e-5)
        assert np.all(np.abs(table[16:]) * 1e6 < 1e-20)


def test_every_installed_engine_agrees(exported):
    for run in (None, trained()):
        found = verify(exported, run=run, num_tokens=16)
        assert all(table["agrees"] is not False for table in found.tables)
        rows = {row["engine"]: row for row in found.runs}
        assert rows["transformers"]["verdict"] == "agrees"
        assert rows["transformers"]["logit_error"] < 1e-5
        assert found.settings["logit_tolerances"]["transformers"] < 1e-4
        assert rows["transformers"]["num_same_tokens"] == 16
        assert all(row["verdict"] in (None, "agrees") for row in found.runs)


def test_an_extension_is_compared_with_the_run_at_that_length(tmp_path):
    out = lerope.export(trained(), tmp_path / "out", length=2 * TRAIN_LENGTH, temperature=0.5)
    found = verify(out, run=trained(), prompt="def f(x):\n    return x\n" * 30, num_tokens=16)
    assert found.settings["num_prompt_tokens"] > 200
    assert [row["verdict"] for row in found.runs if row["engine"] == "transformers"] == ["agrees"]
    edit_record = json.loads((out / "export.json").read_text()) | {"temperature": 0.1}
    (out / "export.json").write_text(json.dumps(edit_record))
    wrong = verify(out, run=trained(), num_tokens=16)
    assert [row["verdict"] for row in wrong.runs if row["engine"] == "transformers"] == ["differs"]


def test_lost_keys_are_noticed_engine_by_engine(copy):
    """What mlx-lm and TensorRT-LLM read is not what transformers and vLLM read."""
    edit(copy, lambda config: config.pop("rope_scaling"))
    agrees = {table["engine"]: table["agrees"] for table in verify(copy, num_tokens=1).tables}
    for name in ("mlx-lm", "TensorRT-LLM", "SGLang", "ONNX Runtime GenAI", "transformers 4"):
        assert agrees[name] is False
    assert agrees["transformers 5"]
    assert agrees["vLLM"]


def test_a_longer_length_would_make_engines_scale_attention(copy):
    edit(copy, lambda config: config.update(max_position_embeddings=4 * TRAIN_LENGTH))
    tables = {table["engine"]: table for table in verify(copy, num_tokens=1).tables}
    assert tables["transformers 5"]["agrees"]
    for engine in ("vLLM", "mlx-lm"):
        assert not tables[engine]["agrees"]
        assert tables[engine]["attention_factor"] == pytest.approx((1 + np.log(4) / np.log(256)) ** 0.5)


def test_a_changed_factor_is_noticed(copy):
    def change(config):
        config["rope_parameters"]["short_factor"][3] *= 1 + 1e-5

    edit(copy, change)
    agrees = {table["engine"]: table["agrees"] for table in verify(copy, num_tokens=1).tables}
    assert not agrees["transformers 5"]
    assert agrees["vLLM"]


def test_changed_weights_differ_from_the_run(copy):
    weights = load_file(copy / "model.safetensors")
    weights["model.layers.0.self_attn.q_norm.weight"] *= 1.01
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model.safetensors is not what was exported"):
        verify(copy, num_tokens=4)
    replace(read_export(copy), sha256=hashes(copy)).save(copy)
    rows = {row["engine"]: row for row in verify(copy, run=trained(), num_tokens=4).runs}
    assert rows["transformers"]["verdict"] == "differs"
    assert rows["transformers"]["logit_error"] > 1e-5


def sharp(tmp_path, gain):
    """A ladder model whose attention logits go up to gain^2 * 8."""
    model = untrained(odd_lerope())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name or "k_norm" in name:
                parameter.fill_(gain)
    return lerope.export(model, tmp_path / f"{gain}", tokenizer=tokenizer_path(), train_length=TRAIN_LENGTH)


def of_transformers(folder):
    found = verify(folder, num_tokens=8)
    (row,) = (row for row in found.runs if row["engine"] == "transformers")
    return row, found.settings["logit_tolerances"]["transformers"]


def test_what_is_allowed_grows_as_rounding_does(tmp_path):
    """Logits of sharper attention know less of their last digits: the error grows, and as much is allowed."""
    mild, sharper = (of_transformers(sharp(tmp_path, gain)) for gain in (1.0, 4.0))
    assert [row["verdict"] for row, _ in (mild, sharper)] == ["agrees"] * 2
    assert sharper[0]["logit_error"] > 5 * mild[0]["logit_error"]
    assert sharper[1] > 8 * mild[1]
    assert mild[1] < 5e-5


@pytest.mark.parametrize("gain", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("band", [0, 4, 8])
def test_one_band_wrong_by_a_thousandth_differs(band, gain, tmp_path, monkeypatch):
    """Of those that turn by ten radians or more over the prompt; slower ones are seen in the tables alone."""
    engine = next(engine for engine in module.ENGINES if engine.package == "transformers")

    def off(folder, tokens, num_tokens):
        wrong = shutil.copytree(folder, tmp_path / "wrong")
        edit(wrong, change)
        return engine.run(wrong, tokens, num_tokens)

    def change(config):
        for key in ("rope_parameters", "rope_scaling"):
            config[key]["short_factor"][band] *= 1.001

    monkeypatch.setattr(module, "ENGINES", (replace(engine, run=off),))
    row, allowed = of_transformers(sharp(tmp_path, gain))
    assert row["verdict"] == "differs"
    assert row["logit_error"] > 3 * allowed


def test_an_engine_that_fails_is_reported_and_the_others_still_run(copy):
    for change in ({"model_type": "no_such_model"}, {"model_type": "apertus", "num_key_value_heads": 3}):
        edit(copy, lambda config, change=change: config.update(change))
        rows = {row["engine"]: row for row in verify(copy, num_tokens=4).runs}
        assert rows["transformers"]["verdict"] == "cannot run"
        assert "Error" in rows["transformers"]["note"]


def test_a_converted_model(tmp_path):
    model = lerope.convert(make("llama"))
    with torch.no_grad():
        for parameter in model.model.rotary_emb.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="no tokenizer"):
        lerope.export(model, tmp_path / "out")
    found = verify(tmp_path / "out", num_tokens=4)
    assert found.reference == "transformers"
    assert all(table["agrees"] is not False for table in found.tables)


def of_reference(found):
    """Agreement of transformers with itself says nothing, and is not said."""
    (row,) = (row for row in found.runs if row["engine"] == "transformers")
    assert row["version"] == importlib.metadata.version("transformers")
    return row["verdict"], row["logit_error"], row["note"]


def converted(tmp_path, model, **options):
    lerope.convert(model)
    shake(model)
    with pytest.warns(UserWarning, match="no tokenizer"):
        return lerope.export(model, tmp_path / "out", **options)


@pytest.mark.parametrize("length", [None, 512])
def test_an_apertus_that_is_no_ladder_model(length, tmp_path):
    """With heads that share keys and weights of its activation that no ladder has."""
    model = make("apertus")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.act_fn.alpha_p.fill_(1.0)
    found = verify(converted(tmp_path, model, length=length), num_tokens=4)
    assert found.reference == "transformers"
    assert all(table["agrees"] is not False for table in found.tables)
    assert of_reference(found) == (None, None, "the reference itself")


def llava():
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlavaConfig(
        text_config=LlamaConfig(**SHAPE), vision_config=CLIPVisionConfig(**vision, image_size=28, patch_size=14)
    )
    return LlavaForConditionalGeneration(config)


def test_a_language_model_inside_another_is_not_compared(tmp_path):
    out = converted(tmp_path, llava())
    with pytest.raises(ValueError, match=r"compares language models; .* holds a llava model") as caught:
        verify(out)
    assert "\n" not in str(caught.value)


def test_kinds_of_layers_have_no_table_but_engines_are_run(tmp_path):
    found = verify(converted(tmp_path, make("gemma3")), num_tokens=4)
    assert all((table["agrees"], table["error"]) == (None, None) for table in found.tables)
    assert of_reference(found) == (None, None, "the reference itself")


@pytest.mark.parametrize("kind", ["ladder", "llama", "gemma3"])
def test_an_engine_that_ignores_the_factors_is_recognised(kind, exported, tmp_path, monkeypatch):
    folder = exported if kind == "ladder" else converted(tmp_path, make(kind))
    engine = next(engine for engine in module.ENGINES if engine.package == "transformers")

    def deaf(folder, tokens, num_tokens):
        plain = shutil.copytree(folder, tmp_path / "plain")
        edit(plain, make_plain)
        return engine.run(plain, tokens, num_tokens)

    monkeypatch.setattr(module, "ENGINES", (replace(engine, run=deaf),))
    (row,) = verify(folder, num_tokens=4).runs
    assert row["verdict"] == "ignores the factors"
    assert row["logit_error"] > 1e-3


def make_plain(config):
    def plain(rope):
        return {"rope_type": "default", "rope_theta": rope["rope_theta"]}

    rope = config["rope_parameters"]
    nested = {kind: plain(part) for kind, part in rope.items() if isinstance(part, dict)}
    config["rope_parameters"] = nested or plain(rope)
    config.pop("rope_scaling", None)


def test_what_is_known_of_an_architecture_stands_beside_the_table(copy, monkeypatch):
    known = Tried(
        engine="vLLM", version="1.2", architecture="apertus", verdict="ignores the factors", error=1.0, note=""
    )
    monkeypatch.setattr("lerope.interop.tried.all_tried", lambda: [known])
    tables = {table["engine"]: table for table in verify(copy, num_tokens=1).tables}
    assert tables["vLLM"]["error"] < 1e-6
    assert [tables["vLLM"][key] for key in ("agrees", "tried", "tried_version")] == [None, "ignores the factors", "1.2"]
    assert [tables["mlx-lm"][key] for key in ("agrees", "tried")] == [True, None]


def test_an_engine_in_an_environment_of_its_own(exported, tmp_path):
    home = tmp_path / "environments"
    home.mkdir()
    (home / "transformers-here").symlink_to(sys.prefix)
    rows = [row for row in verify(exported, num_tokens=4, environments=home).runs if row["engine"] == "transformers"]
    assert [(row["verdict"], row["version"]) for row in rows] == [
        ("agrees", importlib.metadata.version("transformers"))
    ]
    with pytest.raises(ValueError, match="folder of virtual environments"):
        verify(exported, environments=tmp_path / "none")


def test_an_attention_factor_is_expected_of_every_engine(tmp_path):
    """YaRN's, 0.1 ln(4) + 1: it is in the model that was converted; two engines have no way to read it."""
    found = verify(converted(tmp_path, scaled("yarn")), num_tokens=4)
    tables = {table["engine"]: table for table in found.tables}
    for engine in ("transformers 5", "transformers 4", "vLLM", "SGLang", "TensorRT-LLM"):
        assert tables[engine]["attention_factor"] == pytest.approx(0.1 * np.log(4) + 1)
        assert tables[engine]["agrees"], tables[engine]
    for engine in ("mlx-lm", "ONNX Runtime GenAI"):
        assert tables[engine]["note"] == "the attention factor should be 1.13863"
        assert not tables[engine]["agrees"]


@pytest.mark.parametrize("length", [None, 2 * TRAIN_LENGTH])
def test_bfloat16_is_compared_with_the_run_rounded_to_it(length, tmp_path):
    out = lerope.export(trained(), tmp_path / "out", dtype="bfloat16", length=length)
    found = verify(out, run=trained(), num_tokens=16)
    assert found.reference.endswith("with its weights rounded to bfloat16")
    assert found.settings["dtype"] == "bfloat16"
    assert found.settings["logit_tolerances"]["transformers"] < 1e-4
    rows = {row["engine"]: row for row in found.runs}
    assert rows["transformers"]["verdict"] == "agrees"
    assert rows["transformers"]["logit_error"] < 1e-5
    weights = load_file(out / "model.safetensors")
    weights["model.layers.0.self_attn.q_norm.weight"] *= 1.01
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    replace(read_export(out), sha256=hashes(out)).save(out)
    rows = {row["engine"]: row for row in verify(out, run=trained(), num_tokens=16).runs}
    assert rows["transformers"]["verdict"] == "differs"


def test_a_run_is_for_ladder_models(tmp_path):
    out = converted(tmp_path, make("llama"))
    with pytest.raises(ValueError, match=r"run is for exported ladder models; .* lerope\.convert made"):
        verify(out, run=trained())


def test_a_record_that_says_too_little(copy):
    record = json.loads((copy / "export.json").read_text())
    assert (record["kind"], record["dtype"], record["attention_factor"]) == ("ladder", "float32", 1.0)
    del record["kind"], record["dtype"]
    (copy / "export.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"export.json: kind is missing; export the model again"):
        verify(copy)


def test_an_engine_whose_version_nobody_knows_is_run(exported, monkeypatch):
    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    engine = next(engine for engine in ENGINES if engine.package == "transformers")
    monkeypatch.setattr(module, "ENGINES", (engine,))
    monkeypatch.setattr("importlib.metadata.version", unknown)
    monkeypatch.setattr("lerope.interop.verify.provenance", dict)
    (row,) = verify(exported, num_tokens=4).runs
    assert (row["version"], row["verdict"]) == ("unknown", "agrees")


def test_engines_that_are_not_installed_say_how(exported, monkeypatch):
    for engine in ENGINES:
        monkeypatch.setitem(sys.modules, engine.package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    rows = verify(exported).runs
    assert {row["note"] for row in rows} >= {"not installed: pip install vllm", "not installed: pip install mlx-lm"}
    assert all(row["verdict"] is None for row in rows)


def test_a_folder_of_somebody_else(tmp_path):
    with pytest.raises(ValueError, match="must be a folder that lerope"):
        verify(tmp_path)


def test_an_engine_whose_cache_is_broken_does_not_agree(exported, monkeypatch):
    """Right logits for the prompt, and tokens that no rounding explains."""
    engine = next(engine for engine in module.ENGINES if engine.package == "transformers")

    def broken(folder, tokens, num_tokens):
        logits, _ = engine.run(folder, tokens, num_tokens)
        return logits, [int(logits[-1].argmin())] * num_tokens

    monkeypatch.setattr(module, "ENGINES", (replace(engine, run=broken),))
    (row,) = verify(exported, num_tokens=4).runs
    assert row["logit_error"] < 1e-5
    assert row["verdict"] == "differs"
    assert "continues differently from token 1 on" in row["note"]


def test_a_known_cause_is_said(exported, monkeypatch):
    """Of a table that would be right, and of a run."""
    monkeypatch.setattr("lerope.interop.tried._CAUSES", {("transformers 5", "apertus"): "it has a whim"})
    known = Tried(engine="transformers 5", version="5.1", architecture="apertus", verdict="differs", error=1.0, note="")
    monkeypatch.setattr("lerope.interop.tried.all_tried", lambda: [known])
    engine = next(engine for engine in module.ENGINES if engine.package == "transformers")

    def off(folder, tokens, num_tokens):
        logits, ids = engine.run(folder, tokens, num_tokens)
        return 1.01 * logits, ids

    monkeypatch.setattr(module, "ENGINES", (replace(engine, run=off),))
    found = verify(exported, num_tokens=4)
    notes = {table["engine"]: table["note"] for table in found.tables}
    assert (notes["transformers 5"], notes["vLLM"]) == ("it has a whim", "")
    assert [(row["verdict"], row["note"]) for row in found.runs] == [("differs", "it has a whim")]
