"""What is wrong before a run begins is one sentence: data, arguments, encodings of one's own."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import lerope
from lerope.cli.main import main
from lerope.core.ladder import LADDER
from lerope.core.run import read_run
from tests.train.runs import cut, edit, flip, tiny_run

DATA_DAMAGE = {
    "no folder": (lambda d: shutil.rmtree(d), r"manifest.json does not exist"),
    "no manifest": (lambda d: (d / "manifest.json").unlink(), r"manifest.json does not exist"),
    "half a manifest": (lambda d: cut(d / "manifest.json"), r"manifest.json is not"),
    "a manifest that says something else": (
        lambda d: edit(d / "manifest.json", bos=7),
        r"fingerprint .* does not match",
    ),
    "a manifest of the future": (lambda d: edit(d / "manifest.json", version=9), r"version must be 2, got 9"),
    "half a shard": (lambda d: cut(d / "train-00000.tokens"), r"train-00000.tokens must have [\d,]+ bytes; got"),
    "a flipped bit": (lambda d: flip(d / "train-00000.tokens"), r"train-00000.tokens is damaged"),
    "a flipped bit in the offsets": (lambda d: flip(d / "train-00000.ends", 0), r"train-00000.ends is damaged"),
    "a flipped bit for validation": (
        lambda d: flip(d / "validation-00000.tokens"),
        r"validation-00000.tokens is damaged",
    ),
    "a shard gone": (lambda d: (d / "validation-00000.ends").unlink(), r"validation-00000.ends is missing"),
    "another tokenizer": (lambda d: (d / "tokenizer.model").write_text("x"), r"not the tokenizer these tokens"),
    "no tokenizer": (lambda d: (d / "tokenizer.model").unlink(), r"tokenizer.model is missing"),
}


@pytest.mark.parametrize("kind", DATA_DAMAGE)
def test_damaged_data_is_found_before_training(data, tmp_path, kind):
    damage, sentence = DATA_DAMAGE[kind]
    shutil.copytree(data, tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(ValueError, match=sentence):
        tiny_run(tmp_path / "c", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_is_hashed_once_and_again_when_it_changes(data, tmp_path):
    shutil.copytree(data, tmp_path / "c")
    tiny_run(tmp_path / "c", tmp_path / "run", steps=1)
    flip(tmp_path / "c" / "train-00000.tokens")
    with pytest.raises(ValueError, match="is damaged"):
        tiny_run(tmp_path / "c", tmp_path / "run", steps=1)


WRONG = {
    "unknown rung": (["53M"], "rung must be one of demo, 19M"),
    "vocabulary": (["demo", "--vocab-size", "60"], "has a vocabulary of 50, but the model has 60"),
    "unknown encoding": (["demo", "--vocab-size", "50", "--encoding", "rotary"], "encoding must be rope, prope"),
    "no frequencies": (["demo", "--vocab-size", "50", "--encoding", "a.json"], "a.json does not exist"),
    "rows too long": (["demo", "--vocab-size", "50", "--row-length", "65536"], "row_length must be at most the"),
    "uneven batch": (["demo", "--vocab-size", "50", "--row-length", "48"], "batch_tokens must hold whole rows of 48"),
    "no device": (
        ["demo", "--vocab-size", "50", "--device", "tpu"],
        "device must be auto, cpu, cuda or cuda:N; got 'tpu'",
    ),
    "zero steps": (["demo", "--vocab-size", "50", "--steps", "0"], "steps must be a positive whole number; got 0"),
    "micro-batch": (
        ["demo", "--vocab-size", "50", "--row-length", "32", "--batch-tokens", "256", "--micro-batch-rows", "3"],
        "micro_batch_rows must divide the 8 rows of each rank; got 3",
    ),
    "attention": (
        ["demo", "--vocab-size", "50", "--attention", "flex", "--device", "cpu", "--steps", "5"],
        "attention must be auto or sdpa on a CPU; got 'flex'",
    ),
    "graph": (
        ["demo", "--vocab-size", "50", "--kernel", "reference", "--graph", "yes", "--device", "cpu"],
        "graph must be auto or no on a CPU; got 'yes', which needs one rank with a CUDA device",
    ),
    "packed attention": (
        ["demo", "--vocab-size", "50", "--attention", "flash4", "--device", "cpu", "--steps", "5"],
        "attention must be auto or sdpa on a CPU; got 'flash4'",
    ),
    "tracker": (
        ["demo", "--vocab-size", "50", "--row-length", "32", "--batch-tokens", "256", "--trackers", "wandb"],
        "trackers: wandb is not installed",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_one_sentence(data, tmp_path, capsys, kind):
    args, sentence = WRONG[kind]
    with pytest.raises(SystemExit) as stop:
        main(["train", *args, "--data", str(data), "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("lerope train: ")
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("z_loss", [-0.1, float("nan"), float("inf"), "much", True])
def test_z_loss_must_be_a_weight(data, tmp_path, z_loss):
    with pytest.raises(ValueError, match=r"^z_loss must be .*; got .*\.$"):
        tiny_run(data, tmp_path / "run", z_loss=z_loss)


def test_a_kernel_by_name_that_cannot_run(data, tmp_path, monkeypatch):
    """The training run says so before it begins, rather than in its first step."""
    monkeypatch.setattr("lerope.rotary.dispatch._INTERPRETED", False)
    monkeypatch.setattr("lerope.rotary.dispatch._HAS_TRITON", True)
    with pytest.raises(ValueError, match=r"^kernel 'triton' cannot run here, because fused kernels need a CUDA device"):
        tiny_run(data, tmp_path / "run", {"kernel": "triton"}, steps=2)
    with pytest.raises(ValueError, match="kernel must be one of auto, triton, reference; got 'fast'"):
        tiny_run(data, tmp_path / "run", {"kernel": "fast"}, steps=2)


def test_unknown_commands_and_flags(capsys):
    for args in (["trian"], ["train", "demo", "--no-such-flag"], ["train"]):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 2
        assert "Traceback" not in capsys.readouterr().err


class Detached(lerope.LeRoPE):
    """A mistake that trains without a word elsewhere."""

    def frequencies(self, layer=None):
        return super().frequencies(layer).detach()


class TooFew(lerope.RoPE):
    def frequencies(self, layer=None):
        return self.theta[:5]


def broken(head_dim):
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Detached", "encoding.alpha receives no gradient"),
        ("TooFew", "must have frequencies of 8 bands; got 5"),
        ("broken", r"'oops' \(tests.train.test_bad_input:broken is called with head_dim=16\)"),
    ],
)
def test_encodings_of_one_s_own_that_cannot_work(data, tmp_path, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        tiny_run(data, tmp_path / "run", encoding=f"tests.train.test_bad_input:{name}", steps=3)


def test_an_encoding_of_one_s_own_in_the_working_directory(data, tmp_path):
    """The console command finds it as `python -m` would."""
    (tmp_path / "wavelet.py").write_text(
        "import lerope\n\nclass Wavelet(lerope.RoPE):\n    def __init__(self, head_dim, scale=1.0):\n"
        "        super().__init__(head_dim, base=100.0 * scale)\n"
    )
    command = "demo --encoding wavelet:Wavelet,scale=3 --vocab-size 50 --steps 2 --row-length 32 --batch-tokens 64"
    args = [*command.split(), "--learning-rate", "0.01", "--validation-tokens", "50", "--data", str(data)]
    script = shutil.which("lerope", path=os.path.dirname(sys.executable)) or ""
    done = subprocess.run([script, "train", *args], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "runs" / "demo-Wavelet-scale3-42" / "model" / "frequencies.json").read_text())
    assert saved["base"] == 300.0


def test_the_vocabulary_is_the_data_s(data, tmp_path):
    args = ["demo", "--steps", "2", "--row-length", "32", "--batch-tokens", "64", "--validation-tokens", "50"]
    with pytest.raises(SystemExit) as stop:
        main(["train", *args, "--data", str(data), "--out", str(tmp_path / "run"), "--device", "cpu"])
    assert stop.value.code == 0
    assert read_run(tmp_path / "run").recipe.model == replace(LADDER["demo"], vocab_size=50)


def test_text_that_is_read_over_and_over_is_remarked_on(data, tmp_path, capsys):
    tiny_run(data, tmp_path / "run", batch_tokens=2048 * 32, steps=1)
    assert "warning  the data is read 7 times" in capsys.readouterr().out
