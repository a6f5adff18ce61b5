"""Do fused kernels learn the same? Loss curves of one run, step by step, by several paths on one GPU.

All runs have the same seed and data. In float32 the fused kernels are compared with plain torch, and plain torch with
itself when it adds up micro-batches of another size: two curves that differ by rounding alone. So in bf16, and there
also with a residual stream that stays in float32. Then, at the weights that the first path
ended with, the gradient of the log-frequencies in bf16 against float32, on batches that were not trained on.

    python benchmarks/same_learning.py --data DIR
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from reporting import conditions, save, show
from torch import Tensor

from lerope.core.recipe import Kernel, Setup, recipe
from lerope.core.run import read_metrics
from lerope.data.loader import Loader
from lerope.data.shards import Corpus
from lerope.model import transformer
from lerope.model.attention import backend_obstacle
from lerope.model.precision import compute_dtype
from lerope.model.saved import load_model
from lerope.rotary.optim import frequency_parameters
from lerope.train.job import train

RESULTS = Path(__file__).parent / "results"


def losses(folder: Path, args: argparse.Namespace, precision: str, **setup: Any) -> tuple[list[float], float | None]:
    """Of every step, and the validation loss at the end."""
    made = recipe(
        args.rung,
        "lerope",
        args.seed,
        precision,  # type: ignore[arg-type]
        steps=args.steps,
        batch_tokens=args.batch_tokens,
        validation_tokens=1000,
        vocab_size=Corpus(args.data, verify="sizes").manifest.vocab_size,
    )
    how = Setup(validation_steps=args.steps, checkpoint_steps=args.steps, frequency_records=1, **setup)
    outcome = train(made, args.data, folder, how)
    curve = [record.loss for record in read_metrics(folder).steps]
    return curve, outcome.validation_loss


def gradient_errors(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """How far the gradient of alpha in bf16 is from plain torch in float32, relative, batch by batch."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(folder, "lerope").to(device)
    (alpha,) = frequency_parameters(model).values()
    loader = Loader(Corpus(args.data, verify="sizes").train, 2048, 4, args.seed)
    ways: dict[str, tuple[Kernel, bool, torch.dtype | None]] = {
        "float32, plain torch": ("reference", False, None),
        "bf16, plain torch": ("reference", True, None),
        "bf16, fused kernels": ("auto", True, None),
        "bf16, plain torch, residual stream in float32": ("reference", True, torch.float32),
        "bf16, fused kernels, residual stream in float32": ("auto", True, torch.float32),
    }
    found: dict[str, list[Tensor]] = {name: [] for name in ways}
    for number in range(args.batches):
        batch, _ = loader.load(args.steps + 1 + number)
        fields = ("tokens", "targets", "positions", "document_ids", "centres")
        inputs = {name: torch.from_numpy(getattr(batch, name)).to(device) for name in fields}
        for name, (kernel, narrow, stream) in ways.items():
            model.use_kernel(kernel)
            kept = compute_dtype if stream is None else lambda x: torch.float32
            backend = (
                "flash4" if kernel == "auto" and backend_obstacle("flash4", device, torch.bfloat16) is None else "sdpa"
            )
            with (
                torch.autocast(device.type, torch.bfloat16, enabled=narrow),
                patch.object(transformer, "compute_dtype", kept),
            ):
                loss = model(**inputs, backend=backend)
            found[name].append(torch.autograd.grad(loss, alpha)[0].double())
    exact, *rest = found.items()
    rows = []
    for name, grads in rest:
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(grads, exact[1], strict=True)]
        rows.append({"path": name, "median": statistics.median(errors), "least": min(errors), "greatest": max(errors)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rung", default="52M")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--batches", type=int, default=16, help="for the gradient of alpha")
    parser.add_argument("--precision", nargs="+", choices=("float32", "bf16"), default=["float32", "bf16"])
    parser.add_argument("--out", type=Path, default=RESULTS / "same_learning_gpu.json")
    args = parser.parse_args()
    if args.steps < 10 or args.batch_tokens < 4096 or args.batches < 1:
        parser.error("steps must be at least 10, batch-tokens 4096 (two rows) and batches 1.")
    try:
        compare(args)
    except ValueError as error:
        parser.error(str(error))


def compare(args: argparse.Namespace) -> None:
    half = args.batch_tokens // 2048 // 2
    plain: dict[str, Any] = {"kernel": "reference", "compile": "no", "graph": "no", "attention": "sdpa"}
    paths: dict[str, tuple[str, dict[str, Any]]] = {
        "float32, plain torch": ("float32", plain),
        "float32, plain torch, micro-batches of half the size": ("float32", {**plain, "micro_batch_rows": half}),
        "float32, fused kernels": ("float32", {**plain, "kernel": "auto"}),
        "bf16, plain torch": ("bf16", plain),
        "bf16, plain torch, micro-batches of half the size": ("bf16", {**plain, "micro_batch_rows": half}),
        "bf16, fused kernels": ("bf16", {}),
        "bf16, fused kernels, residual stream in float32": ("bf16", {"compile": "no", "graph": "no"}),
    }
    paths = {name: path for name, path in paths.items() if path[0] in args.precision}
    curves: dict[str, list[float]] = {}
    validation: dict[str, float | None] = {}
    results: dict[str, Any] = {
        **conditions("torch", "triton"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    results |= {"rung": args.rung, "seed": args.seed, "steps": args.steps, "batch_tokens": args.batch_tokens}
    results["data"] = Corpus(args.data, verify="sizes").manifest.fingerprint()
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, (precision, setup)) in enumerate(paths.items()):
            kept = (lambda x: torch.float32) if "residual" in name else compute_dtype
            with patch.object(transformer, "compute_dtype", kept):
                curves[name], validation[name] = losses(Path(scratch) / str(number), args, precision, **setup)
            save(args.out, {**results, "losses": curves, "validation_losses": validation})
        results["alpha_gradients"] = gradient_errors(Path(scratch) / "0", args)
    first = next(iter(curves.values()))
    rows = []
    for name, curve in curves.items():
        apart = [abs(a - b) for a, b in zip(curve, first, strict=True)]
        last = args.steps // 10
        rows.append(
            {
                "path": name,
                "largest": max(apart),
                "mean": statistics.mean(apart),
                "mean_of_the_last_tenth": statistics.mean(curve[-last:]) - statistics.mean(first[-last:]),
                "loss": statistics.mean(curve[-last:]),
            }
        )
    save(args.out, {**results, "differences": rows, "losses": curves, "validation_losses": validation})
    show("Losses of single steps against the first path, in nats", rows, ".2e")
    show("Gradient of alpha: relative error", results["alpha_gradients"], ".2e")


if __name__ == "__main__":
    main()
