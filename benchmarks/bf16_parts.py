"""Does a fused kernel make training in bf16 less exact? Each fused part alone, and all of them, against float32.

First gradients. For every seed, at first weights and at those after a few steps in float32, on batches that were not
trained on, the gradient of each kind of parameter in bf16 is compared with plain torch in float32: its relative error,
its bias (how much too long it is along the float32 gradient), and the share of wrong signs among the numbers that are
not 0 in float32; and that error over plain torch's on the same batch with the same attention, or with torch's. Batches
share what weights make of rounding, above all in the few tokens that all documents have, so that seeds count as
measurements and batches do not.

Then losses. For every seed the first steps of a run, in float32 and in bf16: how far bf16 leaves float32, and how many
times as far as plain torch in bf16 with the same attention does, or with torch's. Single seeds differ much; the mean
says more.

Paths whose attention cannot run on this device are left out. On a CPU nothing is fused: all paths are plain torch.

    python benchmarks/bf16_parts.py --data DIR
"""

import argparse
import io
import re
import statistics
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from reporting import conditions, save, show
from torch import Tensor, nn

from lerope.core.recipe import Precision, Recipe, Setup, recipe
from lerope.core.run import provenance, read_metrics
from lerope.data.shards import Corpus
from lerope.model.attention import Backend, backend_obstacle
from lerope.model.init import init_weights
from lerope.model.kernels import packages
from lerope.model.kernels.layers import FAST
from lerope.model.loss import Head
from lerope.model.transformer import MLP, Attention, Block, Linear, RMSNorm, Transformer
from lerope.rotary.encodings import Encoding
from lerope.train.engine import Engine
from lerope.train.job import train
from lerope.train.trainer import Hook, Loop, Record

RESULTS = Path(__file__).parent / "results"
BATCH_TOKENS = 8192
# What the schedule is for; runs are stopped long before.
RUN_STEPS = 200
# Steps in float32 before gradients are compared, and on how many batches.
AFTER = (0, 3, 20)
NUM_BATCHES = 4
# Later losses differ by chaos more than by rounding.
COMPARED_STEPS = 25

PARTS: dict[str, tuple[type[nn.Module], ...]] = {
    "rotary": (Encoding, Attention),
    "AddNorm": (Block, RMSNorm),
    "Head": (Head,),
    "Linear": (Linear,),
    "MLP": (MLP,),
}
ALL = tuple(kind for part in PARTS.values() for kind in part)
# What is fused, and what attends.
PATHS: dict[str, tuple[tuple[type[nn.Module], ...], Backend]] = {
    "plain torch": ((), "sdpa"),
    "plain torch varlen": ((), "varlen"),
    **{name: (part, "sdpa") for name, part in PARTS.items()},
    "all sdpa": (ALL, "sdpa"),
    "all varlen": (ALL, "varlen"),
    "all flash4": (ALL, "flash4"),
}
# Curves in bf16, and what each is compared with; other paths are compared with plain torch.
CURVES = {
    "plain torch": "plain torch",
    "plain torch varlen": "plain torch",
    "all sdpa": "plain torch",
    "all varlen": "plain torch varlen",
    "all flash4": "plain torch varlen",
}
MEASURES = ("relative_error", "bias", "wrong_signs", "over_plain")


def made(args: argparse.Namespace, seed: int, precision: Precision) -> Recipe:
    return recipe(
        args.rung,
        "lerope",
        seed,
        precision,
        steps=RUN_STEPS,
        batch_tokens=BATCH_TOKENS,
        validation_tokens=1000,
        vocab_size=Corpus(args.data, verify="sizes").manifest.vocab_size,
    )


class StopAfter(Hook):
    """Stops a run after so many steps, and keeps its engine."""

    engine: Engine

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def begin(self, loop: Loop) -> None:
        self.engine = loop.engine

    def take(self, loop: Loop, record: Record) -> None:
        loop.stopping |= record.step == self.steps


