"""Throughput of `lerope eval` against the forward pass alone, on this machine's device, with random weights.

The forward pass is the model's own with the sum of losses, without gradients, on whole rows of the window's length.
Evaluation reads documents, sorts and pads windows, scores them, writes every token's loss to disk and reads it back.
Once on documents that all fill a window, where both do the same arithmetic, and once on documents of log-normal
lengths, whose shorter windows cost less attention and some padding; with --data on validation documents instead.

On a GPU all of this by plain torch, by fused kernels and by these with packed attention, and in float32, the only
precision of `lerope analyze`, its look at bands. The first round is kept apart: in it counts what is compiled, also for
each new shape of a batch, as in one evaluation. Ways that come later find some of that done. The claim is about the
default way to attend alone.

Exit code: 0 if the claim holds, 1 if it fails.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from reporting import conditions, save, show

from lerope.analyze.bands import full_rows, measure
from lerope.analyze.subjects import OwnModel
from lerope.core.ladder import ModelConfig, rung
from lerope.core.recipe import Kernel, Precision
from lerope.data.packing import windows
from lerope.data.shards import Corpus
from lerope.evaluate.documents import Source, Texts
from lerope.evaluate.losses import window_losses
from lerope.evaluate.scorer import Scorer
from lerope.evaluate.work import Work, useful_batch_tokens
from lerope.model.attention import Backend, DocumentMask, backend_obstacle
from lerope.model.init import init_weights
from lerope.model.kernels.packages import version
from lerope.model.precision import autocast
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer
from lerope.train.parallel import Ranks

RESULTS = Path(__file__).parent / "results"
CLAIM = "evaluation reaches 0.9 of the forward pass alone"
FORWARD, EVALUATION, BANDS = "forward alone", "evaluation, {} documents", "bands"
BAND_ROWS = 64

Call = Callable[[], float]
"""Does the work once; tokens per second."""


class Way(NamedTuple):
    """How a GPU computes."""

    precision: Precision
    kernel: Kernel
    backend: Backend | None = None
    """None is what evaluation takes by itself."""

    def __str__(self) -> str:
        kernels = "plain torch" if self.kernel == "reference" else "fused kernels"
        return f"{self.precision}, {kernels}" + (f", {self.backend}" if self.backend else "")


def ways(device: torch.device, precisions: list[Precision]) -> list[Way]:
    """Plain torch, which is all there is on a CPU, and on a GPU fused kernels and other ways to attend."""
    if device.type == "cpu":
        return [Way(precision, "reference") for precision in precisions]
    found = [Way(precision, kernel) for precision in precisions for kernel in ("reference", "auto")]
    if "bf16" in precisions:
        packed: tuple[Backend, ...] = ("varlen", "flash4")
        found += [Way("bf16", "auto", b) for b in packed if backend_obstacle(b, device, torch.bfloat16) is None]
    return found


def documents(kind: str, num_tokens: int, length: int, vocab_size: int) -> Texts:
    random = np.random.default_rng(0)
    if kind == "full":
        lengths = [length + 1] * (num_tokens // length)
    else:
        drawn = np.clip(random.lognormal(5.6, 1.0, num_tokens), 3, 16 * length).astype(int)
        lengths = drawn[: int(np.searchsorted(np.cumsum(drawn), num_tokens)) + 1].tolist()
    return Texts([random.integers(3, vocab_size, size).astype(np.uint16) for size in lengths])


def forward(scorer: Scorer, args: argparse.Namespace) -> Call:
    """The model alone."""
    rows = max(1, args.batch_tokens // args.length)
    tokens = torch.randint(3, scorer.model.config.vocab_size, (rows, args.length + 1), device=scorer.device)
    mask = None
    if scorer.backend is not None:
        mask = DocumentMask(torch.zeros_like(tokens[:, :-1]), scorer.backend, rows)
    times = max(1, args.tokens // (rows * args.length))
    num_tokens: int = times * rows * args.length

    @torch.no_grad()
    def call() -> float:
        begun = time.perf_counter()
        for _ in range(times):
            with autocast(scorer.device, scorer.precision):
                total = scorer.model(tokens[:, :-1], targets=tokens[:, 1:], document_ids=mask)
        total.item()
        return num_tokens / (time.perf_counter() - begun)

    return call


def evaluation(scorer: Scorer, source: Source, args: argparse.Namespace, partial: Path) -> Call:
    """Everything that evaluation does."""
    pieces = windows(source.lengths, args.length, args.tokens)
    ranks = Ranks(0, 1, 1, scorer.device)
    work = Work(ranks=ranks, partial=partial, label="benchmark", batch_tokens=args.batch_tokens)

    def call() -> float:
        partial.unlink(missing_ok=True)
        begun = time.perf_counter()
        losses = window_losses(work, scorer, source, pieces)
        return sum(map(len, losses)) / (time.perf_counter() - begun)

    return call


def bands(model: Transformer, source: Source, args: argparse.Namespace, device: torch.device) -> Call:
    """What each band adds to the logits, on full rows."""
    subject, rows = OwnModel(model, device), full_rows(source, args.length, BAND_ROWS)

    def call() -> float:
        begun = time.perf_counter()
        measure(subject, rows, "benchmark")
        return sum(map(len, rows)) / (time.perf_counter() - begun)

    return call


def with_kernel(model: Transformer, kernel: Kernel, call: Call) -> Call:
    """The same call; all ways share the model's weights."""

    def changed() -> float:
        model.use_kernel(kernel)
        return call()

    return changed


