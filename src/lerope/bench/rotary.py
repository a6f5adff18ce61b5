"""Rotations, forward and backward separately, against the time to copy their bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lerope.bench import peers
from lerope.bench.bench import Bench, share
from lerope.bench.timing import Candidate, Parts, free
from lerope.core.encoding import Layout
from lerope.results import LayoutTime, RotaryTime
from lerope.rotary.encodings import RoPE
from lerope.rotary.rotation import Rotation

PARTS = ("forward", "backward")
HEAD_DIM = 64
NORM = "lerope, QK-norm, learned"

Turn = Callable[..., Sequence[Tensor]]
Sets = list[list[Tensor]]
"""Sets of inputs, each a single tensor, or queries and keys."""


@dataclass(frozen=True)
class Way:
    """One way to rotate."""

    name: str
    learned: bool
    norm: bool
    build: Callable[[Sets], Parts]


def needed_bytes(part: str, sizes: Sequence[int], learned: bool, norm: bool, turning: float = 1.0) -> int:
    """Bytes that must move: each tensor of `sizes` bytes read and written once.

    Backward reads one gradient and writes another, and also reads what forward kept: for a norm, a tensor of the same
    size; for only the frequencies' gradient, the share of it that is `turning`. Tables, gains and their gradients are
    small and not counted.
    """
    kept = 0.0 if part == "forward" else 1.0 if norm else turning * learned
    return round((2 + kept) * sum(sizes))


def measure(bench: Bench) -> Iterator[RotaryTime]:
    """Our kernels, torch.compile and peers on one tensor, and on queries and keys."""
    for num_heads in bench.sizes.rotary_heads:
        for tensors in ("x", "q and k"):
            bench.watch.signals.check()
            yield from _measured(bench, num_heads, tensors)
            free(bench.device)


def _measured(bench: Bench, num_heads: int, tensors: str) -> list[RotaryTime]:
    length, num_tokens = bench.sizes.row_length, bench.sizes.rotary_tokens
    shape = (num_tokens // length, length, num_heads, HEAD_DIM)
    sets = _inputs(bench, [shape] * (1 if tensors == "x" else 2))
    ways = _ways(bench, tensors == "q and k")
    candidates = [Candidate(way.name, partial(way.build, sets)) for way in ways]
    what = f"rotary of {tensors}, {num_heads} heads"
    found = bench.watch.measure(what, candidates, PARTS)
    sizes = [x.numel() * x.element_size() for x in sets[0]]
    rows: list[RotaryTime] = []
    for part in PARTS:
        for way in ways:
            times = found[way.name, part]
            num_bytes = needed_bytes(part, sizes, way.learned, way.norm)
            rows.append(
                {
                    "tensors": tensors,
                    "num_tokens": num_tokens,
                    "num_heads": num_heads,
                    "head_dim": HEAD_DIM,
                    "name": way.name,
                    "part": part,
                    "learned": way.learned,
                    "num_bytes": num_bytes,
                    "share_of_copy": share(num_bytes, times.median, bench.copy_rate),
                    **times.timing,
                }
            )
    return rows


def _inputs(bench: Bench, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype | None = None) -> Sets:
    def made() -> list[Tensor]:
        return [bench.random(*shape, dtype=dtype).requires_grad_() for shape in shapes]

    first = made()
    more = bench.watch.num_sets(sum(x.numel() * x.element_size() for x in first)) - 1
    return [first, *(made() for _ in range(more))]


def _ways(bench: Bench, pair: bool) -> list[Way]:
    """All candidates; those that only rotate queries and keys together are skipped for one tensor."""
    kernel = "triton" if bench.device.type == "cuda" else "reference"
    ways = [
        Way("lerope, learned", True, False, lambda sets: _ours(bench, sets, kernel, True)),
        Way("lerope, fixed", False, False, lambda sets: _ours(bench, sets, kernel, False)),
        Way("torch.compile, learned", True, False, lambda sets: _compiled(bench, sets)),
        Way("eager, learned", True, False, lambda sets: _ours(bench, sets, "reference", True)),
        Way(peers.FLASH, False, False, lambda sets: peers.flash_rotary(sets, _positions(bench), _frequencies(bench))),
        Way(peers.LEARNED, True, False, peers.rotary_embedding_torch),
    ]
    if pair:
        ways.insert(2, Way(NORM, True, True, lambda sets: _with_norm(bench, sets, kernel)))
        turn = partial(peers.liger_rotary, positions=_positions(bench), frequencies=_frequencies(bench))
        ways.insert(5, Way(peers.LIGER, False, False, turn))
    return ways


def _positions(bench: Bench) -> Tensor:
    return torch.arange(bench.sizes.row_length, device=bench.device)


def _frequencies(bench: Bench, dim: int = HEAD_DIM, learned: bool = False, num_heads: int | None = None) -> Tensor:
    """RoPE's, (bands,), or (heads, bands) that differ between heads."""
    theta = RoPE(dim).frequencies().detach().to(bench.device)
    if num_heads is not None:
        theta = theta * torch.linspace(0.5, 1.5, num_heads, device=bench.device)[:, None]
    return theta.clone().requires_grad_(learned)


def _rotation(bench: Bench, frequencies: Tensor, kernel: Any) -> Rotation:
    return Rotation(_positions(bench), frequencies, length=bench.sizes.row_length, kernel=kernel)


def _ours(bench: Bench, sets: Sets, kernel: str, learned: bool) -> Parts:
    frequencies = _frequencies(bench, learned=learned)
    rotation = _rotation(bench, frequencies, kernel)
    return peers.parts(_turning(rotation), sets, [frequencies] if learned else [])


