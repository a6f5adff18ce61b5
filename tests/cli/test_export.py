"""lerope export and lerope verify, as a user calls them."""

import importlib.util
import json
from dataclasses import replace

import pytest

import lerope
from lerope.cli.main import main
from lerope.interop.environments import ENGINES
from lerope.results import Verification
from tests.interop.toys import make
from tests.interop.trained import trained


def call(*args):
    try:
        main([str(arg) for arg in args])
    except SystemExit as stop:
        return stop.code
    return 0


def test_from_a_run_to_a_verified_folder(tmp_path, capsys):
    out, result = tmp_path / "served", tmp_path / "verification.json"
    assert call("export", trained(), out, "--length", 512) == 0
    assert "model.safetensors" in (shown := capsys.readouterr().out)
    assert f"lerope verify {out} --run {trained()}" in shown
    assert call("verify", out, "--run", trained(), "--num-tokens", 8, "--out", result) == 0
    shown = capsys.readouterr().out
    for words in ("vLLM", "SGLang", "TensorRT-LLM", "8 of 8", "against the run relu2-80"):
        assert words in shown
    assert "differs" not in shown
    ending = "Everything that was computed here agrees. Known not to serve it: ONNX Runtime GenAI (cannot run)."
    assert " ".join(shown.split()).endswith(ending)
    assert len(Verification.load(result).tables) == 7


def test_a_disagreement_is_exit_code_1(tmp_path, capsys):
    out = tmp_path / "served"
    assert call("export", trained(), out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["length"] is None
    config = json.loads((out / "config.json").read_text())
    del config["rope_scaling"]
    (out / "config.json").write_text(json.dumps(config))
    assert call("verify", out, "--num-tokens", 2, "--json") == 1
    assert json.loads(capsys.readouterr().out)["kind"] == "verification"
    assert call("verify", out, "--num-tokens", 2) == 1
    assert "Not the same model in " in capsys.readouterr().out


def test_an_engine_that_cannot_run_a_model_is_not_said_to_compute_another(tmp_path, capsys, monkeypatch):
    out = tmp_path / "served"
    assert call("export", trained(), out) == 0

    def fails(*given):
        raise RuntimeError("no memory")

    broken = tuple(replace(engine, run=fails) for engine in ENGINES if engine.package == "transformers")
    monkeypatch.setattr("lerope.interop.verify.ENGINES", broken)
    assert call("verify", out, "--num-tokens", 2) == 1
    shown = capsys.readouterr().out
    assert "Could not be run in transformers 5." in shown
    assert "Not the same model" not in shown


def test_the_folder_of_a_transformers_model_is_no_run(tmp_path, capsys):
    """Of one that was converted, too."""
    make("qwen3").save_pretrained(tmp_path / "plain")
    lerope.convert(make("qwen3")).save_pretrained(tmp_path / "learned")
    capsys.readouterr()
    for name in ("plain", "learned"):
        assert call("export", tmp_path / name, tmp_path / "out") == 2
        assert capsys.readouterr().err == (
            f"lerope export: {tmp_path / name} holds a transformers model (qwen3), not a run; load it with "
            "transformers and call lerope.export(lerope.convert(model), directory) in Python.\n"
        )
    assert not (tmp_path / "out").exists()


def test_gelu_is_exported_and_verified_with_a_note(tmp_path, capsys):
    out, run = tmp_path / "served", trained("gelu", 10)
    note = "note: activation 'gelu' runs only in transformers: engines compute xIELU in this architecture; train"
    assert call("export", run, out) == 0
    assert note in " ".join(capsys.readouterr().out.split())
    assert call("verify", out, "--run", run, "--num-tokens", 4, "--out", tmp_path / "verified.json") == 0
    assert note in " ".join(capsys.readouterr().out.split())
    for table in Verification.load(tmp_path / "verified.json").tables:
        assert table["tried"] is None  # what was tried is xIELU
        agrees = table["engine"].startswith("transformers")
        assert (table["agrees"], table["note"]) == ((True, "") if agrees else (None, "xIELU instead of gelu"))


@pytest.mark.parametrize(
    ("family", "known"),
    [
        ("llama", "ONNX Runtime GenAI (ignores the factors)."),
        ("gemma3", "transformers 4 (ignores the factors); mlx-lm, ONNX Runtime GenAI (cannot run)."),
    ],
)
def test_engines_known_not_to_serve_a_family_are_named_last(family, known, tmp_path, capsys):
    with pytest.warns(UserWarning, match="no tokenizer"):
        lerope.export(lerope.convert(make(family)), tmp_path / "out")
    assert call("verify", tmp_path / "out", "--num-tokens", 4) == 0
    shown = capsys.readouterr().out
    ending = f"Everything that was computed here agrees. Known not to serve it: {known}"
    assert " ".join(shown.split()).endswith(ending)
    assert "transformers 5: the reference itself\n" in shown


def test_the_command_that_installs_an_engine_is_whole_in_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    assert call("export", trained(), tmp_path / "out") == 0
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime_genai" else find(name))
    monkeypatch.setenv("COLUMNS", "50")
    capsys.readouterr()
    assert call("verify", tmp_path / "out", "--num-tokens", 4) == 0
    assert "ONNX Runtime GenAI: not installed: pip install onnxruntime-genai\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("export", "nowhere", "out"), "lerope export: nowhere holds no model; name the directory of a finished run."),
        (("export", "RUN", "."), "lerope export: directory . is not empty; name a new folder"),
        (
            ("export", "RUN", "out", "--length", "100"),
            "lerope export: length must be more than the train length of 256",
        ),
        (("verify", "nowhere"), "lerope verify: nowhere must be a folder that lerope.export wrote"),
        (("verify", "nowhere", "--num-tokens", "0"), "lerope verify: num_tokens must be 1 or more; got 0."),
    ],
)
def test_bad_input_is_one_sentence(args, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    assert call(*(trained() if arg == "RUN" else arg for arg in args)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
