"""Tiny runs that take a second, in this process or in one that can be killed."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lerope.core.files import read_lines, sha256_of
from lerope.core.ladder import ModelConfig
from lerope.core.recipe import Recipe, Setup, recipe
from lerope.core.run import StepRecord, read_run
from lerope.train.job import Outcome, train
from lerope.train.trainer import Hook, Loop, Record
from tests.data.corpora import write_corpus

TINY = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=50)
TIMES = ("seconds", "wait_seconds", "tokens_per_second", "share_of_peak")


def tiny_corpus(path: Path) -> Path:
    lengths = random.Random(0)
    return write_corpus(
        path,
        {
            "train": [lengths.randint(5, 90) for _ in range(200)],
            "validation": [lengths.randint(5, 90) for _ in range(12)],
        },
    )


def tiny_recipe(**changes: Any) -> Recipe:
    """A recipe for TINY; `eps` is large so that rounding differences stay rounding differences under Adam."""
    fields = {
        "steps": 40,
        "row_length": 32,
        "batch_tokens": 256,
        "learning_rate": 0.02,
        "eps": 1e-3,
        "precision": "float32",
        "validation_tokens": 300,
        "encoding": "lerope",
        "seed": 7,
        **changes,
    }
    model = fields.pop("model", TINY)
    return replace(recipe("demo", **fields), model=model)


def tiny_setup(**changes: Any) -> Setup:
    return Setup(
        **{
            "device": "cpu",
            "checkpoint_steps": 8,
            "validation_steps": 10,
            "frequency_records": 8,
            "compile": "no",
            **changes,
        }
    )


def tiny_run(
    data: Path, out: Path, setup: dict[str, Any] | None = None, hooks: Sequence[Hook] = (), **changes: Any
) -> Outcome:
    return train(tiny_recipe(**changes), data, out, tiny_setup(**(setup or {})), hooks)


class StopAt(Hook):
    """Asks a run to stop once it has the numbers of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def take(self, loop: Loop, record: Record) -> None:
        loop.stopping |= isinstance(record, StepRecord) and record.step >= self.step


def spawn(data: Path, out: Path, num_ranks: int = 1, **changes: Any) -> Any:
    """The same run in processes of its own, by way of torchrun if there are several ranks."""
    setup = changes.pop("setup", {})
    code = ["-m", "tests.train.runs", json.dumps([str(data), str(out), setup, changes])]
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}"] if num_ranks > 1 else []
    settings = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.Popen(
        [sys.executable, *launch, *code],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def flip(path: Path, at: int = -1) -> None:
    """Changes one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Leaves half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path: Path, **changes: Any) -> None:
    """Changes fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def plant_weights(run: Path, weights: dict[str, torch.Tensor]) -> None:
    """Gives a finished run other weights, as if it had learned them."""
    model = run / "model"
    save_file(weights, model / "model.safetensors")
    edit(model / "config.json", weights_sha256=sha256_of(model / "model.safetensors"))
    replace(read_run(run), model_sha256={file.name: sha256_of(file) for file in model.iterdir()}).save()


def metrics(out: Path) -> list[dict[str, Any]]:
    """Records without what a clock measured."""
    records = read_lines(out / "metrics.jsonl")
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """Everything in the newest checkpoint, whole."""
    newest = max((out / "checkpoints").glob("step-*"))
    found: dict[str, torch.Tensor] = {}
    for path in newest.glob("*.safetensors"):
        found |= load_file(path)
    return found


def same(a: Path, b: Path) -> None:
    """Raises unless two runs are the same bit for bit: records, frequencies, weights and optimizer."""
    assert metrics(a) == metrics(b)
    assert (a / "frequencies.jsonl").read_text() == (b / "frequencies.jsonl").read_text()
    one, other = tensors(a), tensors(b)
    assert one.keys() == other.keys()
    assert any(name.startswith("exp_avg_sq.") for name in one)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    for name in ("model.safetensors", "frequencies.json", "config.json"):
        assert (a / "model" / name).read_bytes() == (b / "model" / name).read_bytes(), name


if __name__ == "__main__":
    from lerope.cli.main import guarded
    from lerope.cli.stopping import leave

    def carry_out() -> None:
        data, out, setup, changes = json.loads(sys.argv[1])
        outcome = tiny_run(Path(data), Path(out), setup, **changes)
        leave(0 if outcome.stopped_by is None else 128 + outcome.stopped_by)

    guarded("train", carry_out)
