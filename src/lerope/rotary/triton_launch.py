"""Launches of the kernels in `triton_rotary`: which program takes which heads of which tokens, and where sums go."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from lerope.rotary import triton_rotary

# Iterations of a backward pass that are in flight at once.
_STAGES = 3
# The tile of a program that adds up their sums.
_SUM_ROWS, _SUM_COLUMNS = 512, 4
# The most pairs of a token that one program takes; further heads go to other programs. More need more registers than
# the programs that share a backward pass can have at once.
_MAX_PAIRS = 2048


def turn(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, q_gain: Tensor | None,
    k_gain: Tensor | None, eps: float, back: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `rotary` gives, or with `back` its inverse; meaningless for a k of None."""
    size = Size(q, k, cos, index, half, q_gain)
    outs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, q if k is None else k)]
    views = [_strided(x) for x in (q, q if k is None else k)]
    tile = forward_tile(size)
    programs = [part.blocks * triton.cdiv(size.num_tokens, tile.tokens(part)) for part in size.parts]
    gains = (q, q) if q_gain is None else (q_gain, q_gain if k_gain is None else k_gain)
    if size.num_tokens:
        triton_rotary.forward[(sum(programs),)](
            *(x for x, *_ in views), *outs, *gains, cos, sin, cos if index is None else index,
            *(length for _, length, *_ in views), size.num_tokens, len(cos), eps,
            *(stride for _, _, *strides in views for stride in strides),
            *size.constants, BACK=back, **tile.constants(size),
        )  # fmt: skip
    return outs[0], outs[1]


