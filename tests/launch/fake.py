"""Stands for `lerope` where a study is run: writes what a run leaves, in a moment, and notes what it was asked for.

python -m tests.launch.fake CALLS train demo ... --out RUN
python -m tests.launch.fake CALLS eval RUN
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from lerope.data.files import locked


def note(text: str) -> None:
    with Path(sys.argv[1]).open("a") as calls:
        print(text, os.getpid(), os.environ.get("OMP_NUM_THREADS"), file=calls, flush=True)


def train(args: list[str]) -> None:
    out = Path(args[args.index("--out") + 1])
    encoding = args[args.index("--encoding") + 1]
    note(f"train {out.name}")
    if encoding == "nope":
        sys.exit("Traceback of a kind\nlerope train: broken on purpose.")
    if encoding.endswith(".json") and not Path(encoding).is_file():
        sys.exit(f"lerope train: {encoding} does not exist.")

    def save(number, frame):
        note(f"saved {out.name}")
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, save)
    with locked(out):
        identity = {"recipe": {"encoding": encoding, "seed": 0, "rung": "demo"}, "data": ""}
        run = {"identity": identity, "finished": False, "created": "today", "starts": [{}]}
        (out / "run.json").write_text(json.dumps(run))
        note(f"held {out.name}")
        while (out.parent / f"hold-{out.name}").exists():
            time.sleep(0.01)
        (out / "metrics.jsonl").write_text('{"step": 3, "loss": 2.5}\n{"step": 3, "validation_loss": 2.25}\n')
        (out / "model").mkdir(exist_ok=True)
        (out / "model" / "frequencies.json").write_text("{}")
        (out / "run.json").write_text(json.dumps({**run, "finished": True}))
    note(f"trained {out.name}")


def measure(name: str, run: Path) -> None:
    note(f"{name} {run.name}")
    (run / "results").mkdir(exist_ok=True)
    (run / "results" / f"{name}.json").write_text("{}")


if __name__ == "__main__":
    train(sys.argv[2:]) if sys.argv[2] == "train" else measure(sys.argv[2], Path(sys.argv[3]))
