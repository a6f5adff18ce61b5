"""What `lerope verify` says of architectures is what the results of real runs say, and so is the page."""

import json
from pathlib import Path

from lerope.interop.tried import all_tried, tried

ROOT = Path(__file__).parents[2]


def test_the_package_says_what_the_results_say():
    files = [ROOT / "results" / name for name in ("engines.json", "engines_sglang.json")]
    rows = [row for path in files for row in json.loads(path.read_text())["tried"]]
    wanted = {
        (row["engine"], "apertus" if row["architecture"] == "ladder" else row["architecture"]): row["verdict"]
        for row in rows
    }
    assert {(one.engine, one.architecture): one.verdict for one in all_tried()} == wanted
    assert len(wanted) > 100


def test_an_engine_that_ignores_factors_is_known():
    assert tried("ONNX Runtime GenAI", "llama").verdict == "ignores the factors"
    assert tried("transformers 4", "nemotron").verdict == "ignores the factors"
    assert tried("vLLM", "llama").verdict == "agrees"
    assert tried("vLLM", "never_heard_of") is None
