"""Rotary, and RMS norm + rotary, as Triton kernels at the speed of memory, with the gradient of the frequencies.

What makes them fast: cos and sin come from a small float32 table that stays in the GPU's cache; a program takes all
heads of a token, so that each table row is read once; the backward pass reads only what it would read for fixed
frequencies and a norm, keeps its sums in registers, and adds up the few sums of all programs in a second, fixed order.

Queries and keys share a launch. The check in float64 is `rotate.py`'s formula; `operators.py` is the way to autograd.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # a Triton for another vendor's GPUs, where nothing starts early
    gdc_wait = None

# Iterations of it that are in flight at once.
_STAGES = 3
# The tile of a program that adds up their sums.
_SUM_ROWS, _SUM_COLUMNS = 512, 4
# The most elements of a token that one program takes; further heads go to other programs.
_MAX_ELEMENTS = 8192


@triton.jit
def _pair(start, inside, BANDS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr):
    """Both numbers of every pair, float32, from pointers (tokens, heads, 1) to the heads' first dimensions.

    First those of the BANDS, then the rest of the head, also in pairs, the last of which may lack its second.
    """
    if HALF:
        pair = tl.arange(0, PADDED)[None, None, :]
        first, second = _places(BANDS, DIM, PADDED)
        a = tl.load(start + first, mask=inside & (pair < (DIM + 1) // 2), other=0.0).to(tl.float32)
        b = tl.load(start + second, mask=inside & (pair < DIM // 2), other=0.0).to(tl.float32)
    else:
        each = tl.arange(0, 2 * PADDED)[None, None, :]
        both = tl.load(start + each, mask=inside & (each < DIM), other=0.0).to(tl.float32)
        a, b = tl.split(both.reshape(both.shape[0], both.shape[1], PADDED, 2))
    return a, b


@triton.jit
def _put_pair(start, a, b, inside, BANDS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr):
    """The inverse of `_pair`."""
    if HALF:
        pair = tl.arange(0, PADDED)[None, None, :]
        first, second = _places(BANDS, DIM, PADDED)
        tl.store(start + first, a.to(start.dtype.element_ty), mask=inside & (pair < (DIM + 1) // 2))
        tl.store(start + second, b.to(start.dtype.element_ty), mask=inside & (pair < DIM // 2))
    else:
        each = tl.arange(0, 2 * PADDED)[None, None, :]
        both = tl.join(a, b).reshape(a.shape[0], a.shape[1], 2 * PADDED)
        tl.store(start + each, both.to(start.dtype.element_ty), mask=inside & (each < DIM))


@triton.jit
def _places(BANDS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr):
    """Where the numbers of a pair lie in the half layout: bands in two halves, and behind them the rest in two."""
    pair = tl.arange(0, PADDED)
    PAIRS: tl.constexpr = (DIM + 1) // 2
    if PAIRS == BANDS:
        first = pair
        second = pair + BANDS
    else:
        # Neighbours come in runs, none across a seam. Triton does not see this by itself and would read one by one.
        RUN: tl.constexpr = (BANDS | PAIRS | 16) & -(BANDS | PAIRS | 16)
        first = tl.max_contiguous(tl.multiple_of(tl.where(pair < BANDS, pair, pair + BANDS), RUN), RUN)
        second = tl.max_contiguous(tl.multiple_of(pair + tl.where(pair < BANDS, BANDS, PAIRS), RUN), RUN)
    return first[None, None, :], second[None, None, :]


@triton.jit
def _angles(
    cos, sin, index, token, head, here, num_table,
    HAS_INDEX: tl.constexpr, SETS: tl.constexpr, HEADS: tl.constexpr, BANDS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """cos and sin of each pair, (tokens, 1 or heads, pairs), and each token's entry in the tables.

    Pairs after the bands do not turn. Only an inf in one of them has an effect: its partner becomes NaN.
    """
    if HAS_INDEX:
        row = tl.load(index + token, mask=here, other=0)
    else:
        row = token % num_table
    pair = tl.arange(0, PADDED)[None, None, :]
    place = row.to(tl.int64) * (SETS * BANDS)
    keep = here & (pair < BANDS)
    if SETS > 1:
        place += (head // (HEADS // SETS)) * BANDS
        keep &= head < HEADS
    c = tl.load(cos + place + pair, mask=keep, other=1.0)
    s = tl.load(sin + place + pair, mask=keep, other=0.0)
    return c, s, row


@triton.jit
def _turned(a, b, c, s):
    return a * c - b * s, b * c + a * s


@triton.jit
def _gains(gain, BANDS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr):
    """Gains of both numbers of every pair, (1, 1, pairs)."""
    here = tl.full((1, 1, 1), True, tl.int1)
    return _pair(gain + tl.zeros((1, 1, 1), tl.int32), here, BANDS, DIM, PADDED, HALF)


@triton.jit
def _of_all(terms):
    """(tokens, heads, size) -> their sum, (1, 1, size)."""
    return tl.sum(tl.sum(terms, axis=0, keep_dims=True), axis=1, keep_dims=True)


@triton.jit
def _tokens_left(token, num_tokens, FULL: tl.constexpr):
    """Which tokens exist: all where blocks are FULL, and masks then cost nothing."""
    if FULL:
        here = tl.full((1, 1, 1), True, tl.int1)
    else:
        here = token < num_tokens
    return here


@triton.jit
def _starts(x, token, head, length, row_stride, token_stride, head_stride):
    """Pointers to the first dimension of each head."""
    row = (token // length).to(tl.int64)
    return x + row * row_stride + (token % length).to(tl.int64) * token_stride + head.to(tl.int64) * head_stride


@triton.jit
def _forward_part(
    x, out, gain, cos, sin, index, length, num_tokens, num_table, row_stride, token_stride, head_stride, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr, HALF: tl.constexpr,
    HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr, BACK: tl.constexpr,
    TOKENS: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    head = (tl.program_id(1) * PADDED_HEADS + tl.arange(0, PADDED_HEADS))[None, :, None]
    here = _tokens_left(token, num_tokens, FULL)
    inside = here & (head < HEADS)
    start = _starts(x, token, head, length, row_stride, token_stride, head_stride)
    target = out + (token.to(tl.int64) * HEADS + head) * DIM
    c, s, _ = _angles(cos, sin, index, token, head, here, num_table, HAS_INDEX, SETS, HEADS, BANDS, PADDED)
    if BACK:
        s = -s
    a, b = _pair(start, inside, BANDS, DIM, PADDED, HALF)
    if NORM:
        gain_a, gain_b = _gains(gain, BANDS, DIM, PADDED, HALF)
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=2, keep_dims=True) * (1.0 / DIM) + eps)
        a = a * scale * gain_a
        b = b * scale * gain_b
    a, b = _turned(a, b, c, s)
    _put_pair(target, a, b, inside, BANDS, DIM, PADDED, HALF)


@triton.jit
def _forward(
    q, k, q_out, k_out, q_gain, k_gain, cos, sin, index,
    q_length, k_length, num_tokens, num_table, eps,
    q_row_stride, q_token_stride, q_head_stride, k_row_stride, k_token_stride, k_head_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr,
    HALF: tl.constexpr, HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr,
    BACK: tl.constexpr,
    TOKENS: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Programs (block of tokens, block of heads, queries or keys)."""
    if tl.program_id(2) == 0:
        _forward_part(
            q, q_out, q_gain, cos, sin, index, q_length, num_tokens, num_table, q_row_stride, q_token_stride,
            q_head_stride, eps, Q_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, BACK,
            TOKENS, PADDED_HEADS, PADDED,
        )  # fmt: skip
    else:
        _forward_part(
            k, k_out, k_gain, cos, sin, index, k_length, num_tokens, num_table, k_row_stride, k_token_stride,
            k_head_stride, eps, K_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, BACK,
            TOKENS, PADDED_HEADS, PADDED,
        )  # fmt: skip


