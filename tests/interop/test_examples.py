"""The examples run, where what they show is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("plain_pytorch", "torch"),
        ("x_transformers_decoder", "x_transformers"),
        ("timm_vit", "timm"),
        ("torchtitan_llama", "torchtitan"),
        ("trl_sft", "trl"),
    ],
)
def test_example_learns_frequencies(name, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *_, last = run.stdout.split("log-scales")
    values = [float(value) for value in last.strip(" []\n").split()]
    assert len(values) >= 8
    assert max(map(abs, values)) > 1e-3
    if "largest change" in run.stdout:
        assert "largest change of the logits: 0.0e+00" in run.stdout
