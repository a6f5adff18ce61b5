"""Stands for `lerope` where a study is run: writes what a run leaves, in a moment, and notes what it was asked for.

python -m tests.launch.fake CALLS train demo ... --out RUN
python -m tests.launch.fake CALLS eval RUN ...

Waits while there is a file OUT/hold-RUN (training) or OUT/hold-COMMAND-RUN. Beside CALLS are identities.json, what runs
are, and frequencies.json, what they learn.
"""

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from lerope.core.files import parse_json
from lerope.core.locks import locked
from lerope.core.run import Identity, Run, is_run, read_run
from lerope.core.signals import SAVE
from tests.made_runs import START


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
    save_when_asked(out)
    with locked(out):
        identity = json.loads((home() / "identities.json").read_text())[out.name]
        identity = parse_json(json.dumps(identity).encode(), Identity, "identities.json", "write it again")
        run = read_run(out) if is_run(out) else Run(out, identity, False, f"by {os.getpid()}", [START])
        run.save()
        hold(out, "held", f"hold-{out.name}")
        (out / "metrics.jsonl").write_text('{"step": 3, "validation_loss": 2.25, "validation_tokens": 9}\n')
        (out / "model").mkdir(exist_ok=True)
        shutil.copy(home() / "frequencies.json", out / "model")
        (out / "results").mkdir(exist_ok=True)
        (out / "results" / "training.json").write_text("{}")
        replace(run, finished=True).save()
    note(f"trained {out.name}")


def measure(name: str, run: Path, options: list[str]) -> None:
    note(f"{name} {run.name}")
    save_when_asked(run)
    with locked(run / "results"):
        hold(run, "measuring", f"hold-{name}-{run.name}")
        (run / "results" / f"{'-'.join([name, *options])}.json").write_text("{}")


def hold(run: Path, word: str, file: str) -> None:
    note(f"{word} {run.name}")
    while (run.parent / file).exists():
        time.sleep(0.01)


def save_when_asked(run: Path) -> None:
    def save(number, frame):
        note(f"saved {run.name}")
        sys.exit(128 + number)

    signal.signal(SAVE, save)


def home() -> Path:
    return Path(sys.argv[1]).parent


if __name__ == "__main__":
    train(sys.argv[2:]) if sys.argv[2] == "train" else measure(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