@triton.jit
def _backward_part(
    grad, saved, out, gain, cos, sin, index, offsets, sums,
    grad_length, saved_length, num_tokens, num_table, eps,
    grad_row_stride, grad_token_stride, grad_head_stride, saved_row_stride, saved_token_stride, saved_head_stride,
    out_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr, HALF: tl.constexpr,
    HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr,
    LEARN: tl.constexpr, OWN_OFFSETS: tl.constexpr, STAGES: tl.constexpr,
    TOKENS: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(1) * PADDED_HEADS + tl.arange(0, PADDED_HEADS))[None, :, None]
    turning = tl.zeros((TOKENS, PADDED_HEADS, PADDED), tl.float32)
    if NORM:
        gain_a, gain_b = _gains(gain, BANDS, DIM, PADDED, HALF)
        sum_a = tl.zeros((TOKENS, PADDED_HEADS, PADDED), tl.float32)
        sum_b = tl.zeros((TOKENS, PADDED_HEADS, PADDED), tl.float32)
    num_programs = tl.num_programs(0)
    for block in tl.range(tl.program_id(0), tl.cdiv(num_tokens, TOKENS), num_programs, num_stages=STAGES):
        token = (block * TOKENS + tl.arange(0, TOKENS))[:, None, None]
        here = _tokens_left(token, num_tokens, FULL)
        inside = here & (head < HEADS)
        start = _starts(grad, token, head, grad_length, grad_row_stride, grad_token_stride, grad_head_stride)
        target = out + token.to(tl.int64) * out_stride + head * DIM
        c, s, row = _angles(cos, sin, index, token, head, here, num_table, HAS_INDEX, SETS, HEADS, BANDS, PADDED)
        # Turned back: the gradient before the rotation.
        turned_a, turned_b = _pair(start, inside, BANDS, DIM, PADDED, HALF)
        grad_a, grad_b = _turned(turned_a, turned_b, c, -s)
        if NORM or LEARN:
            origin = _starts(saved, token, head, saved_length, saved_row_stride, saved_token_stride, saved_head_stride)
            a, b = _pair(origin, inside, BANDS, DIM if NORM else 2 * BANDS, PADDED, HALF)
        if LEARN:
            offset = tl.load(offsets + (token if OWN_OFFSETS else row), mask=here, other=0.0)
        if NORM:
            # x -> x * scale * gain. Both sums over a head are taken at once, of x as it is.
            squares = tl.sum(a * a + b * b, axis=2, keep_dims=True)
            along_a = grad_a * a
            along_b = grad_b * b
            along = tl.sum(along_a * gain_a + along_b * gain_b, axis=2, keep_dims=True)
            scale = tl.rsqrt(squares * (1.0 / DIM) + eps)
            sum_a += along_a * scale
            sum_b += along_b * scale
            pull = along * scale * scale * scale * (1.0 / DIM)
            grad_a = grad_a * (gain_a * scale) - a * pull
            grad_b = grad_b * (gain_b * scale) - b * pull
            if LEARN:
                # The output again, rounded as it was: with numbers other than those attention saw, what queries and
                # keys turn each other by would not cancel.
                a, b = _turned(a * scale * gain_a, b * scale * gain_b, c, s)
                a = a.to(grad.dtype.element_ty).to(tl.float32)
                b = b.to(grad.dtype.element_ty).to(tl.float32)
        if LEARN:
            # Of the rotated output, so that the incoming gradient goes with it as it is.
            turning += (turned_b * a - turned_a * b) * offset
        _put_pair(target, grad_a, grad_b, inside, BANDS, DIM, PADDED, HALF)
    # A row of sums for each program: of the frequencies, of its heads where they have their own, and of the gain.
    band = tl.arange(0, PADDED)
    own: tl.constexpr = BANDS * (PADDED_HEADS if SETS > 1 else 1) * LEARN
    place = sums + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * (own + DIM * NORM)
    if LEARN:
        if SETS > 1:
            number = tl.arange(0, PADDED_HEADS)[:, None]
            tl.store(place + number * BANDS + band[None, :], tl.sum(turning, axis=0), mask=(band < BANDS)[None, :])
        else:
            tl.store(place + band[None, None, :], _of_all(turning), mask=(band < BANDS)[None, None, :])
    if NORM:
        place += own
        here = tl.full((1, 1, 1), True, tl.int1)
        start = place + tl.zeros((1, 1, 1), tl.int32)
        _put_pair(start, _of_all(sum_a), _of_all(sum_b), here, BANDS, DIM, PADDED, HALF)


