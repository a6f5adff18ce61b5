"""Throughput of `lerope eval` against the forward pass alone, at the 19M rung (or another) on this machine's device.

The forward pass is the model's own with the sum of losses, without gradients, on whole rows of the window's length.
Evaluation reads documents, sorts and pads windows, scores them, writes every token's loss to disk and reads it back.
Once on documents that all fill a window, where both do the same arithmetic, and once on documents of log-normal
lengths, whose shorter windows cost less attention and some padding.

Exit code: 0 if the claim holds, 1 if it fails.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import conditions, save, show

from lerope.data.packing import windows
from lerope.evaluate.documents import Texts
from lerope.evaluate.losses import window_losses
from lerope.evaluate.scorer import Scorer
from lerope.model.config import rung
from lerope.model.init import init_weights
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer
from lerope.train.parallel import Ranks

RESULTS = Path(__file__).parent / "results"
CLAIM = "evaluation reaches 0.9 of the forward pass alone"


def documents(kind: str, num_tokens: int, length: int, vocab_size: int) -> Texts:
    random = np.random.default_rng(0)
    if kind == "full":
        lengths = [length + 1] * (num_tokens // length)
    else:
        drawn = np.clip(random.lognormal(5.6, 1.0, num_tokens), 3, 16 * length).astype(int)
        lengths = drawn[: int(np.searchsorted(np.cumsum(drawn), num_tokens)) + 1].tolist()
    return Texts([random.integers(3, vocab_size, size).astype(np.uint16) for size in lengths])


def forward(scorer: Scorer, num_tokens: int, length: int, batch_tokens: int) -> Callable[[], float]:
    """Tokens per second of the model alone."""
    rows = max(1, batch_tokens // length)
    tokens = torch.randint(3, scorer.model.config.vocab_size, (rows, length + 1), device=scorer.device)
    times = max(1, num_tokens // (rows * length))

    @torch.no_grad()
    def call() -> float:
        begun = time.perf_counter()
        for _ in range(times):
            with scorer._autocast():
                total = scorer.model(tokens[:, :-1], targets=tokens[:, 1:])
        total.item()
        return times * rows * length / (time.perf_counter() - begun)

    return call


def evaluation(scorer: Scorer, source: Texts, length: int, folder: Path) -> Callable[[], float]:
    """Tokens per second of everything that evaluation does."""
    pieces = windows(source.lengths, length)
    ranks = Ranks(0, 1, 1, scorer.device)

    def call() -> float:
        partial = folder / "partial"
        partial.unlink(missing_ok=True)
        begun = time.perf_counter()
        losses = window_losses(scorer, source, pieces, ranks=ranks, partial=partial, label="benchmark")
        return sum(map(len, losses)) / (time.perf_counter() - begun)

    return call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rung", default="19M")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = rung(args.rung)
    model = Transformer(config, build_encoding("lerope", config))
    init_weights(model, 0)
    scorer = Scorer(model, train_length=args.length, device=device, precision=args.precision)
    result: dict[str, Any] = {"conditions": conditions("torch", "numpy"), "settings": vars(args), "device": device}
    with tempfile.TemporaryDirectory() as folder:
        batch_tokens = 32_768 if device == "cuda" else 8_192
        calls = {"forward alone": forward(scorer, args.tokens, args.length, batch_tokens)}
        for kind in ("full", "log-normal"):
            source = documents(kind, args.tokens, args.length, config.vocab_size)
            calls[f"evaluation, {kind} documents"] = evaluation(scorer, source, args.length, Path(folder))
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(args.rounds + 1):
            for name, call in calls.items():
                rate = call()
                if number:  # the first round warms up
                    rates[name].append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rows: list[dict[str, Any]] = [
        {"what": name, "tokens_per_second": value, "ratio": value / medians["forward alone"]}
        for name, value in medians.items()
    ]
    holds = all(row["ratio"] >= 0.9 for row in rows)
    save(RESULTS / f"eval_speed_{device}.json", {**result, "rounds": rates, "medians": rows, "claim": {CLAIM: holds}})
    show(f"{args.rung}, windows of {args.length:,} tokens, {device}", rows, ",.3f")
    print(f"{CLAIM}: {'holds' if holds else 'FAILS'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
