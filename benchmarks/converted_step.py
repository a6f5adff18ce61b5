"""A training step of converted Hugging Face models against plain transformers and Liger, in one run that alternates.

Models have the shapes of Qwen3-0.6B and Llama-3.2-1B with random weights, in bfloat16 on a GPU. A step is forward,
backward and fused AdamW. The candidates: transformers as it is; converted with fixed and with learned frequencies; and,
where liger-kernel is installed, the same three with Liger's kernels, of which the first has Liger's own rotation.

The claims, for medians over rounds of one time by another's: learning costs at most 0.5 % more than fixed frequencies;
with Liger's other kernels a converted model is no slower than Liger alone; memory is equal to 1 %.

    python benchmarks/converted_step.py                                   # on a GPU
    python benchmarks/converted_step.py --shape tiny --rounds 3 --no-save # tried on a CPU
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from reporting import conditions, ratio, save, show
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

import lerope
from lerope.bench.timing import Candidate, Parts, Stopwatch
from lerope.core.signals import Signals
from lerope.core.terminal import Display

RESULTS = Path(__file__).parent / "results"
_SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
}
SHAPES: dict[str, Callable[[], Any]] = {
    "qwen3-0.6b": lambda: Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "llama-3.2-1b": lambda: LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    ),
    "tiny": lambda: Qwen3Config(**_SMALL),
}
CANDIDATES = ("transformers", "fixed", "learning", "liger", "liger, fixed", "liger, learning")
# One by the other, as the claims say.
RATIOS = (
    ("learning", "fixed"),
    ("learning", "transformers"),
    ("liger, learning", "liger, fixed"),
    ("liger, learning", "liger"),
    ("liger, fixed", "liger"),
)


@contextmanager
def _unchanged(module: Any) -> Iterator[None]:
    """Leaves a module's names as they were: Liger replaces some for every model."""
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)


def _with_liger(model: Any, rope: bool) -> None:
    patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
    patches._apply_liger_kernel_to_instance(model=model, rope=rope)


def build(name: str, shape: str, rows: int, length: int, device: torch.device) -> Callable[[], object]:
    """A training step of a candidate."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_config(SHAPES[shape](), dtype=torch.float32, attn_implementation="sdpa")
    modeling: Any = sys.modules[type(model).__module__]
    converted = name.endswith(("fixed", "learning"))
    with _unchanged(modeling):
        if name.startswith("liger"):
            _with_liger(model, rope=not converted)
        rotation = modeling.apply_rotary_pos_emb
    if converted:
        lerope.convert(model, encoding="lerope" if name.endswith("learning") else "frozen")
    model = model.to(device, dtype).train()
    groups = lerope.param_groups(model, lr=1e-5, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups, fused=device.type == "cuda")
    tokens = torch.randint(model.config.vocab_size, (rows, length), device=device)

    def step() -> None:
        with _unchanged(modeling):
            if not converted:  # those bring their own
                modeling.apply_rotary_pos_emb = rotation
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(args: argparse.Namespace, shape: str, device: torch.device) -> list[dict[str, Any]]:
    def parts(name: str) -> Parts:
        return {"step": [build(name, shape, args.rows, args.length, device)]}

    candidates = [Candidate(name, lambda name=name: parts(name)) for name in CANDIDATES]  # type: ignore[misc]
    with Signals() as signals, Display() as display:
        found = Stopwatch(device, args.rounds, signals, display).measure(shape, candidates, ["step"])
        signals.check()
    rows = []
    for name in CANDIDATES:
        times = found[name, "step"]
        row = {"shape": shape, "candidate": name, "note": times.note, "samples_s": list(times.samples)}
        rows.append(
            {**row, "median_ms": None if times.median is None else 1e3 * times.median, "peak_bytes": times.peak_bytes}
        )
    return rows


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times and memory of one candidate by another's, where both ran."""
    by_name = {row["candidate"]: row for row in rows if row["samples_s"]}
    found = []
    for one, other in RATIOS:
        if one in by_name and other in by_name:
            a, b = by_name[one], by_name[other]
            memory = a["peak_bytes"] / b["peak_bytes"] if a["peak_bytes"] and b["peak_bytes"] else None
            times = ratio(a["samples_s"], b["samples_s"])
            found.append({"shape": a["shape"], "one": one, "other": other, "time": times, "memory": memory})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="by default both large ones")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results: dict[str, Any] = {**conditions("torch", "transformers"), "rows": args.rows, "length": args.length}
    results |= {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "steps": [], "ratios": []}
    for shape in args.shape or ("qwen3-0.6b", "llama-3.2-1b"):
        rows = measure(args, shape, device)
        results["steps"] += rows
        results["ratios"] += ratios(rows)
        shown = ("candidate", "median_ms", "peak_bytes", "note")
        show(shape, [{key: "" if row[key] is None else row[key] for key in shown} for row in rows], ".2f")
        show("ratios", [{k: "" if v is None else v for k, v in row.items()} for row in ratios(rows)], ".4f")
    if not args.no_save:
        save(RESULTS / f"converted_step_{device.type}.json", results)


if __name__ == "__main__":
    main()
