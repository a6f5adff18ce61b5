"""Causal attention that does not look across documents, behind one interface.

Shapes: q, k, v and the result are (rows, length, heads, head_dim); document ids are (rows, length).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lerope.core.checks import check_choice
from lerope.core.extras import install
from lerope.model.kernels import packed_attention

Backend = Literal["sdpa", "flex", "varlen", "flash4"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
PACKED: dict[Backend, packed_attention.Version] = {"varlen": 2, "flash4": 4}

_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
# Each once: torch 2.13 writes past the end of its own list where a compiled graph names one twice.
_READY_FIRST = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, *_FASTEST_FIRST[2:]]
# Side, in tokens, of the blocks that FlexAttention skips or computes.
_BLOCK = 128


class DocumentMask:
    """Which tokens may see which: earlier ones of the same document. Built once per forward pass, used by all layers.

    Args:
        document_ids: (rows, length), equal where tokens belong to the same document, which is contiguous; None if every
            row is one document.
        backend: how to attend.
            `sdpa` works everywhere and writes out a dense mask.
            `flex` needs CUDA and skips blocks of the mask that are empty: good for short documents.
            `varlen` needs Ampere or later and 16 bits: FlashAttention 2 over documents end to end.
            `flash4` needs Hopper or later, 16 bits and flash-attn-4: FlashAttention 4 over documents end to end.
            None takes flex on CUDA and sdpa elsewhere; `lerope.model.kernels.fastest` measures.
        num_documents: an upper bound on the number of documents, counted separately in every row. `varlen` and
            `flash4` otherwise wait for the device to count them.
    """

    __slots__ = ("backend", "block", "dense", "packed")

    def __init__(self, document_ids: Tensor | None, backend: Backend | None = None, num_documents: int | None = None):
        on_cuda = document_ids is not None and document_ids.is_cuda
        self.backend: Backend = backend or ("flex" if on_cuda else "sdpa")
        self.dense: Tensor | None = None
        self.block: Any = None
        self.packed: packed_attention.Packed | None = None
        check_choice("backend", self.backend, Backend)
        if document_ids is None:
            if self.backend != "sdpa":
                raise ValueError(f"backend {self.backend!r} needs document_ids; got None; leave the backend open.")
            return
        if document_ids.ndim != 2 or document_ids.is_floating_point():
            raise ValueError(
                f"document_ids must be integers of shape (rows, length); got {document_ids.dtype} of shape "
                f"{tuple(document_ids.shape)}."
            )
        if self.backend == "sdpa":
            same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
            self.dense = same.tril_()
        elif not on_cuda:
            raise ValueError(
                f"backend {self.backend!r} needs a CUDA device; got document_ids on {document_ids.device}."
            )
        elif self.backend == "flex":
            self.block = _block_mask(document_ids)
        else:
            reason = backend_obstacle(self.backend, document_ids.device, torch.bfloat16)
            if reason is not None:
                raise ValueError(reason)
            self.packed = packed_attention.Packed(document_ids, PACKED[self.backend], num_documents)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k / sqrt(head_dim)) v over the tokens each query may see."""
        if self.packed is not None:
            return self.packed.attend(q, k, v)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.block is not None:
            # What a measurement on an H200 found fastest; larger heads have no room for it.
            small = q.element_size() == 2 and q.shape[-1] <= 64
            options = {"BLOCK_M": 128, "BLOCK_N": 64} if small else None
            out: Tensor = _flex()(q, k, v, block_mask=self.block, kernel_options=options)
        elif self.dense is None and q.is_cuda:
            # cuDNN is fastest on Hopper, but plans for a tenth of a second for each new shape: rows have one shape in
            # training, many in evaluation.
            with sdpa_kernel(_FASTEST_FIRST if torch.is_grad_enabled() else _READY_FIRST, set_priority=True):
                out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            out = functional.scaled_dot_product_attention(q, k, v, self.dense, is_causal=self.dense is None)
        return out.transpose(1, 2)


def backend_obstacle(backend: Backend, device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps a backend from running; None if nothing does."""
    if backend == "sdpa":
        return None
    if device.type != "cuda":
        return f"attention must be auto or sdpa on a {device.type.upper()}; got {backend!r}, which needs a CUDA device."
    if backend in PACKED:
        if dtype not in (torch.bfloat16, torch.float16):
            return (
                f"attention must be auto, sdpa or flex in float32; got {backend!r}, which needs 16 bits: train in bf16."
            )
        reason = packed_attention.flash_obstacle(PACKED[backend], device)
        if reason is not None:
            fix = f"{install('fast')} on Hopper or later, or use auto" if backend == "flash4" else "use auto"
            return f"attention {backend!r} cannot run: {reason}; {fix}."
    return None


def _block_mask(document_ids: Tensor) -> Any:
    """FlexAttention's mask, from the smallest and largest id of each block, without a look at pairs of tokens."""
    from torch.nn.attention.flex_attention import BlockMask

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    rows, length = document_ids.shape
    num_blocks = -(-length // _BLOCK)
    last = document_ids[:, -1:].expand(-1, num_blocks * _BLOCK - length)
    blocks = torch.cat((document_ids, last), 1).view(rows, num_blocks, _BLOCK)
    least, greatest = blocks.amin(-1), blocks.amax(-1)
    (low_q, low_k), (high_q, high_k) = ((t[:, :, None], t[:, None, :]) for t in (least, greatest))
    some = ((low_q <= high_k) & (low_k <= high_q)).tril()
    # A block of one document sees all of another such block before it.
    every = ((low_q == high_k) & (low_k == high_q) & (low_q == low_k)).tril(-1)
    (part_count, part), (full_count, full) = (_listed(t[:, None]) for t in (some & ~every, every))
    return BlockMask.from_kv_blocks(
        part_count, part, full_count, full, BLOCK_SIZE=_BLOCK, mask_mod=visible, seq_lengths=(length, length)
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row of a mask has, and which: they come first."""
    which = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), which.to(torch.int32)


@cache
def _flex() -> Callable[..., Any]:
    """FlexAttention is fast only when compiled; inside a compiled model this is the same call."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