@triton.jit
def _add_rows(
    rows, out, num_parts, num_rows, num_columns, num_shared,
    EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of columns over the rows of a part, and of shared ones over all; programs (block of columns, part).

    The second stage, in one fixed order.
    """
    if EARLY:
        gdc_wait()  # for the kernel that fills the rows
    part = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, num_parts * num_rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        counts = (row // num_rows == part) | ((column < num_shared) & (row < num_parts * num_rows))
        total += tl.load(rows + row * num_columns + column, mask=counts & (column < num_columns), other=0.0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + part * num_columns + column, tl.sum(total, axis=0), mask=column < num_columns)


@triton.jit
def _backward(
    q_grad, k_grad, q_saved, k_saved, q_out, k_out, q_gain, k_gain, cos, sin, index, offsets,
    q_sums, k_sums,
    qg_length, kg_length, qs_length, ks_length, num_tokens, num_table, eps,
    qg_row, qg_token, qg_head, kg_row, kg_token, kg_head, qs_row, qs_token, qs_head, ks_row, ks_token, ks_head,
    q_out_stride, k_out_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr,
    HALF: tl.constexpr, HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr,
    LEARN: tl.constexpr, OWN_OFFSETS: tl.constexpr, STAGES: tl.constexpr,
    TOKENS: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Programs (share of the tokens, block of heads, queries or keys)."""
    if tl.program_id(2) == 0:
        _backward_part(
            q_grad, q_saved, q_out, q_gain, cos, sin, index, offsets, q_sums,
            qg_length, qs_length, num_tokens, num_table, eps,
            qg_row, qg_token, qg_head, qs_row, qs_token, qs_head, q_out_stride,
            Q_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, LEARN, OWN_OFFSETS, STAGES,
            TOKENS, PADDED_HEADS, PADDED,
        )  # fmt: skip
    else:
        _backward_part(
            k_grad, k_saved, k_out, k_gain, cos, sin, index, offsets, k_sums,
            kg_length, ks_length, num_tokens, num_table, eps,
            kg_row, kg_token, kg_head, ks_row, ks_token, ks_head, k_out_stride,
            K_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, LEARN, OWN_OFFSETS, STAGES,
            TOKENS, PADDED_HEADS, PADDED,
        )  # fmt: skip


def turn(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, index: Tensor | None, half: bool, q_gain: Tensor | None,
    k_gain: Tensor | None, eps: float, back: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `rotary` gives, or with `back` its inverse; meaningless for a k of None."""
    size = Size(q, k, cos, index, half, q_gain)
    outs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, q if k is None else k)]
    views = [_strided(x) for x in (q, q if k is None else k)]
    tokens, num_warps = forward_tile(size)
    grid = (triton.cdiv(size.num_tokens, tokens), size.head_blocks, 1 if k is None else 2)
    gains = (q, q) if q_gain is None else (q_gain, q_gain if k_gain is None else k_gain)
    if size.num_tokens:
        _forward[grid](
            *(x for x, *_ in views), *outs, *gains, cos, sin, cos if index is None else index,
            *(length for _, length, *_ in views), size.num_tokens, len(cos), eps,
            *(stride for _, _, *strides in views for stride in strides),
            *size.constants, FULL=size.num_tokens % tokens == 0, BACK=back, TOKENS=tokens, **size.padded,
            num_warps=num_warps,
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
    tokens, num_warps = backward_tile(size)
    parts, columns = 1 if k_grad is None else 2, size.columns(learn)
    programs = max(1, min(num_programs(size) // parts, triton.cdiv(size.num_tokens, tokens)))
    rows = torch.empty(parts, programs * size.head_blocks, columns, dtype=torch.float32, device=q_grad.device)
    gains = (q_grad, q_grad) if q_gain is None else (q_gain, q_gain if k_gain is None else k_gain)
    _backward[(programs, size.head_blocks, parts)](
        *(x for x, *_ in views), q_out, k_out, *gains, cos, sin, cos if index is None else index, offsets, rows[0],
        rows[-1], *(length for _, length, *_ in views), size.num_tokens, len(cos), eps,
        *(stride for _, _, *strides in views for stride in strides), q_out.stride(-3), k_out.stride(-3),
        *size.constants, FULL=size.num_tokens % tokens == 0, LEARN=learn,
        OWN_OFFSETS=len(offsets) == size.num_tokens, STAGES=_STAGES, TOKENS=tokens, **size.padded, num_warps=num_warps,
    )  # fmt: skip
    if size.sets > 1:  # a block of heads has sums of its own
        rows = rows.view(parts, programs, size.sum_blocks * columns)
    sums = add_rows(rows, size.bands * learn if size.sets == 1 else 0)
    return sums.view(parts, size.sum_blocks, columns)


def add_rows(rows: Tensor, num_shared: int = 0) -> Tensor:
    """(parts, rows, columns) -> (parts, columns), summed in one fixed order.

    Args:
        num_shared: how many columns, the first ones, are summed over all parts.
    """
    parts, num_rows, columns = rows.shape
    sums = torch.empty(parts, columns, dtype=torch.float32, device=rows.device)
    if sums.numel():
        grid = (triton.cdiv(columns, _SUM_COLUMNS), parts)
        early = _starts_early(rows.device)
        _add_rows[grid](
            rows, sums, parts, num_rows, columns, num_shared, EARLY=early, ROWS=_SUM_ROWS, COLUMNS=_SUM_COLUMNS,
            num_warps=8, **({"launch_pdl": True} if early else {}),
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
    if learn and size.sets == 1:
        frequencies = sums[0, :, : size.bands]
    elif learn:
        heads = sums[..., : size.columns(learn) - size.norm * size.dim].reshape(len(sums), -1, size.bands)
        counts = (size.q_heads, size.k_heads)[: len(sums)]
        of_sets = [part[:count].unflatten(0, (size.sets, -1)).sum(1) for part, count in zip(heads, counts, strict=True)]
        frequencies = torch.stack(of_sets).sum(0)
    if size.norm:
        own = sums[..., -size.dim :]
        q_gain, *rest = own[:, 0] if size.sum_blocks == 1 else own.sum(1)
        k_gain = rest[0] if rest else None
    return frequencies, q_gain, k_gain


def forward_tile(size: "Size") -> tuple[int, int]:
    """Tokens a program takes and its warps; measured on an H200."""
    tokens = _power(1024 // size.elements)
    return tokens, max(1 if size.sets == 1 else 2, min(8, _power(tokens * size.elements // 1024)))


def backward_tile(size: "Size") -> tuple[int, int]:
    """Tokens a program takes at a time and its warps; measured on an H200 for the layouts of `lerope bench`.

    With few warps Triton spreads a large head over them in a way that a norm has to convert, at twice the instructions.
    """
    num_warps, of_warp = 2, 1024
    if size.sets > 1:
        of_warp = 512
    elif size.norm:
        num_warps = min(8, max(2, size.padded["PADDED"] // 16))
    tokens = _power(num_warps * of_warp // size.elements)
    return tokens, max(num_warps, min(8, _power(tokens * size.elements // 1024)))


def _power(number: int) -> int:
    """The largest power of two that is not larger; 1 if there is none."""
    return 1 << max(0, number.bit_length() - 1)


def num_programs(size: "Size") -> int:
    """Programs that share the tokens of a backward pass: measured, not the GPU's, so that sums agree on all GPUs."""
    if size.sets > 1:
        return 792 if size.norm else 1056
    if size.norm:
        return 1056 // backward_tile(size)[1]
    return 396 if size.q_heads == size.k_heads else 1056  # or one of them would end long before the other


class Size:
    """The sizes a launch needs, from its arguments."""

    def columns(self, learn: bool) -> int:
        """Sums that a program of the backward pass leaves."""
        own_heads = self.padded["PADDED_HEADS"] if self.sets > 1 else 1
        return self.bands * own_heads * learn + self.dim * self.norm

    def __init__(
        self, q: Tensor, k: Tensor | None, cos: Tensor, index: Tensor | None, half: bool, gain: Tensor | None
    ) -> None:
        self.dim, self.sets, self.bands = q.shape[-1], cos.shape[1], cos.shape[2]
        self.q_heads, self.k_heads = q.shape[-2], (q if k is None else k).shape[-2]
        self.num_tokens = math.prod(q.shape[:-2])
        self.norm = gain is not None
        padded = triton.next_power_of_2((self.dim + 1) // 2)
        most = max(self.q_heads, self.k_heads)
        padded_heads = min(triton.next_power_of_2(most), _power(_MAX_ELEMENTS // (2 * padded)))
        self.head_blocks = triton.cdiv(most, padded_heads)
        self.sum_blocks = 1 if self.sets == 1 else self.head_blocks
        """Blocks of heads that keep sums apart: where heads have frequencies of their own."""
        self.elements = padded_heads * 2 * padded
        self.padded = {"PADDED_HEADS": padded_heads, "PADDED": padded}
        self.constants = (
            self.q_heads, self.k_heads, self.dim, self.bands, self.sets, half, index is not None, self.norm
        )  # fmt: skip


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
