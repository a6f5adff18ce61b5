"""Does `lerope train` learn as much as a training loop that shares no code with it?

The same shape, budget, learning rate and schedule, RoPE, on text with long documents. The loop below has its own model
and reads rows of the token files at random. Once more it reads them in the order in which they lie, which costs half a
nat where documents are much longer than rows: what a trainer whose batches are badly mixed looks like here.

The claim: final losses of the two, means over seeds, differ by no more than two seeds of one of them do; with a single
seed, by no more than 0.03 nats.

    python benchmarks/plain_loop.py --data DIR                                # 19M in small steps, for a CPU
    python benchmarks/plain_loop.py --data DIR --rung 52M --row-length 2048 --batch-tokens 131072 --steps 800 --index 13

With --runs, finished runs of RoPE with these settings stand for ours, and their seeds are those of the plain loop.
"""

import argparse
import json
import math
import statistics
import tempfile
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import conditions, save, show
from torch import Tensor, nn
from torch.nn import functional

RESULTS = Path(__file__).parent / "results"
# width, layers
SHAPES = {"19M": (256, 3), "52M": (512, 6), "217M": (1024, 12)}
HEAD = 64
PARTS = 4
ONE_SEED = 0.03
SHOWN = ("difference", "spread_of_seeds", "rows_in_order", "verdict", "caught")
RANDOM, IN_ORDER = "plain loop, random rows", "plain loop, rows in order"


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps=1e-5) for size in (width, width, HEAD, HEAD))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, width // HEAD, HEAD).transpose(1, 3).unbind(2)
        q, k = (self.turned(norm(each.float()), *turns).to(v.dtype) for norm, each in zip(self.norms[2:], (q, k)))  # noqa: B905
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return out

    @staticmethod
    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Model(nn.Module):
    def __init__(self, width: int, num_layers: int, vocab_size: int, length: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size, bias=False)
        self.layers, self.norm = nn.ModuleList(Layer(width) for _ in range(num_layers)), nn.RMSNorm(width, eps=1e-5)
        phases = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("turns", torch.stack((phases.cos(), phases.sin())))
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                inputs = width if name.startswith("embedding") else weight.shape[1]
                depth = 2 * num_layers if ".out." in name or ".down." in name else 1
                nn.init.normal_(weight, 0, (depth * inputs) ** -0.5)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def plain(args: argparse.Namespace, seed: int, order: str) -> list[float]:
    """The losses of every step."""
    manifest = json.loads((args.data / "manifest.json").read_text())
    vocab_size = manifest["vocab_size"]
    files = [args.data / f"{shard['name']}.tokens" for shard in manifest["splits"]["train"]["shards"]]
    stream = np.concatenate([np.memmap(file, "<u2" if vocab_size <= 1 << 16 else "<u4", "r") for file in files])
    num_rows = (len(stream) - 1) // args.row_length
    places = np.arange(num_rows) if order == IN_ORDER else np.random.default_rng(seed).permutation(num_rows)
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = Model(*SHAPES[args.rung], vocab_size, args.row_length).to(device)
    rate, decay = 2 ** (-args.index / 2), min(8.0, args.steps / 10)
    matrices = [w for name, w in model.named_parameters() if w.ndim > 1 and not name.startswith("embedding")]
    others = [w for name, w in model.named_parameters() if w.ndim == 1 or name.startswith("embedding")]
    groups = [
        {"params": matrices, "weight_decay": decay / (args.steps * rate)},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
    warmup = min(1000, args.steps // 7)
    if device == "cuda":
        model.compile()
    losses = []
    for step in range(args.steps):
        count = args.batch_tokens // args.row_length
        starts = places[np.arange(step * count, (step + 1) * count) % num_rows] * args.row_length
        read = np.stack([stream[start : start + args.row_length + 1] for start in starts]).astype(np.int64)
        rows = torch.from_numpy(read).to(device)
        cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (args.steps - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = rate * ((step + 1) / warmup if step < warmup else cosine)
        with torch.autocast(device, torch.bfloat16) if device == "cuda" else nullcontext():
            loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if step % 50 == 49:
            print(f"{order}, seed {seed}: step {step + 1}, loss {losses[-1]:.3f}", flush=True)
    return torch.stack(losses).tolist()


def ours(args: argparse.Namespace) -> dict[int, list[float]]:
    """The losses of every step of `lerope train`, by seed."""
    from lerope.core.run import finished_run, read_metrics

    if not args.runs:
        return {seed: trained(args, seed) for seed in args.seeds}
    found = {}
    for path in args.runs:
        recipe = finished_run(path).recipe
        wanted = (args.rung, "rope", args.steps, args.row_length, args.batch_tokens, 2 ** (-args.index / 2))
        if wanted != (recipe.rung, recipe.encoding, recipe.steps, recipe.row_length, recipe.batch_tokens,
                      recipe.learning_rate):  # fmt: skip
            raise SystemExit(f"{path} has other settings than {wanted}.")
        found[recipe.seed] = [record.loss for record in read_metrics(path).steps]
    return found


def trained(args: argparse.Namespace, seed: int) -> list[float]:
    from lerope.core.recipe import Setup, recipe
    from lerope.core.run import read_metrics
    from lerope.train.job import train

    vocab_size = json.loads((args.data / "manifest.json").read_text())["vocab_size"]
    changes = {"row_length": args.row_length, "batch_tokens": args.batch_tokens, "steps": args.steps}
    changes |= {"learning_rate": 2 ** (-args.index / 2), "vocab_size": vocab_size, "validation_tokens": 1000}
    made = recipe(args.rung, "rope", seed, "bf16" if torch.cuda.is_available() else "float32", **changes)
    with tempfile.TemporaryDirectory() as folder:
        train(made, args.data, Path(folder) / "run", Setup(validation_steps=args.steps, checkpoint_steps=args.steps))
        return [record.loss for record in read_metrics(Path(folder) / "run").steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder that `lerope data prepare` wrote")
    parser.add_argument("--rung", choices=SHAPES, default="19M")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--row-length", type=int, default=128)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--index", type=int, default=16, help="the learning rate is 2^(-index / 2)")
    parser.add_argument("--seeds", type=int, nargs="+", default=(42, 43))
    parser.add_argument("--runs", type=Path, nargs="+", default=(), help="finished runs in place of ours")
    parser.add_argument("--random-only", action="store_true", help="leave out rows in order")
    args = parser.parse_args()
    manifest = json.loads((args.data / "manifest.json").read_text())
    split = manifest["splits"]["train"]
    results: dict[str, Any] = {
        **conditions("torch"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "data": {
            "fingerprint": manifest["fingerprint"],
            "sources": [Path(source).name for source in manifest["sources"]],
            "num_tokens": split["num_tokens"],
            "mean_document_tokens": round(split["num_tokens"] / split["num_documents"]),
        },
        **{name: getattr(args, name) for name in ("rung", "steps", "row_length", "batch_tokens", "index")},
    }
    curves = {"lerope train": ours(args)}
    for order in (RANDOM,) if args.random_only else (RANDOM, IN_ORDER):
        curves[order] = {seed: plain(args, seed, order) for seed in curves["lerope train"]}
    ends = np.linspace(0, args.steps, PARTS + 1).astype(int).tolist()
    rows: list[dict[str, Any]] = []
    for name, by_seed in curves.items():
        for seed, losses in by_seed.items():
            means = {f"{a + 1}-{b}": statistics.fmean(losses[a:b]) for a, b in pairwise(ends)}
            rows.append({"what": name, "seed": str(seed), **means})
    show(f"Mean loss of steps, {args.rung}, {args.batch_tokens:,} tokens a step", rows, ".3f")
    last = list(rows[0])[-1]
    final = {name: [row[last] for row in rows if row["what"] == name] for name in curves}
    mean, plain_mean = (statistics.fmean(final[name]) for name in ("lerope train", RANDOM))
    spread = max(max(values) - min(values) for name, values in final.items() if name != IN_ORDER)
    alone = len(curves["lerope train"]) == 1
    limit = ONE_SEED if alone else spread
    results |= {
        "losses": rows,
        "difference": mean - plain_mean,
        "claim": "the final loss of lerope train is that of the plain loop, within "
        + (f"{ONE_SEED} nats" if alone else "the spread of two seeds"),
        "verdict": "holds" if abs(mean - plain_mean) <= limit else "fails",
    }
    if not alone:
        results["spread_of_seeds"] = spread
    if not args.random_only:
        in_order = statistics.fmean(final[IN_ORDER]) - plain_mean
        results |= {"rows_in_order": in_order, "caught": "yes" if abs(in_order) > limit else "no"}
    print({key: value for key, value in results.items() if key in SHOWN})
    where = "cpu" if results["gpu"] is None else results["gpu"].split()[-1].lower()
    save(RESULTS / f"plain_loop_{args.rung}_{where}.json", results)


if __name__ == "__main__":
    main()