def _turning(rotation: Rotation) -> Turn:
    return lambda *xs: (rotation.turn(xs[0]),) if len(xs) == 1 else rotation(*xs)


def _with_norm(bench: Bench, sets: Sets, kernel: str) -> Parts:
    frequencies = _frequencies(bench, learned=True)
    return _normed(bench, _rotation(bench, frequencies, kernel), sets, frequencies)


def _normed(bench: Bench, rotation: Rotation, sets: Sets, frequencies: Tensor) -> Parts:
    q_norm, k_norm = (nn.RMSNorm(sets[0][0].shape[-1], eps=1e-5, device=bench.device) for _ in range(2))
    for norm in (q_norm, k_norm):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    leaves = [frequencies, q_norm.weight, k_norm.weight]
    return peers.parts(lambda q, k: rotation.after_norm(q, k, q_norm, k_norm), sets, leaves)


def _compiled(bench: Bench, sets: Sets) -> Parts:
    if bench.device.type == "cpu":
        raise ValueError("measured only on a GPU")
    from torch._functorch import config

    frequencies = _frequencies(bench, learned=True)
    turn = torch.compile(_turning(_rotation(bench, frequencies, "reference")), dynamic=False)
    with config.patch(donated_buffer=False):  # a repeated backward pass must keep what it read
        return peers.parts(turn, sets, [frequencies], compiles=True)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A layout of queries and keys."""

    name: str
    q_heads: int = 8
    k_heads: int = 8
    head_dim: int = HEAD_DIM
    rotary_dim: int | None = None
    layout: Layout = "half"
    dtype: torch.dtype | None = None
    """By default, the model's."""
    packed: bool = False
    strided: bool = False
    per_head: bool = False


VARIANTS = (
    Variant(name="half"),
    Variant(name="interleaved", layout="interleaved"),
    Variant(name="grouped queries", q_heads=32, k_heads=8),
    Variant(name="head_dim 128, 16 and 8 heads", q_heads=16, k_heads=8, head_dim=128),
    Variant(name="head_dim 128, 24 and 8 heads", q_heads=24, k_heads=8, head_dim=128),
    Variant(name="partial, 32 of 64", rotary_dim=32),
    Variant(name="partial, 64 of 256", q_heads=4, k_heads=4, head_dim=256, rotary_dim=64),
    Variant(name="packed positions", packed=True),
    Variant(name="views of qkv", strided=True),
    Variant(name="frequencies of each head", per_head=True),
    Variant(name="head_dim 32", q_heads=16, k_heads=16, head_dim=32),
    Variant(name="head_dim 128", head_dim=128),
    Variant(name="head_dim 256", q_heads=4, k_heads=4, head_dim=256),
    Variant(name="float16", dtype=torch.float16),
    Variant(name="float32", dtype=torch.float32),
)


def measure_layouts(bench: Bench) -> Iterator[LayoutTime]:
    """Our kernels on queries and keys in every layout, with learned frequencies, with and without a norm."""
    for variant in VARIANTS:
        bench.watch.signals.check()
        yield from _variant(bench, variant)
        free(bench.device)


def _variant(bench: Bench, variant: Variant) -> list[LayoutTime]:
    length, num_tokens = bench.sizes.row_length, bench.sizes.rotary_tokens
    lead, dim = (num_tokens // length, length), variant.head_dim
    if variant.strided:
        fused = _inputs(bench, [(*lead, 3, variant.q_heads, dim)], variant.dtype)
        sets = [[x.detach().requires_grad_() for x in qkv.unbind(-3)[:2]] for (qkv,) in fused]
    else:
        sets = _inputs(bench, [(*lead, heads, dim) for heads in (variant.q_heads, variant.k_heads)], variant.dtype)

    def rotation() -> tuple[Rotation, Tensor]:
        num_heads = variant.k_heads if variant.per_head else None
        frequencies = _frequencies(bench, variant.rotary_dim or dim, True, num_heads)
        positions = _positions(bench)
        if variant.packed:
            batch = bench.documents.batch(bench.models[bench.rungs[0]].vocab_size, length, lead[0])
            positions = torch.from_numpy(batch.positions).to(bench.device)
        kernel: Any = "triton" if bench.device.type == "cuda" else "reference"
        return Rotation(positions, frequencies, variant.layout, dim, length=length, kernel=kernel), frequencies

    def plain() -> Parts:
        made, frequencies = rotation()
        return peers.parts(_turning(made), sets, [frequencies])

    def normed() -> Parts:
        made, frequencies = rotation()
        return _normed(bench, made, sets, frequencies)

    candidates = {False: Candidate("rotary", plain), True: Candidate("QK-norm + rotary", normed)}
    found = bench.watch.measure(f"layouts: {variant.name}", list(candidates.values()), PARTS)
    sizes = [x.numel() * x.element_size() for x in sets[0]]
    rows: list[LayoutTime] = []
    for norm, candidate in candidates.items():
        for part in PARTS:
            times = found[candidate.name, part]
            num_bytes = needed_bytes(part, sizes, True, norm, (variant.rotary_dim or dim) / dim)
            rows.append(
                {
                    "layout": variant.name,
                    "norm": norm,
                    "num_tokens": num_tokens,
                    "q_heads": variant.q_heads,
                    "k_heads": variant.k_heads,
                    "head_dim": dim,
                    "dtype": str(sets[0][0].dtype).removeprefix("torch."),
                    "part": part,
                    "num_bytes": num_bytes,
                    "share_of_copy": share(num_bytes, times.median, bench.copy_rate),
                    **times.timing,
                }
            )
    return rows
