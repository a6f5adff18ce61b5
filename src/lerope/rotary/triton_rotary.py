"""Rotary, and RMS norm + rotary, as Triton kernels at the speed of memory, with the gradient of the frequencies.

What makes them fast: cos and sin come from a small float32 table that stays in the GPU's cache; a program takes all
heads of a token or many, so that a table row is read once or seldom; the backward pass reads only what it would read
for fixed frequencies and a norm, keeps its sums in registers, and adds up the few sums of all programs in a second,
fixed order.

Queries and keys share a launch, each in tiles of its own number of heads. The check in float64 is `formula.py`;
`triton_launch.py` says which program takes what, and `operators.py` is the way to autograd.
"""

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # a Triton for another vendor's GPUs, where nothing starts early
    gdc_wait = None


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
def _turned_back(a, b, c, s):
    """By -s, whose sign would cost Triton an instruction."""
    return a * c + b * s, b * c - a * s


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
    program, x, out, gain, cos, sin, index, length, num_tokens, num_table, row_stride, token_stride, head_stride, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr, HALF: tl.constexpr,
    HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr, BACK: tl.constexpr,
    TOKENS: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (HEADS + PADDED_HEADS - 1) // PADDED_HEADS
    token = (program // BLOCKS * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    head = (program % BLOCKS * PADDED_HEADS + tl.arange(0, PADDED_HEADS))[None, :, None]
    here = _tokens_left(token, num_tokens, FULL)
    inside = here & (head < HEADS)
    start = _starts(x, token, head, length, row_stride, token_stride, head_stride)
    target = out + (token.to(tl.int64) * HEADS + head) * DIM
    c, s, _ = _angles(cos, sin, index, token, head, here, num_table, HAS_INDEX, SETS, HEADS, BANDS, PADDED)
    a, b = _pair(start, inside, BANDS, DIM, PADDED, HALF)
    if NORM:
        gain_a, gain_b = _gains(gain, BANDS, DIM, PADDED, HALF)
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=2, keep_dims=True) * (1.0 / DIM) + eps)
        a = a * scale * gain_a
        b = b * scale * gain_b
    if BACK:
        a, b = _turned_back(a, b, c, s)
    else:
        a, b = _turned(a, b, c, s)
    _put_pair(target, a, b, inside, BANDS, DIM, PADDED, HALF)