def first_steps(
    args: argparse.Namespace, seed: int, precision: Precision, steps: int, path: str
) -> tuple[Engine, list[float]]:
    """A run that is stopped after so many steps, not compiled; and their losses."""
    parts, backend = PATHS[path]
    how = Setup(
        kernel="auto" if parts else "reference",
        compile="no",
        graph="no",
        attention=backend,
        checkpoint_steps=steps,  # before a checkpoint the last step is reported, so that none begins after it
        validation_steps=RUN_STEPS,
        frequency_records=1,
    )
    stop = StopAfter(steps)
    print(f"seed {seed}, {path} in {precision}: {steps} steps", flush=True)
    quiet = redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as scratch, quiet:
        outcome = train(made(args, seed, precision), args.data, Path(scratch) / "run", how, [stop])
        losses = [record.loss for record in read_metrics(outcome.path).steps]
    if outcome.step < steps:
        sys.exit(f"stopped; {args.out} has what was measured before this run.")
    return stop.engine, losses


def gradients(model: Transformer, inputs: dict[str, Tensor], path: str, narrow: bool) -> dict[str, Tensor]:
    """Of every parameter, by name."""
    parts, backend = PATHS[path]
    model.use_kernel("reference")
    for module in model.modules():
        if type(module) in FAST and type(module) in parts:
            module.__class__ = FAST[type(module)]
    if Encoding in parts:
        model.encoding.kernel = "auto"
    with torch.autocast(inputs["tokens"].device.type, torch.bfloat16, enabled=narrow):
        loss = model(**inputs, backend=backend)
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, list[float]]:
    """The first three of MEASURES, for each kind of parameter: the same one of all layers."""
    sums: dict[str, Tensor] = {}
    for name, grad in found.items():
        a, b = grad.double(), exact[name].double()
        terms = ((a - b).square(), b.square(), a * b, a * b < 0, b != 0)
        kind = re.sub(r"^(encoding|blocks\.\d+(\.attention|\.mlp)?)\.", "", name).removesuffix(".weight")
        sums[kind] = sums.get(kind, 0) + torch.stack([term.sum(dtype=torch.float64) for term in terms])
    measured = {}
    for kind, (apart, square, product, num_wrong, num_signs) in sums.items():
        measured[kind] = torch.stack([(apart / square).sqrt(), product / square - 1, num_wrong / num_signs]).tolist()
    return measured


def batch_errors(
    args: argparse.Namespace, paths: list[str], seed: int, after: int
) -> dict[tuple[str, str], list[list[float]]]:
    """What `errors` says of each batch, by path and parameter, at a seed's weights after so many steps."""
    engine, _ = first_steps(args, seed, "float32", max(1, after), "plain torch")
    model, device = engine.model, engine.ranks.device
    if after == 0:
        init_weights(model, seed)
    found: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(NUM_BATCHES):
        batch, _ = engine.loader.load(RUN_STEPS + number)
        fields = ("tokens", "targets", "positions", "document_ids", "centres")
        inputs = {field: torch.from_numpy(getattr(batch, field)).to(device) for field in fields}
        exact = gradients(model, inputs, "plain torch", narrow=False)
        for path in paths:
            for kind, measured in errors(gradients(model, inputs, path, narrow=True), exact).items():
                found.setdefault((path, kind), []).append(measured)
    return found


def gradient_rows(args: argparse.Namespace, paths: list[str], after: int) -> list[dict[str, Any]]:
    """Errors at the weights after so many steps: medians over all batches, and each seed's over plain torch's."""
    seeds = {seed: batch_errors(args, paths, seed, after) for seed in args.seeds}
    rows = []
    for path, kind in seeds[args.seeds[0]]:
        plain = CURVES.get(path, "plain torch")
        ours = [batch for found in seeds.values() for batch in found[path, kind]]
        ratios = [
            statistics.geometric_mean(a[0] / b[0] for a, b in zip(found[path, kind], found[plain, kind], strict=True))
            for found in seeds.values()
        ]
        values = [*map(statistics.median, zip(*ours, strict=True)), statistics.geometric_mean(ratios)]
        row = {"after": after, "path": path, "parameter": kind} | dict(zip(MEASURES, values, strict=True))
        rows.append(row | {"of_seeds": ratios})
    return rows


