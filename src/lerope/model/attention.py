"""Causal attention that does not look across documents, behind one interface.

Shapes: q, k, v and the result are (rows, length, heads, head_dim); document ids are (rows, length).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from lerope.rotary.frequencies import check_choice

Backend = Literal["sdpa", "flex"]


class DocumentMask:
    """Which tokens may see which: earlier ones of the same document. Built once per forward pass, used by all layers.

    Args:
        document_ids: (rows, length), equal where tokens belong to one document; None if every row is one document.
        backend: `sdpa` works everywhere and writes out a dense mask; `flex` needs CUDA and skips masked blocks.
            None chooses flex on CUDA and sdpa elsewhere.
    """

    __slots__ = ("backend", "block", "dense")

    def __init__(self, document_ids: Tensor | None, backend: Backend | None = None):
        on_cuda = document_ids is not None and document_ids.is_cuda
        self.backend = backend or ("flex" if on_cuda else "sdpa")
        self.dense: Tensor | None = None
        self.block: Any = None
        check_choice("backend", self.backend, Backend)
        if document_ids is None:
            if self.backend == "flex":
                raise ValueError("backend 'flex' needs document_ids; got None, leave the backend open.")
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
            raise ValueError(f"backend 'flex' needs a CUDA device; got document_ids on {document_ids.device}.")
        else:
            self.block = _block_mask(document_ids)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k / sqrt(head_dim)) v over the tokens each query may see."""
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.block is not None:
            out: Tensor = _flex()(q, k, v, block_mask=self.block)
        else:
            out = functional.scaled_dot_product_attention(q, k, v, self.dense, is_causal=self.dense is None)
        return out.transpose(1, 2)


def _block_mask(document_ids: Tensor) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    rows, length = document_ids.shape
    return create_block_mask(visible, rows, None, length, length, device=str(document_ids.device))


@cache
def _flex() -> Callable[..., Any]:
    """FlexAttention is fast only when compiled; inside a compiled model this is the same call."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
