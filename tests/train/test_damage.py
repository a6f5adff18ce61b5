"""Faults of a run, its files and its machine end in one sentence, with nothing lost."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest
from safetensors import SafetensorError

from lerope.cli.main import main
from lerope.core.run import read_run
from lerope.evaluate.perplexity import EvalRequest, evaluate
from lerope.model import saved
from lerope.train import engine
from lerope.train.engine import Engine
from tests.ranks import children_of, run_ranks
from tests.train.runs import StopAt, cut, edit, flip, metrics, same, spawn, tiny_recipe, tiny_run
from tests.train.test_parallel import as_rank


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    tiny_run(data, out, steps=24)
    return out


def interrupted(data, straight, out, step=16):
    """A run that was killed after `step`: what `straight` held then."""
    shutil.copytree(straight, out)
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints" / "step-00000024")
    edit(out / "run.json", finished=False)
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == [f"step-{step:08d}"]


CHECKPOINT_DAMAGE = {
    "part deleted": (lambda c: next(c.glob("*.safetensors")).unlink(), "is missing"),
    "part cut": (lambda c: cut(next(c.glob("*.safetensors"))), "has changed"),
    "flipped bit": (lambda c: flip(next(c.glob("*.safetensors"))), "has changed"),
    "mark deleted": (lambda c: (c / "checkpoint.json").unlink(), "checkpoint.json is missing"),
    "mark cut": (lambda c: cut(c / "checkpoint.json"), "checkpoint.json is missing"),
}


@pytest.mark.parametrize("kind", CHECKPOINT_DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(data, tmp_path, capsys, straight, kind):
    """The one before is taken, or the beginning, and the run ends as if nothing had been."""
    damage, what = CHECKPOINT_DAMAGE[kind]
    out = tmp_path / "run"
    interrupted(data, straight, out)
    damage(out / "checkpoints" / "step-00000016")
    assert tiny_run(data, out, steps=24).finished
    text = capsys.readouterr().out
    assert "warning: " in text
    assert "step-00000016 is damaged" in text
    assert what in text
    same(straight, out)


def test_the_checkpoint_before_a_damaged_one_is_used(data, tmp_path, capsys, straight):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    shutil.rmtree(out / "model")
    edit(out / "run.json", finished=False)
    flip(next((out / "checkpoints" / "step-00000024").glob("*.safetensors")))
    assert tiny_run(data, out, steps=24).finished
    assert "from step 16" in capsys.readouterr().out
    same(straight, out)


def test_a_cut_record_and_a_stale_lock_do_no_harm(data, tmp_path, straight):
    out = tmp_path / "run"
    interrupted(data, straight, out)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 17, "lo')
    (out / ".lock").write_text("")
    assert tiny_run(data, out, steps=24).finished
    same(straight, out)


OTHER_RUN = {
    "seed": ({"seed": 8}, r"its recipe.seed is 7, not 8; .*another --out"),
    "learning rate": ({"learning_rate": 0.5}, r"its recipe.learning_rate is 0.02, not 0.5"),
    "encoding": ({"encoding": "rope"}, r"its recipe.encoding is 'lerope', not 'rope'"),
    "steps": ({"steps": 25}, r"its recipe.steps is 24, not 25"),
}


@pytest.mark.parametrize("kind", OTHER_RUN)
def test_another_run_s_directory_is_refused(data, straight, kind):
    changes, sentence = OTHER_RUN[kind]
    before = (straight / "run.json").read_bytes()
    with pytest.raises(ValueError, match=sentence):
        tiny_run(data, straight, **{"steps": 24, **changes})
    assert (straight / "run.json").read_bytes() == before


def test_a_run_with_rows_in_the_order_of_documents_is_refused(data, straight, tmp_path):
    """As runs were before rows had an order of their own: going on would mix the two."""
    out = tmp_path / "run"
    interrupted(data, straight, out)
    content = json.loads((out / "run.json").read_text())
    del content["version"], content["model_sha256"]
    del content["identity"]["recipe"]["row_order"], content["identity"]["recipe"]["z_loss"]
    # Such runs kept encodings as they were spelled, which is not what this one must be given to go on.
    content["identity"]["recipe"]["encoding"] = "lerope,base=1e4"
    (out / "run.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"its recipe\.row_order is 'documents'"):
        tiny_run(data, out, steps=24)
    assert read_run(out).recipe == tiny_recipe(steps=24, row_order="documents")
    with pytest.raises(ValueError, match=r"row_order must be shuffled.*'documents'"):
        tiny_run(data, tmp_path / "new", row_order="documents")


def test_other_data_is_refused(data, tmp_path, straight):
    from tests.data.corpora import write_corpus

    other = write_corpus(tmp_path / "other", {"train": [90] * 20, "validation": [30] * 3})
    with pytest.raises(ValueError, match=r"its data has .* fingerprint"):
        tiny_run(other, straight, steps=24)


def test_a_folder_with_other_files_is_refused(data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("important")
    with pytest.raises(ValueError, match=r"no run.json; name .* folder"):
        tiny_run(data, tmp_path / "run")
    assert (tmp_path / "run" / "thesis.tex").read_text() == "important"


def test_a_damaged_run_file_is_one_sentence(data, tmp_path, straight):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    cut(out / "run.json")
    with pytest.raises(ValueError, match=r"run.json is not"):
        tiny_run(data, out, steps=24)
    assert (out / "model").exists()


def test_a_run_directory_that_cannot_be_made(data, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    args = ["demo", "--vocab-size", "50", "--data", str(data), "--row-length", "32", "--batch-tokens", "256"]
    with pytest.raises(SystemExit) as stop:
        main(["train", *args, "--out", str(tmp_path / "file" / "run")])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("lerope train: out must be")
    assert f"got {tmp_path}/file/run (Not a directory)." in said


def test_two_processes_cannot_share_a_run(data, tmp_path):
    out = tmp_path / "run"
    first = spawn(data, out, steps=4000)
    while not (out / "metrics.jsonl").exists():
        time.sleep(0.01)
    with pytest.raises(ValueError, match="is in use by another process"):
        tiny_run(data, out, steps=4000)
    assert first.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()


def test_a_diverging_run_stops_and_keeps_its_last_good_state(data, tmp_path):
    with pytest.raises(ValueError, match=r"loss is nan.* at step \d+: training has diverged; lower learning_rate"):
        tiny_run(
            data, tmp_path / "run", {"checkpoint_steps": 1}, learning_rate=1e30, warmup_steps=3, schedule="constant"
        )
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert kept
    assert all("NaN" not in json.dumps(record) for record in metrics(tmp_path / "run"))
    assert int(kept[-1].name[-8:]) <= metrics(tmp_path / "run")[-1]["step"]


def limit_files(num_bytes):
    """No file may grow beyond this: what a full disk does, without needing one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def test_a_disk_that_takes_no_more(data, tmp_path, straight, monkeypatch):
    """Stopped while a checkpoint is written; once there is room, the same command ends as if nothing had been."""
    out = tmp_path / "run"
    interrupted(data, straight, out)
    original = subprocess.Popen.__init__
    monkeypatch.setattr(
        subprocess.Popen,
        "__init__",
        lambda self, *a, **k: original(self, *a, preexec_fn=lambda: limit_files(20_000), **k),
    )
    process = spawn(data, out, steps=24)
    text = process.communicate(timeout=60)[0]
    monkeypatch.undo()
    assert process.returncode == 2, text
    assert "(File too large)" in text
    assert "Traceback" not in text
    assert [p.name for p in (out / "checkpoints").glob("step-*")] == ["step-00000016"]
    assert tiny_run(data, out, steps=24).finished
    same(straight, out)