def difference_rows(seed: int, curves: dict[str, list[float]]) -> list[dict[str, Any]]:
    """How far each bf16 curve of a seed is from float32, in nats and in distances of plain torch's like it."""
    exact = curves["float32"][:COMPARED_STEPS]
    apart = {
        path: statistics.mean(abs(a - b) for a, b in zip(curve[:COMPARED_STEPS], exact, strict=True))
        for path, curve in curves.items()
        if path != "float32"
    }
    return [
        {"seed": seed, "path": path, "mean": mean, "ratio": mean / apart[CURVES[path]]} for path, mean in apart.items()
    ]


def show_gradients(rows: list[dict[str, Any]], after: int) -> None:
    for measure in MEASURES:
        table: dict[str, dict[str, Any]] = {}
        for row in rows:
            kind = row["parameter"]
            table.setdefault(kind, {"parameter": kind.replace("_", " ")})[row["path"]] = 100 * row[measure]
        show(f"Gradients after {after} steps: {measure.replace('_', ' ')}, in %", list(table.values()), ".3f")


def compare(args: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for seed in args.seeds:
        made(args, seed, "float32")  # a wrong seed is an error now, not hours later
    obstacles = {path: backend_obstacle(backend, device, torch.bfloat16) for path, (_, backend) in PATHS.items()}
    paths = [path for path, reason in obstacles.items() if reason is None]
    optional = [name for name in ("triton", "quack-kernels", "flash-attn-4") if packages.version(name)]
    results: dict[str, Any] = {
        **conditions("torch", *optional),
        "commit": provenance()["commit"],
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "rung": args.rung,
        "seeds": args.seeds,
        "steps": args.steps,
        "batch_tokens": BATCH_TOKENS,
        "data": Corpus(args.data, verify="sizes").manifest.fingerprint(),
        "left_out": {path: reason for path, reason in obstacles.items() if reason is not None},
        "kernels": {},
        "gradients": [],
        "ratios": [],
        "differences": [],
        "losses": {},
    }
    save(args.out, results)
    for after in AFTER:
        rows = gradient_rows(args, paths, after)
        results["gradients"] += rows
        save(args.out, results)
        show_gradients(rows, after)
    for seed in args.seeds:
        curves: dict[str, list[float]] = {}
        results["losses"][seed] = curves
        _, curves["float32"] = first_steps(args, seed, "float32", args.steps, "plain torch")
        for path in CURVES:
            if path in paths:
                engine, curves[path] = first_steps(args, seed, "bf16", args.steps, path)
                results["kernels"][path] = engine.kernels()
            save(args.out, results)
        results["differences"] += difference_rows(seed, curves)
        found: dict[str, list[float]] = {}
        for row in results["differences"]:
            found.setdefault(row["path"], []).append(row["ratio"])
        results["ratios"] = [{"path": path, "mean": statistics.geometric_mean(r)} for path, r in found.items()]
        save(args.out, results)
    rows = [{**row, "seed": str(row["seed"])} for row in results["differences"]]
    show(f"Losses of steps 1 to {min(args.steps, COMPARED_STEPS)} in bf16: distance from float32, in nats", rows, ".4f")
    show("That distance over plain torch's with such attention: geometric mean of seeds", results["ratios"], ".3f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rung", default="52M")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4], help="each a run of its own")
    parser.add_argument("--steps", type=int, default=30, help="of each loss curve")
    parser.add_argument("--out", type=Path, default=RESULTS / "bf16_parts_gpu.json")
    args = parser.parse_args()
    if not 1 <= args.steps <= RUN_STEPS:
        parser.error(f"steps must be from 1 to {RUN_STEPS}; got {args.steps}.")
    if len(set(args.seeds)) < len(args.seeds):
        parser.error(f"seeds must differ; got {' '.join(map(str, args.seeds))}.")
    try:
        compare(args)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
