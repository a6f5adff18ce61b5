"""Memory of the needle test at 32,768 tokens on the CPU: the 19M rung with initial weights, one needle, YaRN.

The whole command runs in a process of its own, from reading the run to writing the result, and its largest resident
size is what the operating system counted. The tokenizer has the rung's 32,000 pieces, from Python sources.

Exit code: 0 if the claim holds, 1 if it fails.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from reporting import conditions, save, show

from lerope.core.ladder import rung
from lerope.core.run import TOKENIZER
from lerope.data.sources import find_parts, sample
from lerope.data.tokenizer import train_tokenizer
from lerope.model.init import init_weights
from lerope.model.saved import save_model
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer

TRAIN_LENGTH, LENGTH = 2048, 32_768
TOKENIZER_BYTES = 8_000_000
LIMIT_GIB = 8.0
RESULT = Path(__file__).parent / "results" / "needle_memory.json"
CLAIM = "a single needle at 32,768 tokens at the 19M rung needs less than 8 GiB on the CPU"


def write_run(folder: Path) -> None:
    """A finished run of no steps."""
    config = rung("19M")
    model = Transformer(config, build_encoding("lerope", config))
    init_weights(model, 0)
    recipe = {"encoding": "lerope", "seed": 0, "rung": "19M", "row_length": TRAIN_LENGTH, "model": asdict(config)}
    identity = {"recipe": recipe, "data": "none", "frequencies": "none"}
    content = {"identity": identity, "finished": True, "created": "2026-01-01T00:00:00+00:00", "starts": [{}]}
    (folder / "run.json").write_text(json.dumps(content))
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    save_model(folder / "model", config, weights, model.encoding.artifact(TRAIN_LENGTH), folder / TOKENIZER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=LENGTH)
    args = parser.parse_args()
    facts = conditions("torch")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_tokenizer(sample(find_parts("python:"), TOKENIZER_BYTES), rung("19M").vocab_size, folder / TOKENIZER)
        write_run(folder)
        request = ["--samples", "1", "--depths", "0.5", "--to", str(args.length), "--method", "yarn", "--device", "cpu"]
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "lerope", "needle", str(folder), *request], check=True)
        seconds = time.perf_counter() - begun
    gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    holds = gib < LIMIT_GIB
    rows = [{"name": f"19M, up to {args.length:,} tokens, float32", "peak_gib": gib, "seconds": seconds}]
    show("lerope needle, one prompt a length", rows, ".2f")
    print(f"{'holds' if holds else 'FAILS'}: {CLAIM} ({gib:.2f} GiB)")
    setting = {"train_length": TRAIN_LENGTH, "length": args.length, "rung": "19M"}
    save(RESULT, {**facts, **setting, "runs": rows, "claim": CLAIM, "verdict": "holds" if holds else "FAILS"})
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
