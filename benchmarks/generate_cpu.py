"""Tokens per second of `lerope generate` on the CPU, at 19M and 52M, against the time of reading the weights.

Models have initial weights, which are as fast as trained ones. A token is read, and the next one drawn, after a prompt
of 500 tokens. The floor is the time in which this many bytes of weights are summed up: each must come from memory once
per token. Both take turns, so that a busy machine slows both; the load average says how busy it was.

Usage: OMP_NUM_THREADS=1 python benchmarks/generate_cpu.py
"""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from reporting import conditions, save

from lerope.core.ladder import block_parameters, rung
from lerope.evaluate.generate import choose, read, ready
from lerope.model.cache import Cache
from lerope.model.init import init_weights
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer

RESULT = Path(__file__).parent / "results" / "generate_cpu.json"
PROMPT_TOKENS, TOKENS = 500, 200


def measure(name: str, encoding: str) -> dict[str, Any]:
    config = rung(name)
    model = Transformer(config, build_encoding(encoding, config))
    init_weights(model, 0)
    model = ready(model, "float32")
    num_weights = block_parameters(config) + config.vocab_size * config.width
    weights = torch.randn(num_weights)
    random = torch.Generator().manual_seed(0)
    cache = Cache(config.num_layers)
    begun = time.perf_counter()
    logits = read(model, torch.randint(0, config.vocab_size, (1, PROMPT_TOKENS), generator=random), cache)
    prompt_seconds = time.perf_counter() - begun
    tokens, floors = [], []
    for _ in range(TOKENS):
        begun = time.perf_counter()
        token = choose(logits, 0.8, 0.95, torch.rand((), generator=random).item())
        logits = read(model, torch.tensor([[token]]), cache)
        between = time.perf_counter()
        weights.sum()
        tokens.append(between - begun)
        floors.append(time.perf_counter() - between)
    return {
        "rung": name,
        "encoding": encoding,
        "prompt_seconds": prompt_seconds,
        "median_milliseconds": 1e3 * statistics.median(tokens),
        "fastest_milliseconds": 1e3 * min(tokens),
        "median_floor_milliseconds": 1e3 * statistics.median(floors),
        "fastest_floor_milliseconds": 1e3 * min(floors),
        "tokens_per_second": TOKENS / sum(tokens),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    rows = []
    for name in ("19M", "52M"):
        for encoding in ("rope", "lerope", "lerope,sharing=layer_head"):
            rows.append(measure(name, encoding))
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else str(v) for k, v in rows[-1].items()))
    save(RESULT, {"conditions": conditions("torch"), "prompt_tokens": PROMPT_TOKENS, "tokens": TOKENS, "rows": rows})


if __name__ == "__main__":
    main()
