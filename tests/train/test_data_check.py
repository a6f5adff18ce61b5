"""Data that was damaged with its size and time kept: hashed first if asked for, or while a long run trains."""

import os
import shutil

import pytest

from lerope.data.shards import Corpus
from lerope.evaluate.perplexity import EvalRequest, evaluate
from lerope.train import data_check
from tests.train.runs import flip, tiny_run


@pytest.fixture
def damaged(data, tmp_path):
    """A corpus that was hashed when it was whole."""
    folder = shutil.copytree(data, tmp_path / "data")
    Corpus(folder)
    return folder


def flip_unseen(path):
    status = path.stat()
    flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_verify_all_hashes_everything_first(damaged, tmp_path):
    run = tiny_run(damaged, tmp_path / "whole", {"verify": "all"}, steps=2).path
    flip_unseen(damaged / "train-00000.tokens")
    assert tiny_run(damaged, tmp_path / "short", steps=2).finished
    with pytest.raises(ValueError, match=r"train-00000\.tokens is damaged"):
        tiny_run(damaged, tmp_path / "run", {"verify": "all"}, steps=2)
    assert not (tmp_path / "run").exists()
    evaluate(run, EvalRequest(device="cpu", length=16))
    with pytest.raises(ValueError, match=r"train-00000\.tokens is damaged"):
        evaluate(run, EvalRequest(device="cpu", length=8, verify="all"))


def test_a_long_run_finds_it_while_it_trains(damaged, tmp_path, monkeypatch):
    monkeypatch.setattr(data_check, "_AFTER_S", 0.0)
    setup = {"validation_steps": 2}
    assert tiny_run(damaged, tmp_path / "whole", setup, steps=40).finished
    flip_unseen(damaged / "validation-00000.ends")
    with pytest.raises(ValueError, match=r"validation-00000\.ends is damaged.*another folder"):
        tiny_run(damaged, tmp_path / "run", setup, steps=4000)
    assert not (tmp_path / "run" / "model").exists()


def test_a_short_run_is_left_alone(damaged, tmp_path):
    flip_unseen(damaged / "train-00000.tokens")
    assert tiny_run(damaged, tmp_path / "run", {"validation_steps": 1}, steps=4).finished
