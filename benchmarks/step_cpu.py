"""Time of one training step on the CPU, the 19M rung against nanoGPT's model of equal size.

A step is forward, backward, clipping and AdamW on the same batch. Ours has document masks, QK-norm and the rotation;
nanoGPT, of which you name a checkout, has none of them, and its head shares the embedding's weights. lerope runs as its
trainer does; nanoGPT as its train.py does on a CPU: its own `configure_optimizers`, clipping by torch.

Exit code: 0 if the claim holds, 1 if it fails, 2 if nanoGPT is not there.
"""

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from reporting import conditions, ratio, save, show, take_turns
from torch import Tensor

import lerope
from lerope.core.ladder import flops_per_token, rung
from lerope.core.recipe import recipe
from lerope.data.loader import Loader
from lerope.model.init import init_weights
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer

ROW_LENGTH = 512
RESULT = Path(__file__).parent / "results" / "step_cpu.json"
CLAIM = "a step of LeRoPE takes no longer than one of nanoGPT"


def documents(seed: int) -> Any:
    """Random tokens in documents whose lengths are log-normal, a few hundred tokens on average."""
    random_lengths = np.random.default_rng(seed)
    lengths = np.clip(random_lengths.lognormal(5.3, 1.0, 2000), 3, 8000).astype(np.uint32)
    tokens = [random_lengths.integers(0, 32_000, n, dtype=np.uint16) for n in lengths]
    return SimpleNamespace(lengths=lengths, document=lambda i, start=0, stop=None: tokens[i][start:stop])


def ours(encoding: str, batch: dict[str, Tensor], num_targets: int) -> Callable[[], float]:
    config = rung("19M")
    model = Transformer(config, build_encoding(encoding, config))
    init_weights(model, 0)
    made = recipe("19M", encoding, precision="float32")
    groups = lerope.param_groups(model, made.learning_rate, made.torch_weight_decay)
    optimizer = torch.optim.AdamW(groups, betas=made.betas, eps=made.eps, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**batch)
        (loss / num_targets).backward()
        lerope.clip_grad_norm_(model, 1.0)
        optimizer.step()
        return float(loss) / num_targets

    return step


def nanogpt(folder: Path, batch: dict[str, Tensor]) -> Callable[[], float]:
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    if spec is None or spec.loader is None or not (folder / "model.py").is_file():
        print(f"--nanogpt must be a checkout of nanoGPT with a model.py; got {folder}.", file=sys.stderr)
        sys.exit(2)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = rung("19M")
    shape = {"n_layer": config.num_layers, "n_head": config.num_heads, "n_embd": config.width}
    sizes = {"block_size": ROW_LENGTH, "vocab_size": config.vocab_size, "bias": False, "dropout": 0.0}
    model = module.GPT(module.GPTConfig(**shape, **sizes))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    tokens, targets = batch["tokens"].long(), batch["targets"].long()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        _, loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument("--rows", type=int, default=8, help="rows of 512 tokens in a step")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    facts = conditions("torch")
    loader = Loader(documents(0), ROW_LENGTH, args.rows, seed=0)
    made, _ = loader.load(0)
    fields = ("tokens", "targets", "positions", "document_ids", "centres")
    batch = {field: torch.from_numpy(getattr(made, field)) for field in fields}
    steps: dict[str, Callable[[], object]] = {
        "lerope, LeRoPE": ours("lerope", batch, made.num_targets),
        "lerope, RoPE": ours("rope", batch, made.num_targets),
        "nanoGPT": nanogpt(args.nanogpt, batch),
    }
    times = take_turns("step", steps, args.rounds)
    flops = flops_per_token(rung("19M"), ROW_LENGTH) * args.rows * ROW_LENGTH
    rows = []
    for name, measured in times.items():
        q1, median, q3 = statistics.quantiles(measured, n=4)
        rows.append(
            {
                "name": name,
                "median_s": median,
                "q1_s": q1,
                "q3_s": q3,
                "over_nanogpt": ratio(measured, times["nanoGPT"]),
                "gflops": flops / median / 1e9,
            }
        )
    holds = rows[0]["over_nanogpt"] <= 1.0
    show("one training step, 19M", rows, ".3f")
    print(f"{'holds' if holds else 'FAILS'}: {CLAIM} ({rows[0]['over_nanogpt']:.2f} times)")
    setting = {"rows": args.rows, "row_length": ROW_LENGTH, "rounds": args.rounds}
    save(RESULT, {**facts, **setting, "steps": rows, "claim": CLAIM, "verdict": "holds" if holds else "FAILS"})
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
