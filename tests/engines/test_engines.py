"""Exports in engines that are really run, each in an environment of its own (`make engines`).

What an engine makes of an architecture must be what `lerope verify` says of it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lerope.interop.tried import all_tried
from tests.engines.environments import ENVIRONMENTS

pytestmark = pytest.mark.engines
ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("LEROPE_ENGINES", ROOT / ".engines"))
# One that all engines should read, one that many ignore, one with keys of its own.
ARCHITECTURES = ("ladder", "llama", "gemma2", "phi3")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_an_engine_does_what_is_said_of_it(environment, architecture, tmp_path):
    if not (HOME / environment / "bin" / "python").exists():
        pytest.skip(f"{environment} is not in {HOME}: make engines")
    out = tmp_path / "engines.json"
    command = [sys.executable, ROOT / "benchmarks" / "engines.py", HOME, "--engines", environment]
    subprocess.run([*command, "--only", architecture, "--out", out], check=True)
    rows = json.loads(out.read_text())["tried"]
    known = {(one.engine, one.architecture): one for one in all_tried()}
    own = "apertus" if architecture == "ladder" else architecture
    found = [row for row in rows if row["engine"] in names(environment)]
    if architecture in ("ladder", "llama") and environment != "llama-cpp-python":
        assert found
    for row in found:
        said = known.get((row["engine"], own))
        if said is not None and said.version == row["version"]:
            assert row["verdict"] == said.verdict, row


def names(environment):
    titles = {
        "transformers-4": "transformers 4",
        "transformers-5": "transformers 5",
        "vllm": "vLLM",
        "onnxruntime-genai": "ONNX Runtime GenAI",
        "llama-cpp-python": "llama.cpp",
    }
    return {titles.get(environment, environment)}
