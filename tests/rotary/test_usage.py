"""Kernels keep their numbers in registers and in one layout; else they take up to three times as long.

Compiled, not run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.slow

MORE = ("24 of", "20 of", "9 and 3")
"""Of 24 dimensions in two halves only four lie side by side everywhere, of 20 only two. Of the heads in tiles of four a
quarter is missing where there are 9 and 3."""


def compiled(folder, *arguments):
    """By layout: bytes that spill out of registers, and instructions for each pair of numbers."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, Path(__file__).with_name("usage.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, done.stdout.splitlines())
    return {(name, kernel): (spilled, length) for name, kernel, _, spilled, length in rows}


def test_no_layout_spills_or_is_converted(tmp_path):
    """While memory delivers a pair of numbers a processor issues some 90 instructions."""
    found = compiled(tmp_path)
    assert len(found) == 96
    assert {layout: spilled for layout, (spilled, _) in found.items() if spilled > 32} == {}
    most = {("forward", False): 20, ("forward", True): 34, ("backward", False): 32, ("backward", True): 62}
    long = {
        (name, kernel): length
        for (name, kernel), (_, length) in found.items()
        if length >= most[kernel, "QK-norm" in name] * (1.2 if any(each in name for each in MORE) else 1)
    }
    assert long == {}


@pytest.mark.parametrize(
    ("name", "tokens", "least"), [("partial, 32 of 64, QK-norm", 8, (500, 0)), ("head_dim 128, QK-norm", 1, (0, 80))]
)
def test_tiles_that_are_slow_are_seen(tmp_path, name, tokens, least):
    """One like the first took partial rotation to 29 % of the speed of a copy; the second reached 72 %."""
    found = compiled(tmp_path, "--only", name, "--tokens", str(tokens))[name, "backward"]
    assert all(value >= bound for value, bound in zip(found, least, strict=True))
