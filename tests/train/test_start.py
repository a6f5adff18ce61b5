"""Runs that start from another one: all of it learns on, or only what turns queries and keys."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lerope import RoPE
from lerope.core.run import read_metrics, read_run
from lerope.launch.study import PlannedRun, Study
from lerope.model.saved import load_model
from tests.ranks import run_ranks
from tests.train.runs import StopAt, edit, plant_weights, same, tiny_recipe, tiny_run
from tests.train.test_parallel import as_rank

LONGER = {"row_length": 64, "steps": 12, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    """What the others start from."""
    out = tmp_path_factory.mktemp("first") / "tiny-lerope-7"
    tiny_run(data, out)
    return out


@pytest.fixture(scope="module")
def turned(data, first, tmp_path_factory):
    """The same, with frequencies and gains that learned on, in longer rows."""
    out = tmp_path_factory.mktemp("turned") / "run"
    tiny_run(data, out, start_from=str(first), learn="rotation", **LONGER)
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def is_rotation(name: str) -> bool:
    return name.startswith("encoding.") or name.endswith(("q_norm.weight", "k_norm.weight"))


def frequencies(run: Path) -> torch.Tensor:
    return load_model(run).encoding.frequencies()


def test_only_the_rotation_learns(first, turned):
    before, after = weights(first), weights(turned)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) != is_rotation(name), name
    assert load_model(turned).config == load_model(first).config
    assert json.loads((turned / "model" / "frequencies.json").read_text())["train_length"] == 64


def test_it_starts_where_the_other_ended(data, first, tmp_path):
    tiny_run(data, tmp_path / "run", start_from=str(first), steps=1, learning_rate=1e-12, weight_decay=0)
    before, after = weights(first), weights(tmp_path / "run")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-6, atol=1e-6, msg=name)
    ends = [read_metrics(run).validation_loss for run in (first, tmp_path / "run")]
    assert ends[1] == pytest.approx(ends[0], rel=1e-6)


def test_everything_learns_on_unless_told_otherwise(data, first, tmp_path):
    tiny_run(data, tmp_path / "run", start_from=str(first), steps=8)
    before, after = weights(first), weights(tmp_path / "run")
    assert not [name for name, value in before.items() if torch.equal(value, after[name])]


def test_frequencies_start_from_the_run_s_unless_the_encoding_says_where(data, first, tmp_path):
    def start(name: str, encoding: str) -> torch.Tensor:
        tiny_run(
            data, tmp_path / name, start_from=str(first), encoding=encoding, steps=1, frequency_learning_rate=1e-12
        )
        return frequencies(tmp_path / name)

    own = frequencies(first)
    rope = 10_000.0 ** (-torch.arange(8) / 8)
    torch.testing.assert_close(start("log", "lerope"), own, rtol=1e-6, atol=0)
    torch.testing.assert_close(start("other base", "lerope,base=500"), own, rtol=1e-6, atol=0)
    torch.testing.assert_close(start("linear", "lerope,parametrization=linear"), own, rtol=1e-6, atol=0)
    torch.testing.assert_close(start("swapped", "rope"), rope, rtol=1e-6, atol=0)
    assert not torch.allclose(own, rope, rtol=1e-3)


def test_an_encoding_of_one_s_own_trains_as_it_was_made(data, tmp_path):
    """Not as its class would start it: the model is built without memory, and filled afterwards."""
    tiny_run(data, tmp_path / "run", encoding="tests.model.test_spec:Stretched,stretch=4", steps=2)
    torch.testing.assert_close(frequencies(tmp_path / "run"), RoPE(16).frequencies() / 4)


def test_stopped_and_resumed_it_is_the_same(data, first, turned, tmp_path):
    out = tmp_path / "run"
    changes = {"start_from": str(first), "learn": "rotation", **LONGER}
    assert not tiny_run(data, out, hooks=[StopAt(5)], **changes).finished
    assert tiny_run(data, out, **changes).finished
    same(out, turned)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_start_from_the_same_run(data, first, turned, tmp_path, parallel):
    changes, setup = {"start_from": str(first), "learn": "rotation", **LONGER}, {"parallel": parallel}
    run_ranks(as_rank, tmp_path, data, tmp_path / "many", 2, changes, setup, num_ranks=2)
    one, many = weights(turned), weights(tmp_path / "many")
    for name, value in one.items():
        if is_rotation(name):
            torch.testing.assert_close(many[name], value, rtol=1e-3, atol=1e-4, msg=name)
        else:
            assert torch.equal(many[name], value), name


def test_what_a_run_says_of_its_start(first, turned):
    run = read_run(turned)
    assert run.identity.initial_weights == json.loads((first / "model" / "config.json").read_text())["weights_sha256"]
    assert run.recipe.name == "demo-lerope-7-from-tiny-lerope-7-64"
    # Runs from before there was a start are known by the same hash and label as then.
    label = read_run(first).label
    assert label.keys() == {"name", "created", "recipe", "data", "initial_frequencies"}
    assert not {"start_from", "learn"} & label["recipe"].keys()
    content = json.loads((first / "run.json").read_text())
    for field in ("start_from", "learn"):
        del content["identity"]["recipe"][field]
    del content["identity"]["initial_weights"]
    digest = read_run(first).digest
    edit(first / "run.json", identity=content["identity"])
    assert read_run(first).digest == digest


def test_another_model_where_it_started_is_noticed(data, first, tmp_path):
    out, source = tmp_path / "run", tmp_path / "source"
    shutil.copytree(first, source)
    changes = {"start_from": str(source), "learn": "rotation", **LONGER}
    tiny_run(data, out, hooks=[StopAt(3)], **changes)
    plant_weights(source, {name: value + 0.01 for name, value in weights(source).items()})
    with pytest.raises(ValueError, match="the run it starts from has different weights now; restore that run"):
        tiny_run(data, out, **changes)


def test_files_may_be_spelled_otherwise_when_a_run_resumes(data, first, tmp_path):
    out, spelled = tmp_path / "run", first.parent / "x" / ".." / first.name
    (first.parent / "x").mkdir()

    def changes(source: Path) -> dict:
        return {"start_from": str(source), "encoding": str(source / "model" / "frequencies.json"), **LONGER}

    tiny_run(data, out, hooks=[StopAt(3)], **changes(first))
    with pytest.raises(ValueError, match=r"its recipe\.encoding is .*, not 'rope'; use that value"):
        tiny_run(data, out, **{**changes(spelled), "encoding": "rope"})
    with pytest.raises(ValueError, match=r"its recipe\.start_from is .*, not None; use that value"):
        tiny_run(data, out, **{**changes(spelled), "start_from": None})
    assert tiny_run(data, out, **changes(spelled)).finished
    assert read_run(out).recipe.start_from == str(first)


def test_gradients_of_what_does_not_learn_do_not_count(turned):
    """The norm is that of the gains alone, so it falls to zero with them."""
    norms = [record.gradient_norm for record in read_metrics(turned).steps]
    assert 0 < max(norms) < 0.2


def test_what_cannot_be_started_from(data, first, tmp_path):
    def refuse(sentence: str, **changes) -> None:
        with pytest.raises(ValueError, match=sentence):
            tiny_run(data, tmp_path / "run", **{"start_from": str(first), **changes})

    wider = replace(tiny_recipe().model, num_heads=4)
    refuse("start_from .* must be a model of the shape to train: its num_heads is 2, not 4", model=wider)
    refuse("nowhere holds no model; name the directory of a finished run", start_from=str(tmp_path / "nowhere"))
    refuse("learn='rotation' needs a run to start from", start_from=None, learn="rotation")
    refuse("learn must be .*rotation.*; got 'gains'", learn="gains")
    other = tmp_path / "other"
    shutil.copytree(first, other)
    (other / "model" / "tokenizer.model").write_bytes(b"another")
    replace(read_run(other), model_sha256={}).save()
    refuse("start_from .* has not the tokenizer of the data", start_from=str(other))


def test_a_study_whose_runs_start_from_others(tmp_path):
    begun = PlannedRun(rung="demo", encoding="lerope", called="first")
    after = PlannedRun(rung="demo", encoding="lerope", after="first", changes={"learn": "rotation"}, suffix="long")
    study = Study(name="s", sentence="?", runs=[begun, after])
    assert after.name == "demo-lerope-42-from-first-2048-long"
    (train, _) = after.commands(Path("data"), tmp_path)
    assert train[train.index("--start-from") + 1] == str(tmp_path / "first")
    assert study.runs[1].recipe(tmp_path).start_from == str(tmp_path / "first")
    with pytest.raises(ValueError, match="changes has start_from 'runs/x'; name a run of the study with after"):
        replace(after, changes={"start_from": "runs/x"})
