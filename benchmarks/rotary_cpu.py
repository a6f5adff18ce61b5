"""CPU speed and accuracy of lerope against rotary-embedding-torch and Hugging Face transformers.

Exit code: 0 if every claim holds, 1 if one fails, 2 if a peer is not installed.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from reporting import conditions, ratio, save, show, take_turns
from torch import Tensor

import lerope

SHAPE = BATCH, LENGTH, HEADS, HEAD_DIM = 2, 2048, 8, 64
RESULT = Path(__file__).parent / "results" / "rotary_cpu.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# How far off lerope may be; rounding to bfloat16 alone costs up to 2^-6 at 4.
TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
# What the others of a kind are compared with.
BASELINE = {"learned": "LeRoPE", "fixed": "RoPE", "prebuilt": "RoPE, prebuilt"}
RET, HF, HF_VIEW = "rotary-embedding-torch", "Hugging Face", "Hugging Face, view"
# claim, mode, dtype, peers, how many times lerope's time each peer takes at least
CLAIMS = [
    ("learned, forward and backward, 1.5x as fast", "training", "float32", [RET], 1.5),
    ("learned, forward and backward, 1.5x as fast", "training", "bfloat16", [RET], 1.5),
    ("fixed, forward, no slower", "forward", "float32", [HF, HF_VIEW], 1.0),
    ("fixed, forward, at most 1.3x the time", "forward", "bfloat16", [HF, HF_VIEW], 1 / 1.3),
]


@dataclass
class Case:
    """One implementation; tensors are q, k and their upstream gradients in the memory order that its users have."""

    name: str
    kind: str
    turn: Callable[..., Any]
    tensors: list[Tensor]
    interleaved: bool = False
    transposed: bool = False
    frequencies: Tensor | None = None  # the parameter that learns
    log_scale: Tensor | float = 1.0  # its gradient times this is the gradient of log frequencies

    def __post_init__(self) -> None:
        self.inputs = [x.detach().requires_grad_() for x in self.tensors[:2]]

    def forward(self) -> None:
        with torch.no_grad():
            self.turn(*self.inputs)

    def training(self) -> tuple[Tensor, ...]:
        outputs = self.turn(*self.inputs)
        leaves = self.inputs if self.frequencies is None else [*self.inputs, self.frequencies]
        return *outputs, *torch.autograd.grad(outputs, leaves, self.tensors[2:])


def make_cases(dtype: torch.dtype, seed: int) -> list[Case]:
    from rotary_embedding_torch import RotaryEmbedding
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    generator = torch.Generator().manual_seed(seed)
    data = [torch.randn(SHAPE, generator=generator).to(dtype) for _ in range(4)]
    views = [x.transpose(1, 2) for x in data]  # what Llama's attention passes
    heads_first = [x.contiguous() for x in views]
    positions = torch.arange(LENGTH)
    learned, fixed = lerope.LeRoPE(HEAD_DIM), lerope.RoPE(HEAD_DIM)
    pairs = lerope.LeRoPE(HEAD_DIM, layout="interleaved")
    ret: Any = RotaryEmbedding(dim=HEAD_DIM, learned_freq=True)
    config = LlamaConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, max_position_embeddings=LENGTH)
    llama: Any = LlamaRotaryEmbedding(config)
    tables = llama(data[0], positions[None])

    def ret_turn(q: Tensor, k: Tensor) -> Any:
        return ret.rotate_queries_or_keys(q), ret.rotate_queries_or_keys(k)

    def hf_turn(q: Tensor, k: Tensor) -> Any:
        return apply_rotary_pos_emb(q, k, *llama(q, positions[None]))

    def hf_apply(q: Tensor, k: Tensor) -> Any:
        return apply_rotary_pos_emb(q, k, *tables)

    return [
        Case("LeRoPE", "learned", lambda q, k: learned(q, k, positions), data, frequencies=learned.alpha),
        Case("LeRoPE, interleaved", "learned", lambda q, k: pairs(q, k, positions), data, True, False, pairs.alpha),
        Case(RET, "learned", ret_turn, heads_first, True, True, ret.freqs, ret.freqs.detach()),
        Case("RoPE", "fixed", lambda q, k: fixed(q, k, positions), data),
        Case(HF, "fixed", hf_turn, heads_first, transposed=True),
        Case(HF_VIEW, "fixed", hf_turn, views, transposed=True),
        Case("RoPE, prebuilt", "prebuilt", fixed.rotation(positions), data),
        Case("Hugging Face, prebuilt", "prebuilt", hf_apply, heads_first, transposed=True),
        Case("Hugging Face, view, prebuilt", "prebuilt", hf_apply, views, transposed=True),
    ]


def reference(case: Case) -> tuple[Tensor, ...]:
    """q, k, dq, dk and d log frequencies in float64: complex numbers times exp(i * position * frequency)."""
    q, k, *upstream = ((x.transpose(1, 2) if case.transposed else x).double() for x in case.tensors)
    inputs = [q.requires_grad_(), k.requires_grad_()]
    log_scales = torch.zeros(HEAD_DIM // 2, dtype=torch.float64, requires_grad=True)
    theta = 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM) * log_scales.exp()
    turns = torch.exp(1j * torch.arange(LENGTH)[:, None, None] * theta)
    sizes, dim = ((-1, 2), -1) if case.interleaved else ((2, -1), -2)
    turned = [torch.complex(*x.unflatten(-1, sizes).unbind(dim)) * turns for x in inputs]
    outputs = [torch.stack((z.real, z.imag), dim).flatten(-2) for z in turned]
    return *outputs, *torch.autograd.grad(outputs, [*inputs, log_scales], upstream)


def errors(case: Case) -> dict[str, Any]:
    """Largest error of q, k, dq, dk; where frequencies learn also the relative error of their gradient."""
    got, wanted = ([x.detach() for x in tensors] for tensors in (case.training(), reference(case)))
    pairs = zip((x.transpose(1, 2) if case.transposed else x for x in got[:4]), wanted, strict=False)
    row = {"name": case.name, "q_k_dq_dk": max(float((a - b).abs().max()) for a, b in pairs)}
    if case.frequencies is None:
        return row
    return row | {"d_frequencies": float((got[4] * case.log_scale - wanted[4]).norm() / wanted[4].norm())}


def measure(cases: list[Case], mode: str, rounds: int) -> list[dict[str, Any]]:
    times = take_turns(mode, {case.name: getattr(case, mode) for case in cases}, rounds)
    rows = []
    for case in cases:
        q1, median, q3 = (1000 * value for value in statistics.quantiles(times[case.name], n=4))
        row = {"kind": case.kind, "name": case.name, "median_ms": median, "q1_ms": q1, "q3_ms": q3}
        rows.append(row | {"over_lerope": ratio(times[case.name], times[BASELINE[case.kind]])})
    return rows


def judge(timings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    claims = []
    for text, mode, dtype, peers, least in CLAIMS:
        rows = [r for r in timings if (r["mode"], r["dtype"]) == (mode, dtype) and r["name"] in peers]
        row = min(rows, key=lambda r: float(r["over_lerope"]))  # the faster of Hugging Face's memory orders
        over = row["over_lerope"]
        claim = {"claim": text, "dtype": dtype, "peer": row["name"], "over_lerope": over, "at_least": least}
        claims.append(claim | {"verdict": "holds" if over >= least else "FAILS"})
    return claims


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU speed and accuracy of lerope against its peers.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a smoke run: 5 rounds, writes no file")
    options = parser.parse_args()
    options.rounds = 5 if options.quick else options.rounds
    if options.threads < 1:
        parser.error(f"--threads must be 1 or more; got {options.threads}")
    if options.rounds < 2:
        parser.error(f"--rounds must be 2 or more, for medians; got {options.rounds}")
    return options


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    try:
        cases = {name: make_cases(dtype, options.seed) for name, dtype in DTYPES.items()}
    except ImportError as error:
        print(f"This benchmark needs {error.name}: install lerope[bench].")
        return 2
    facts = {
        **conditions("torch", "transformers", "rotary-embedding-torch"),
        "shape": dict(zip(("batch", "length", "heads", "head_dim"), SHAPE, strict=True)),
        "seed": options.seed,
        "rounds": options.rounds,
    }
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")

    # Prebuilt tables are those of the fixed cases, so they have no accuracy and no backward pass of their own.
    own = {dtype: [case for case in cases[dtype] if case.kind != "prebuilt"] for dtype in DTYPES}
    accuracy = [{"dtype": dtype, **errors(case)} for dtype in DTYPES for case in own[dtype]]
    show("largest error against float64; relative for the frequencies' gradient", accuracy, ".1e")
    for row in (row for row in accuracy if "RoPE" in row["name"]):
        if not max(row["q_k_dq_dk"], row.get("d_frequencies", 0.0)) <= TOLERANCE[row["dtype"]]:
            print(f"lerope is wrong: {row}, tolerance {TOLERANCE[row['dtype']]}.")
            return 1

    # Until a block of nearly 32 MiB has come and gone, glibc gives freed memory back to the kernel. Then page faults
    # are most of the time, above all the peers', who make more temporaries; a process that trains is past that.
    torch.empty(31 << 20, dtype=torch.uint8)
    timings: list[dict[str, Any]] = []
    for mode, title, chosen in (("forward", "forward", cases), ("training", "forward and backward", own)):
        for dtype in DTYPES:
            rows = measure(chosen[dtype], mode, options.rounds)
            show(f"{title}, {dtype}", rows, ".2f")
            timings += [{"mode": mode, "dtype": dtype, **row} for row in rows]

    claims = judge(timings)
    for c in claims:
        said = f"{c['peer']} takes {c['over_lerope']:.2f}x lerope's time, claimed at least {c['at_least']:.2f}x"
        print(f"{c['verdict']}  {c['claim']}, {c['dtype']}: {said}")
    if not options.quick:
        save(RESULT, {**facts, "accuracy": accuracy, "timings": timings, "claims": claims})
    return int(any(claim["verdict"] == "FAILS" for claim in claims))


if __name__ == "__main__":
    sys.exit(main())