def fill(path):
    """Writes until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"0" * 4096):
            pass


def test_a_full_disk(data, tmp_path, straight):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        out = disk / "run"
        interrupted(data, straight, out)
        filler = disk / "filler"
        fill(filler)
        process = spawn(data, out, steps=24)
        text = process.communicate(timeout=60)[0]
        assert process.returncode == 2, text
        assert "No space left on device" in text
        assert "Traceback" not in text
        filler.unlink()
        process = spawn(data, out, steps=24)
        text = process.communicate(timeout=60)[0]
        assert process.returncode == 0, text
        shutil.copytree(out, tmp_path / "after")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    same(straight, tmp_path / "after")


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_and_loses_nothing(data, tmp_path):
    out = tmp_path / "run"
    process = spawn(data, out, num_ranks=2, steps=4000, setup={"checkpoint_steps": 10})
    while not any((out / "checkpoints").glob("step-*")):
        time.sleep(0.01)
        assert process.poll() is None
    workers = children_of(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    start = time.monotonic()
    process.communicate(timeout=90)
    assert process.returncode != 0
    assert time.monotonic() - start < 60
    newest = max((out / "checkpoints").glob("step-*"))
    again = spawn(data, out, num_ranks=2, steps=4000, setup={"checkpoint_steps": 10})
    while not any(p > newest for p in (out / "checkpoints").glob("step-*")):
        time.sleep(0.01)
        assert again.poll() is None, again.communicate()[0]
    again.send_signal(signal.SIGTERM)
    text = again.communicate(timeout=60)[0]
    assert f"from step {int(newest.name[-8:]):,}\n" in text
    assert "stopped at step" in text


def test_damaged_checkpoints_do_not_push_out_new_ones(data, tmp_path, straight, capsys):
    """Both kept checkpoints are damaged; the run starts over, stops early, and what it saved then is what counts."""
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    shutil.rmtree(out / "model")
    edit(out / "run.json", finished=False)
    for path in (out / "checkpoints").glob("step-*/*.safetensors"):
        flip(path)
    (out / "checkpoints" / "step-00000004-backup").mkdir()
    assert not tiny_run(data, out, hooks=[StopAt(5)], steps=24).finished
    assert (out / "checkpoints" / "step-00000005").is_dir()
    assert {p.name for p in (out / "checkpoints").glob("damaged-*")} == {
        "damaged-step-00000016",
        "damaged-step-00000024",
    }
    assert tiny_run(data, out, steps=24).finished
    assert "from step 5" in capsys.readouterr().out
    (out / "checkpoints" / "step-00000004-backup").rmdir()
    same(straight, out)


def test_frequencies_that_diverge_stop_the_run_before_they_are_saved(data, tmp_path, monkeypatch):
    out, calls = tmp_path / "run", []
    clip = engine.clip_grad_norm_

    def poisoned(model, *args):
        calls.append(1)
        if len(calls) == 8:
            model.encoding.alpha.grad.fill_(float("nan"))
        return clip(model, *args)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "clip_grad_norm_", poisoned)
        with pytest.raises(ValueError, match=r"nan at step 8: training has diverged"):
            tiny_run(data, out, {"checkpoint_steps": 4}, steps=24)
    assert [p.name for p in (out / "checkpoints").glob("step-*")] == ["step-00000004"]
    assert tiny_run(data, out, {"checkpoint_steps": 4}, steps=24).finished


def test_a_disk_that_is_full_when_the_model_is_written(data, tmp_path, straight, monkeypatch):
    out = tmp_path / "run"
    interrupted(data, straight, out)

    def refuse(*args, **kwargs):
        raise SafetensorError("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(saved, "save_file", refuse)
        with pytest.raises(ValueError, match=r"cannot be written \(No space left on device"):
            tiny_run(data, out, steps=24)
    assert tiny_run(data, out, steps=24).finished
    same(straight, out)


def test_what_a_killed_start_leaves_does_no_harm(data, tmp_path, straight):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".run.json.4711").write_text('{"ident')
    (out / ".metrics.jsonl.4711.writing").write_text("")
    os.utime(out / ".metrics.jsonl.4711.writing", (0, 0))
    tiny_run(data, out, steps=24)
    same(straight, out)
    assert not (out / ".metrics.jsonl.4711.writing").exists()


def test_a_finished_run_without_its_metrics(data, tmp_path, straight, capsys):
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert tiny_run(data, tmp_path / "run", steps=24).validation_loss is None
    assert capsys.readouterr().out.endswith("is finished.\n")


def test_a_batch_without_targets_is_a_step_like_any(data, tmp_path):
    setup = {"checkpoint_steps": 500, "validation_steps": 500}
    shape = {"row_length": 1, "batch_tokens": 1, "steps": 95, "validation_tokens": 5}
    outcome = tiny_run(data, tmp_path / "run", setup, **shape)
    assert outcome.finished
    assert any(record.get("loss") == 0 for record in metrics(tmp_path / "run"))


def missing_on_rank_one(rank, data, out):
    as_rank(rank, data if rank == 0 else data / "missing", out, 2, {}, {})


def test_what_goes_wrong_on_another_rank_is_said(data, tmp_path):
    with pytest.raises(Exception, match=r"rank 1: .*missing/manifest.json does not exist"):
        run_ranks(missing_on_rank_one, tmp_path, data, tmp_path / "run")


def test_a_run_that_did_not_begin_may_become_another(data, tmp_path):
    """Mistakes at the start leave nothing that would have to be protected."""
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="trackers: wandb is not installed"):
        tiny_run(data, out, {"trackers": ("wandb",)}, steps=3)
    assert tiny_run(data, out, steps=4).finished


def test_rows_that_do_not_fit_into_memory(data, tmp_path, monkeypatch):
    def refuse(self, batch):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Engine, "_loss", refuse)
    with pytest.raises(ValueError, match=r"memory ran out with 8 rows of 32 tokens at a time"):
        tiny_run(data, tmp_path / "run")


def test_checkpoints_of_another_step_or_run_are_not_gone_on_from(data, tmp_path, straight, capsys):
    """Renamed, swapped or copied in: whole files, and not what their name says."""
    out = tmp_path / "run"
    interrupted(data, straight, out)
    steps = sorted((out / "checkpoints").glob("step-*"))
    renamed = steps[-1].with_name("step-00000020")
    steps[-1].rename(renamed)
    other = tmp_path / "other"
    tiny_run(data, other, steps=24, seed=8)
    shutil.copytree(max((other / "checkpoints").glob("step-*")), out / "checkpoints" / "step-00000023")
    capsys.readouterr()
    assert tiny_run(data, out, steps=24).finished
    text = capsys.readouterr().out
    assert "step-00000023 is damaged (" in text
    assert "step-00000020 is damaged (" in text
    same(straight, out)


@pytest.mark.parametrize("name", ["model", "model/frequencies.json", "model/tokenizer.model"])
def test_a_model_of_another_run_is_noticed(data, tmp_path, straight, name):
    """The same shape, whole, in the right place: its losses would be taken for this run's."""
    out, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(straight, out)
    tiny_run(data, other, steps=24, seed=8)
    if name == "model/tokenizer.model":
        (out / name).write_bytes(b"another")
    elif name == "model":
        shutil.rmtree(out / name)
        shutil.copytree(other / name, out / name)
    else:
        shutil.copy(other / name, out / name)
    with pytest.raises(ValueError, match=r"is not what this run"):
        evaluate(out, EvalRequest(device="cpu"))
