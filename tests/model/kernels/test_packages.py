"""Packages that need not be there: what they compile is kept, and what they say about themselves is not shown."""

import os
import subprocess
import sys

import pytest

from lerope.model.kernels import packages

NAMES = (
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
    "QUACK_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packages, "version", lambda package: "1.0")
    packages.import_obstacle.cache_clear()
    yield
    packages.import_obstacle.cache_clear()


def test_what_libraries_compile_is_kept_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUACK_CACHE_DIR", "mine")
    for package in ("flash-attn-4", "quack-kernels", "another"):
        assert packages.import_obstacle(package, "json") is None
    assert os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"] == "1"
    assert os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"] == str(tmp_path / "lerope" / "compiled" / "flash-attn-4")
    assert os.environ["QUACK_CACHE_DIR"] == "mine"
    assert sorted(path.name for path in (tmp_path / "lerope" / "compiled").iterdir()) == [
        "flash-attn-4",
        "quack-kernels",
    ]


@pytest.mark.slow
def test_what_torch_compiles_is_found_again_by_another_process(tmp_path):
    """By itself torch keeps it where machines keep nothing."""
    code = (
        "import torch; from lerope.model.kernels.packages import keep_compiled; keep_compiled('torch'); "
        "from torch._dynamo.utils import counters; "
        "torch.compile(lambda x: (x * 2 + 1).sin())(torch.ones(8)); print(counters['inductor']['fxgraph_cache_hit'])"
    )
    command = [sys.executable, "-c", code]
    hits = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert hits == ["0\n", "1\n"]
    assert any((tmp_path / "lerope" / "compiled" / "torch").iterdir())


def test_nothing_is_made_for_a_package_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "version", lambda package: None)
    packages.import_obstacle("flash-attn-4", "json")
    assert not (tmp_path / "lerope").exists()


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert packages.import_obstacle("flash-attn-4", "json") is None
    assert not any(name in os.environ for name in NAMES)


def test_warnings_of_kernel_libraries_are_not_shown_and_others_are():
    """Also where a library takes filters away, as CUTLASS does."""
    code = (
        "import warnings; from lerope.model.kernels import packages; packages.import_obstacle('json', 'json'); "
        "warnings.simplefilter('always'); "
        "warnings.warn_explicit('theirs', UserWarning, '/lib/site-packages/nvidia/cutlass/core.py', 3); "
        "warnings.warn_explicit('ours', UserWarning, '/home/me/model.py', 3)"
    )
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "ours" in text
    assert "theirs" not in text