@triton.jit
def forward(
    q, k, q_out, k_out, q_gain, k_gain, cos, sin, index,
    q_length, k_length, num_tokens, num_table, eps,
    q_row_stride, q_token_stride, q_head_stride, k_row_stride, k_token_stride, k_head_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr,
    HALF: tl.constexpr, HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr,
    BACK: tl.constexpr,
    Q_TOKENS: tl.constexpr, Q_PADDED_HEADS: tl.constexpr, K_TOKENS: tl.constexpr, K_PADDED_HEADS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Programs: a block of tokens' block of heads each, first those of the queries."""
    program = tl.program_id(0)
    q_programs = tl.cdiv(num_tokens, Q_TOKENS) * ((Q_HEADS + Q_PADDED_HEADS - 1) // Q_PADDED_HEADS)
    if program < q_programs:
        _forward_part(
            program, q, q_out, q_gain, cos, sin, index, q_length, num_tokens, num_table, q_row_stride, q_token_stride,
            q_head_stride, eps, Q_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, BACK,
            Q_TOKENS, Q_PADDED_HEADS, PADDED,
        )  # fmt: skip
    else:
        _forward_part(
            program - q_programs, k, k_out, k_gain, cos, sin, index, k_length, num_tokens, num_table, k_row_stride,
            k_token_stride, k_head_stride, eps, K_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, BACK,
            K_TOKENS, K_PADDED_HEADS, PADDED,
        )  # fmt: skip


@triton.jit
def _backward_part(
    program, programs, grad, saved, out, gain, cos, sin, index, offsets, sums, num_columns,
    grad_length, saved_length, num_tokens, num_table, eps,
    grad_row_stride, grad_token_stride, grad_head_stride, saved_row_stride, saved_token_stride, saved_head_stride,
    out_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr, HALF: tl.constexpr,
    HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr,
    LEARN: tl.constexpr, OWN_OFFSETS: tl.constexpr, STAGES: tl.constexpr,
    TOKENS: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (HEADS + PADDED_HEADS - 1) // PADDED_HEADS
    head = (program % BLOCKS * PADDED_HEADS + tl.arange(0, PADDED_HEADS))[None, :, None]
    turning = tl.zeros((TOKENS, PADDED_HEADS, PADDED), tl.float32)
    if NORM:
        gain_a, gain_b = _gains(gain, BANDS, DIM, PADDED, HALF)
        sum_a = tl.zeros((TOKENS, PADDED_HEADS, PADDED), tl.float32)
        sum_b = tl.zeros((TOKENS, PADDED_HEADS, PADDED), tl.float32)
    for block in tl.range(program // BLOCKS, tl.cdiv(num_tokens, TOKENS), programs // BLOCKS, num_stages=STAGES):
        token = (block * TOKENS + tl.arange(0, TOKENS))[:, None, None]
        here = _tokens_left(token, num_tokens, FULL)
        inside = here & (head < HEADS)
        start = _starts(grad, token, head, grad_length, grad_row_stride, grad_token_stride, grad_head_stride)
        target = out + token.to(tl.int64) * out_stride + head * DIM
        c, s, row = _angles(cos, sin, index, token, head, here, num_table, HAS_INDEX, SETS, HEADS, BANDS, PADDED)
        # Turned back: the gradient before the rotation.
        turned_a, turned_b = _pair(start, inside, BANDS, DIM, PADDED, HALF)
        grad_a, grad_b = _turned_back(turned_a, turned_b, c, s)
        if NORM or LEARN:
            origin = _starts(saved, token, head, saved_length, saved_row_stride, saved_token_stride, saved_head_stride)
            a, b = _pair(origin, inside, BANDS, DIM if NORM else 2 * BANDS, PADDED, HALF)
        if LEARN:
            offset = tl.load(offsets + (token if OWN_OFFSETS else row), mask=here, other=0.0)
        if NORM:
            # x -> x * scale * gain. Both sums over a head are taken at once, of x as it is.
            squares = tl.sum(a * a + b * b, axis=2, keep_dims=True)
            pull_a = grad_a * gain_a
            pull_b = grad_b * gain_b
            along = tl.sum(pull_a * a + pull_b * b, axis=2, keep_dims=True)
            scale = tl.rsqrt(squares * (1.0 / DIM) + eps)
            a *= scale
            b *= scale
            sum_a += grad_a * a
            sum_b += grad_b * b
            along *= scale * (1.0 / DIM)
            grad_a = (pull_a - a * along) * scale
            grad_b = (pull_b - b * along) * scale
            if LEARN:
                # The output again, rounded as it was: with numbers other than those attention saw, what queries and
                # keys turn each other by would not cancel.
                a, b = _turned(a * gain_a, b * gain_b, c, s)
                a = a.to(grad.dtype.element_ty).to(tl.float32)
                b = b.to(grad.dtype.element_ty).to(tl.float32)
        if LEARN:
            # Of the rotated output, so that the incoming gradient goes with it as it is.
            turning += (turned_b * a - turned_a * b) * offset
        _put_pair(target, grad_a, grad_b, inside, BANDS, DIM, PADDED, HALF)
    # A row of sums for each program: of the frequencies and of the gain. Where heads have frequencies of their own, the
    # programs that share the heads of a block of tokens lie in one row.
    band = tl.arange(0, PADDED)
    own: tl.constexpr = BANDS * (PADDED_HEADS if SETS > 1 else 1) * LEARN
    if SETS > 1:
        place = sums + program // BLOCKS * num_columns + program % BLOCKS * (own + DIM * NORM)
    else:
        place = sums + program * num_columns
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
def add_up(
    rows, out, num_first, num_rows, num_columns, num_shared,
    EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of columns over the rows of a part, and of shared ones over all; programs (block of columns, part).

    The first rows are those of the first part. The second stage, in one fixed order.
    """
    if EARLY:
        gdc_wait()  # for the kernel that fills the rows
    part = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, num_rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        counts = (row < num_rows) & (((row >= num_first) == (part > 0)) | (column < num_shared))
        total += tl.load(rows + row * num_columns + column, mask=counts & (column < num_columns), other=0.0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + part * num_columns + column, tl.sum(total, axis=0), mask=column < num_columns)


@triton.jit
def backward(
    q_grad, k_grad, q_saved, k_saved, q_out, k_out, q_gain, k_gain, cos, sin, index, offsets,
    q_sums, k_sums, num_columns, q_programs,
    qg_length, kg_length, qs_length, ks_length, num_tokens, num_table, eps,
    qg_row, qg_token, qg_head, kg_row, kg_token, kg_head, qs_row, qs_token, qs_head, ks_row, ks_token, ks_head,
    q_out_stride, k_out_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, DIM: tl.constexpr, BANDS: tl.constexpr, SETS: tl.constexpr,
    HALF: tl.constexpr, HAS_INDEX: tl.constexpr, NORM: tl.constexpr, FULL: tl.constexpr,
    LEARN: tl.constexpr, OWN_OFFSETS: tl.constexpr, STAGES: tl.constexpr,
    Q_TOKENS: tl.constexpr, Q_PADDED_HEADS: tl.constexpr, K_TOKENS: tl.constexpr, K_PADDED_HEADS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Programs: a share of the tokens' block of heads each, first those of the queries."""
    program = tl.program_id(0)
    if program < q_programs:
        _backward_part(
            program, q_programs, q_grad, q_saved, q_out, q_gain, cos, sin, index, offsets, q_sums, num_columns,
            qg_length, qs_length, num_tokens, num_table, eps,
            qg_row, qg_token, qg_head, qs_row, qs_token, qs_head, q_out_stride,
            Q_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, LEARN, OWN_OFFSETS, STAGES,
            Q_TOKENS, Q_PADDED_HEADS, PADDED,
        )  # fmt: skip
    else:
        _backward_part(
            program - q_programs, tl.num_programs(0) - q_programs,
            k_grad, k_saved, k_out, k_gain, cos, sin, index, offsets, k_sums, num_columns,
            kg_length, ks_length, num_tokens, num_table, eps,
            kg_row, kg_token, kg_head, ks_row, ks_token, ks_head, k_out_stride,
            K_HEADS, DIM, BANDS, SETS, HALF, HAS_INDEX, NORM, FULL, LEARN, OWN_OFFSETS, STAGES,
            K_TOKENS, K_PADDED_HEADS, PADDED,
        )  # fmt: skip
