"""Time and memory of the analysis of a 52M model on the CPU: band contributions, and phasors of one layer.

Fresh weights and random tokens, in rows of 2,048: the cost does not depend on what the numbers are. Core-seconds are
what the process itself used: other processes lengthen the time more than these.

Exit code: 0 if the claims hold, 1 if one fails.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from reporting import conditions, save, show

from lerope.analyze.bands import Measured, measure
from lerope.analyze.phasors import Sums, gradient_phasors
from lerope.analyze.subjects import OwnModel
from lerope.core.ladder import rung
from lerope.model.init import init_weights
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer

ROW_LENGTH = 2048
RESULT = Path(__file__).parent / "results" / "analyze_cpu.json"
CLAIMS = {
    "bands": ("contributions of 64 rows take less than 2 minutes", 120.0),
    "phasors": ("phasors of one layer on 4 rows take less than 4 minutes", 240.0),
}


def built() -> Transformer:
    config = rung("52M")
    model = Transformer(config, build_encoding("lerope", config))
    init_weights(model, 0)
    return model


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    facts = conditions("torch")
    tokens = np.random.default_rng(0).integers(3, 32_000, (64, ROW_LENGTH + 1))
    model = built()
    seconds: dict[str, float] = {}
    rows = []

    def timed(name: str, call: Callable[[], Sums | Measured]) -> Sums | Measured:
        start, cpu_start = time.perf_counter(), time.process_time()
        found = call()
        seconds[name], cpu = time.perf_counter() - start, time.process_time() - cpu_start
        rows.append({"name": name, "seconds": seconds[name], "core_seconds": cpu, "peak_gib": peak_gib()})
        return found

    timed("bands", lambda: measure(OwnModel(model), [row[:-1] for row in tokens], "bands"))
    sums = timed("phasors", lambda: gradient_phasors(model, list(tokens[:4]), [3], "cpu", "phasors"))
    assert isinstance(sums, Sums)
    show("analysis of a 52M model, rows of 2,048", rows, ".2f")
    print(f"relative error of the phasors' gradient in float32: {sums.error:.1e}")
    verdicts = {}
    for name, (claim, limit) in CLAIMS.items():
        verdicts[claim] = "holds" if seconds[name] < limit else "FAILS"
        print(f"{verdicts[claim]}: {claim} ({seconds[name]:.0f} s)")
    save(
        RESULT, {**facts, "row_length": ROW_LENGTH, "measured": rows, "relative_error": sums.error, "claims": verdicts}
    )
    sys.exit(0 if set(verdicts.values()) == {"holds"} else 1)


if __name__ == "__main__":
    main()