def calls(
    model: Transformer,
    way: Way,
    sources: dict[str, Source],
    args: argparse.Namespace,
    device: torch.device,
    scratch: Path,
) -> dict[str, Call]:
    """What is timed of one way."""
    scorer = Scorer(model, train_length=args.length, device=device, precision=way.precision, backend=way.backend)
    found = {FORWARD: forward(scorer, args)}
    found |= {EVALUATION.format(kind): evaluation(scorer, source, args, scratch) for kind, source in sources.items()}
    if device.type == "cuda" and way.precision == "float32":
        found[BANDS] = bands(model, next(iter(sources.values())), args, device)
    return {what: with_kernel(model, way.kernel, call) for what, call in found.items()}


def opened(args: argparse.Namespace) -> tuple[ModelConfig, dict[str, Source], str | None]:
    """A model for the documents, these by kind, and the fingerprint of a corpus."""
    config = rung(args.rung)
    if args.data is None:
        kinds = ("full", "log-normal")
        return config, {k: documents(k, args.tokens, args.length, config.vocab_size) for k in kinds}, None
    corpus = Corpus(args.data, verify="sizes")
    if not len(corpus.validation):
        raise ValueError(f"{args.data} has no validation documents; prepare it with some.")
    config = replace(config, vocab_size=corpus.manifest.vocab_size)
    return config, {"validation": corpus.validation}, corpus.manifest.fingerprint()


def described(args: argparse.Namespace, device: torch.device, fingerprint: str | None) -> dict[str, Any]:
    """Under which conditions, and what was asked for."""
    found = conditions("torch", "numpy")
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        packages = ("triton", "quack-kernels", "flash-attn-4")
        found["versions"] |= {package: version(package) for package in packages}
    settings = {name: value for name, value in vars(args).items() if name not in ("data", "out")}
    data = {} if fingerprint is None else {"data": fingerprint}
    return {"conditions": found, "settings": settings, **data, "device": device.type}


def summarised(rounds: list[dict[tuple[Way, str], float]]) -> dict[str, Any]:
    """All rates but those of the first round, their medians, and whether the claim holds."""
    first, *rest = rounds
    rates = {key: [each[key] for each in rest] for key in first}
    medians = {key: statistics.median(values) for key, values in rates.items()}
    single = len({way for way, _ in first}) == 1
    names = {(way, what): what if single else f"{way}: {what}" for way, what in first}
    rows: list[dict[str, Any]] = []
    for (way, what), rate in medians.items():
        row = {"what": names[way, what], "tokens_per_second": rate, "ratio": rate / medians[way, FORWARD]}
        if not single:
            row["over_plain"] = rate / medians[way._replace(kernel="reference", backend=None), what]
        rows.append({**row, "first_round": first[way, what]})
    usual = {
        (w, what): rate for (w, what), rate in medians.items() if w.backend is None and what not in (FORWARD, BANDS)
    }
    holds = all(rate >= 0.9 * medians[way, FORWARD] for (way, _), rate in usual.items())
    return {
        "rounds": {names[key]: values for key, values in rates.items()},
        "medians": rows,
        "claim": {CLAIM: holds},
    }


def compare(args: argparse.Namespace, device: torch.device) -> bool:
    """Measures, saves and shows; whether the claim holds."""
    config, sources, fingerprint = opened(args)
    model = Transformer(config, build_encoding("lerope", config))
    init_weights(model, 0)
    result = described(args, device, fingerprint)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "partial"
        timed = {
            (way, what): call
            for way in ways(device, args.precision)
            for what, call in calls(model, way, sources, args, device, scratch).items()
        }
        found = summarised([{key: call() for key, call in timed.items()} for _ in range(args.rounds + 1)])
    save(args.out, {**result, **found})
    show(f"{args.rung}, windows of {args.length:,} tokens, {device.type}", found["medians"], ",.3f")
    holds: bool = found["claim"][CLAIM]
    print(f"{CLAIM}: {'holds' if holds else 'FAILS'}")
    return holds


def main() -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    both = ["float32", "bf16"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rung", default="52M" if on_gpu else "19M")
    parser.add_argument("--data", type=Path, help="a prepared corpus")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=1 << 20 if on_gpu else 65_536)
    parser.add_argument("--batch-tokens", type=int, default=useful_batch_tokens(device))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", nargs="+", choices=both, default=both if on_gpu else ["float32"])
    parser.add_argument("--out", type=Path, default=RESULTS / f"eval_speed_{device.type}.json")
    args = parser.parse_args()
    if min(args.length, args.batch_tokens, args.rounds) < 1 or args.tokens < args.length:
        parser.error("length, batch-tokens and rounds must be at least 1, and tokens at least the length.")
    try:
        return 0 if compare(args, device) else 1
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