def turn_back(
    q_grad: Tensor, k_grad: Tensor | None, q_saved: Tensor | None, k_saved: Tensor | None, q_out: Tensor, k_out: Tensor,
    cos: Tensor, sin: Tensor, index: Tensor | None, offsets: Tensor, half: bool, q_gain: Tensor | None,
    k_gain: Tensor | None, eps: float, learn: bool,
) -> Tensor:  # fmt: skip
    """Fills `out`, which may be `grad`, with the gradients of q and k; returns the sums of `rotary_backward`.

    Tokens of `out` lie evenly, each with its heads side by side. It may be `grad` because a tile has more pairs than
    threads: only one reads an element, and what is written there needs what it read.
    """
    size = Size(q_grad, k_grad, cos, index, half, q_gain)
    grads = (q_grad, q_grad if k_grad is None else k_grad)
    saved = [grad if kept is None else kept for grad, kept in zip(grads, (q_saved, k_saved), strict=True)]
    views = [_strided(x) for x in (*grads, *saved)]
    tile, columns = backward_tile(size), size.columns(learn)
    programs = shares(size, tile)
    num_rows = [share // part.row_blocks for share, part in zip(programs, size.parts, strict=True)]
    uneven = any(size.row(part, learn) < columns for part in size.parts)
    make = torch.zeros if uneven else torch.empty
    rows = make(sum(num_rows), columns, dtype=torch.float32, device=q_grad.device)
    gains = (q_grad, q_grad) if q_gain is None else (q_gain, q_gain if k_gain is None else k_gain)
    triton_rotary.backward[(sum(programs),)](
        *(x for x, *_ in views), q_out, k_out, *gains, cos, sin, cos if index is None else index, offsets, rows,
        rows[num_rows[0] :], columns, programs[0], *(length for _, length, *_ in views), size.num_tokens, len(cos), eps,
        *(stride for _, _, *strides in views for stride in strides), q_out.stride(-3), k_out.stride(-3),
        *size.constants, LEARN=learn, OWN_OFFSETS=len(offsets) == size.num_tokens, STAGES=_STAGES,
        **tile.constants(size),
    )  # fmt: skip
    return add_rows(rows, num_rows, size.bands * learn if size.sets == 1 else 0)


def add_rows(rows: Tensor, num_rows: Sequence[int] = (), num_shared: int = 0) -> Tensor:
    """(rows, columns) -> (parts, columns), summed in one fixed order.

    Args:
        num_rows: of each part, one after the other; by default all rows are one part.
        num_shared: how many columns, the first ones, are summed over all parts.
    """
    parts, columns = max(1, len(num_rows)), rows.shape[-1]
    sums = torch.empty(parts, columns, dtype=torch.float32, device=rows.device)
    if sums.numel():
        grid = (triton.cdiv(columns, _SUM_COLUMNS), parts)
        early = _starts_early(rows.device)
        triton_rotary.add_up[grid](
            rows, sums, num_rows[0] if num_rows else len(rows), len(rows), columns, num_shared, EARLY=early,
            ROWS=_SUM_ROWS, COLUMNS=_SUM_COLUMNS, num_warps=8, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return sums


def _starts_early(device: torch.device) -> bool:
    """Whether a kernel may be launched while the one before it still runs (programmatic dependent launch)."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= (9, 0)


def gradients(sums: Tensor, size: "Size", learn: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of the frequencies, (1 or key heads, bands), and of both gains, from the sums of `turn_back`."""
    frequencies: Tensor | None = None
    q_gain: Tensor | None = None
    k_gain: Tensor | None = None
    blocks = [
        row[: size.row(part, learn)].view(part.row_blocks, size.row(part, learn) // part.row_blocks)
        for row, part in zip(sums, size.parts, strict=True)
    ]
    if learn and size.sets == 1:
        frequencies = sums[:1, : size.bands]
    elif learn:
        of_sets = []
        for own, part in zip(blocks, size.parts, strict=True):
            heads = own[:, : part.padded_heads * size.bands].reshape(-1, size.bands)[: part.heads]
            of_sets.append(heads.unflatten(0, (size.sets, -1)).sum(1))
        frequencies = torch.stack(of_sets).sum(0)
    if size.norm:
        gains = [own[:, -size.dim :] for own in blocks]
        q_gain, *rest = (own[0] if len(own) == 1 else own.sum(0) for own in gains)
        k_gain = rest[0] if rest else None
    return frequencies, q_gain, k_gain


class Part(NamedTuple):
    """Queries or keys: how a launch deals out the heads of a token."""

    heads: int
    padded_heads: int
    """Heads of one program, a power of two; some of them may not exist."""
    blocks: int
    """Programs that share the heads."""
    row_blocks: int
    """Those whose sums lie in one row: all where heads have frequencies of their own, else one."""


class Tile(NamedTuple):
    """What a program takes at a time: pairs of numbers for queries or keys, and its warps."""

    pairs: int
    num_warps: int
    padded: int

    def tokens(self, part: Part) -> int:
        return max(1, self.pairs // (part.padded_heads * self.padded))

    def constants(self, size: "Size") -> dict[str, int]:
        """Of a launch."""
        q, k = size.parts[0], size.parts[-1]
        tokens = (self.tokens(q), self.tokens(k))
        return {
            "FULL": size.num_tokens % max(tokens) == 0, "Q_TOKENS": tokens[0], "Q_PADDED_HEADS": q.padded_heads,
            "K_TOKENS": tokens[1], "K_PADDED_HEADS": k.padded_heads, "PADDED": size.padded, "num_warps": self.num_warps,
        }  # fmt: skip


def forward_tile(size: "Size") -> Tile:
    """Measured on an H200 for the layouts of `lerope bench`."""
    num_warps = 1 if size.sets == 1 else _least_warps(size)
    pairs = max(512, 256 * num_warps, size.most)
    return Tile(pairs, max(num_warps, min(8, _power(pairs // 512))), size.padded)


def backward_tile(size: "Size") -> Tile:
    """Measured on an H200 for the layouts of `lerope bench`."""
    num_warps = _least_warps(size)
    pairs = max(num_warps * (512 if size.sets == 1 else 256), size.most)
    return Tile(pairs, max(num_warps, min(8, _power(pairs // 512))), size.padded)


def _least_warps(size: "Size") -> int:
    """With few warps Triton spreads a large head over them in a way that a norm has to convert: more instructions."""
    return min(8, max(2, size.padded // 16)) if size.norm else 2


def shares(size: "Size", tile: Tile) -> list[int]:
    """Programs of a backward pass for queries and for keys, so many that all end at about the same time."""
    work = [part.padded_heads * part.blocks for part in size.parts]
    found = []
    for part, own in zip(size.parts, work, strict=True):
        share = num_programs(size) * own // (sum(work) * part.blocks)
        found.append(part.blocks * max(1, min(share, triton.cdiv(size.num_tokens, tile.tokens(part)))))
    return found


def _power(number: int) -> int:
    """The largest power of two that is not larger; 1 if there is none."""
    return 1 << max(0, number.bit_length() - 1)


def num_programs(size: "Size") -> int:
    """Programs that share the tokens of a backward pass: measured, not the GPU's, so that sums agree on all GPUs."""
    if size.norm:
        return (1056 if size.sets == 1 else 1584) // backward_tile(size).num_warps
    return 396 if size.sets == 1 else 1056


class Size:
    """The sizes a launch needs, from its arguments."""

    def __init__(
        self, q: Tensor, k: Tensor | None, cos: Tensor, index: Tensor | None, half: bool, gain: Tensor | None
    ) -> None:
        self.dim, self.sets, self.bands = q.shape[-1], cos.shape[1], cos.shape[2]
        self.num_tokens = math.prod(q.shape[:-2])
        self.norm = gain is not None
        self.padded = triton.next_power_of_2((self.dim + 1) // 2)
        self.parts = [self._part(x.shape[-2]) for x in (q, k) if x is not None]
        self.most = max(part.padded_heads for part in self.parts) * self.padded
        """Pairs of a token that a program takes, at most."""
        self.constants = (
            self.parts[0].heads, self.parts[-1].heads, self.dim, self.bands, self.sets, half, index is not None,
            self.norm,
        )  # fmt: skip

    def _part(self, heads: int) -> Part:
        # Heads with frequencies of their own have rows of the tables to wait for as well.
        pairs = _MAX_PAIRS if self.sets == 1 else _MAX_PAIRS // 4
        most = min(triton.next_power_of_2(heads), _power(pairs // self.padded))
        sizes = (most >> i for i in range(most.bit_length()))
        # A token's row of the tables, which each program reads, costs about as much as a head.
        padded_heads = min(sizes, key=lambda size: triton.cdiv(heads, size) * (size + 1))
        blocks = triton.cdiv(heads, padded_heads)
        return Part(heads, padded_heads, blocks, blocks if self.sets > 1 else 1)

    def row(self, part: Part, learn: bool) -> int:
        """Sums that the programs of a block of tokens leave."""
        own_heads = part.padded_heads if self.sets > 1 else 1
        return part.row_blocks * (self.bands * own_heads * learn + self.dim * self.norm)

    def columns(self, learn: bool) -> int:
        """Of all rows of sums; those of keys may be shorter where heads have frequencies of their own."""
        return max(self.row(part, learn) for part in self.parts)


def _strided(x: Tensor) -> tuple[Tensor, int, int, int, int]:
    """x, copied if need be, and how its tokens lie: tokens of a row, strides of rows, tokens and heads.

    Tokens that lie evenly are rows of one token, which saves the kernel a division.
    """
    *sizes, length = x.shape[:-2]
    strides = x.stride()
    merges = all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(len(sizes) - 1))
    if strides[-1] != 1 or not merges:
        x = x.contiguous()
        strides = x.stride()
    row_stride = strides[len(sizes) - 1] if sizes else 0
    if not sizes or row_stride == strides[-3] * length:
        return x, 1, strides[-3], 0, strides[-2]
    return x, length, row_stride, strides[-3], strides[-2]
