"""How much of a whole `lerope train` is steps, and how soon is the first one there?

The same command twice, each in a process and a run directory of its own: cold, with an empty cache folder and only as
many steps as it takes to get going, and warm, with what the first one compiled and measured. The numbers are those of
`results/training.json`, counted from the start of the process.

The claim: at least 95 % of the warm run is steps, and its first step is done within 15 s of the command.

    python benchmarks/whole_run.py --data DIR                            # 52M, 4,000 steps: for a GPU
    python benchmarks/whole_run.py --data DIR --rung demo --steps 40 --row-length 256 --batch-tokens 2048   # for a CPU

With --out the warm run stays there, as RUNG-ENCODING-42. Further options go to `lerope train`.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from reporting import conditions, save, show

from lerope.data.shards import Corpus
from lerope.results import Training

RESULTS = Path(__file__).parent / "results"
BEFORE = ("start", "data", "model", "first step")


def measured(args: argparse.Namespace, more: list[str], folder: Path, out: Path, steps: int) -> dict[str, Any]:
    """One run of the command: its timeline, and what a watch beside it shows."""
    corpus = Corpus(args.data).manifest
    command = [sys.executable, "-m", "lerope", "train", args.rung, "--data", str(args.data)]
    command += ["--encoding", args.encoding]
    command += ["--steps", str(steps), "--row-length", str(args.row_length), "--out", str(out), *more]
    command += ["--batch-tokens", str(args.batch_tokens), "--vocab-size", str(corpus.vocab_size)]
    # Everything that remembers: our own folder, and those of torch and Triton, if they are set elsewhere.
    kept = {"XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "torch"}
    environment = {**os.environ, **{name: str(folder / each) for name, each in kept.items()}}
    begun = time.monotonic()
    subprocess.run(command, env=environment, check=True)
    wall = time.monotonic() - begun
    found = Training.load(out / "results" / "training.json").last_start
    return {**found, "wall_seconds": wall, "first_step_seconds": sum(found["phases"][each] for each in BEFORE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder that `lerope data prepare` wrote")
    parser.add_argument("--rung", default="52M")
    parser.add_argument("--encoding", default="lerope")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--row-length", type=int, default=2048)
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--cold-steps", type=int, default=60)
    parser.add_argument("--out", type=Path, help="where the warm run stays")
    args, more = parser.parse_known_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        warm_run = (args.out or here) / f"{args.rung}-{args.encoding}-42"
        runs = {
            "cold": measured(args, more, here, here / "cold", min(args.steps, args.cold_steps)),
            "warm": measured(args, more, here, warm_run, args.steps),
        }
    rows = [
        {
            "run": what,
            "wall s": run["wall_seconds"],
            "first step s": run["first_step_seconds"],
            "step ms": 1000 * run["median_step_seconds"],
            "of it steps": run["num_steps"] * run["median_step_seconds"] / run["wall_seconds"],
            **{f"{name} s": seconds for name, seconds in (*run["phases"].items(), *run["hook_seconds"].items())},
        }
        for what, run in runs.items()
    ]
    show(f"{args.rung}, {args.cold_steps:,} steps cold, {args.steps:,} steps warm", rows, ".2f")
    warm = rows[1]
    results: dict[str, Any] = {
        **conditions("torch"),
        "gpu": gpu,
        "torch_bytecode": Path(importlib.util.cache_from_source(torch.__file__)).exists(),
        **{
            name: getattr(args, name)
            for name in ("rung", "encoding", "cold_steps", "steps", "row_length", "batch_tokens")
        },
        "runs": runs,
        "claim": "at least 95 % of the warm run is steps, and its first step is done within 15 s",
        "verdict": "holds" if warm["of it steps"] >= 0.95 and warm["first step s"] <= 15 else "fails",
    }
    print({"verdict": results["verdict"]})
    save(RESULTS / f"whole_run_{args.rung}_{'cpu' if gpu is None else gpu.split()[-1].lower()}.json", results)


if __name__ == "__main__":
    main()
