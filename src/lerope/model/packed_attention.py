"""Attention over documents that lie end to end, by the fastest kernels there are for it, as operators that compile.

cuDNN and FlashAttention both take a list of where documents start. It has a fixed number of slots, so that shapes stay
the same from step to step; those that are left over hold empty documents.
"""

import importlib.util
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

Library = Literal["cudnn", "flash"]

_aten = torch.ops.aten
# Slots come in such steps, so that their number seldom changes; each costs a little time even when it is empty.
_SLOTS = 64


class Packed:
    """Where documents lie in packed rows.

    Args:
        document_ids: (rows, length), on the device.
        library: whose kernels to use.
        num_documents: at least how many documents, where rows end documents, if the host knows; else they are counted,
            for which the host waits.
    """

    __slots__ = ("length", "library", "starts")

    def __init__(self, document_ids: Tensor, library: Library, num_documents: int | None = None):
        begins = torch.ones_like(document_ids, dtype=torch.int64)
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        which = begins.flatten().cumsum(0)
        slots = num_slots(int(which[-1]) if num_documents is None else num_documents)
        # Left unchecked, one document too many would be written past the end.
        torch._assert_async(which[-1] <= slots, "num_documents must be at least the number of documents")
        counts = torch.zeros(slots + 1, dtype=torch.int64, device=document_ids.device)
        counts.scatter_add_(0, which, torch.ones_like(which))
        self.starts = counts.cumsum(0).to(torch.int32)
        torch._dynamo.maybe_mark_dynamic(self.starts, 0)  # or a compiled model would be compiled again for more slots
        self.length, self.library = document_ids.shape[1], library

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k / sqrt(head_dim)) v over the tokens each query may see."""
        check_dtype(q)
        if self.library == "flash":
            out: Tensor = flash_attention(q, k, v, self.starts)[0]
        else:
            wide = self.starts.long()
            offsets = [wide * stride for stride in (*(_token_stride(t) for t in (q, k, v)), q.shape[2])]
            out = cudnn_attention(q, k, v, self.starts.diff(), *offsets)[0]
        return out


def check_dtype(x: Tensor) -> None:
    """Raises unless these kernels take tensors like x."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"backends varlen and cudnn need bfloat16 or float16; got {x.dtype}, use flex.")


def num_slots(num_documents: int) -> int:
    """Slots for so many documents."""
    return -(-num_documents // _SLOTS) * _SLOTS


def obstacle() -> str | None:
    """What keeps cuDNN's kernels from running; None if nothing does."""
    if importlib.util.find_spec("cudnn") is None:
        return "nvidia-cudnn-frontend is not installed"
    return None


@torch.library.custom_op("lerope::flash_attention", mutates_args=())
def flash_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of (rows, length, heads, head_dim) over documents, and the logsumexp for the backward pass."""
    length = q.shape[1]
    out, sums, *_ = _aten._flash_attention_forward(
        *_flat(q, k, v), starts, starts, length, length, 0.0, True, False
    )  # fmt: skip
    return out.view(q.shape), sums


@torch.library.custom_op("lerope::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    length = q.shape[1]
    unused = torch.zeros((), dtype=torch.int64, device=q.device)
    dq, dk, dv = _aten._flash_attention_backward(
        *_flat(grad, q, k, v, out), sums, starts, starts, length, length, 0.0, True, unused, unused
    )
    return dq.contiguous().view(q.shape), dk.contiguous().view(k.shape), dv.contiguous().view(v.shape)


def _flat(*tensors: Tensor) -> list[Tensor]:
    return [t.flatten(0, 1) for t in tensors]


@torch.library.custom_op("lerope::cudnn_attention", mutates_args=())
def cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, q_starts: Tensor, k_starts: Tensor, v_starts: Tensor,
    sum_starts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of (rows, length, heads, head_dim) over documents, and the logsumexp for the backward pass.

    Args:
        q, k, v: rows that follow one another without a gap, each token a block of heads; strides between tokens may
            differ.
        lengths: tokens of each document.
        q_starts, k_starts, v_starts, sum_starts: where each document starts, in elements of q, k, v and the sums, and
            where the last one ends.
    """
    return cudnn_forward(q, k, v, lengths, q_starts, k_starts, v_starts, sum_starts)


def cudnn_forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, q_starts: Tensor, k_starts: Tensor, v_starts: Tensor,
    sum_starts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `cudnn_attention` gives."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sums = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    strides = tuple(_token_stride(t) for t in (q, k, v))
    # The output lies like contiguous queries.
    own = q_starts if q.is_contiguous() else sum_starts * q.shape[-1]
    graph = _forward_graph(len(lengths), *q.shape, *strides, q.dtype, q.device)
    graph.run(q, k, v, out, sums, lengths, q_starts, k_starts, v_starts, sum_starts, own)
    return out, sums


@torch.library.custom_op("lerope::cudnn_attention_backward", mutates_args=())
def cudnn_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, lengths: Tensor, q_starts: Tensor,
    k_starts: Tensor, v_starts: Tensor, sum_starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, contiguous."""
    dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    own = q_starts if q.is_contiguous() else sum_starts * q.shape[-1]
    starts = (q_starts, k_starts, v_starts, sum_starts)
    cudnn_backward(grad, q, k, v, out, sums, dq, dk, dv, own, lengths, *starts)
    return dq, dk, dv


def cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    grad_starts: Tensor, lengths: Tensor, q_starts: Tensor, k_starts: Tensor, v_starts: Tensor, sum_starts: Tensor,
) -> None:  # fmt: skip
    """Fills dq, which is contiguous, and dk and dv, in which documents start at `grad_starts`.

    cuDNN 9.19 writes a wrong dq where its tokens do not lie one after the other.
    """
    strides = tuple(_token_stride(t) for t in (q, k, v, dk))
    own = q_starts if q.is_contiguous() else sum_starts * q.shape[-1]
    graph = _backward_graph(len(lengths), *q.shape, *strides, q.dtype, q.device)
    starts = (q_starts, k_starts, v_starts, sum_starts)
    graph.run(q, k, v, out, sums, grad, dq, dk, dv, lengths, *starts, own, grad_starts)


def _token_stride(x: Tensor) -> int:
    """Elements from one token to the next, which must be the same within rows and between them."""
    rows, length, heads, head_dim = x.shape
    stride = x.stride(1) if length > 1 else x.stride(0)
    wanted = ((rows, length * stride), (length, stride), (heads, head_dim), (head_dim, 1))
    if any(size > 1 and own != there for (size, own), there in zip(wanted, x.stride(), strict=True)):
        raise ValueError(
            f"backend 'cudnn' needs heads side by side and tokens evenly spaced; got strides {x.stride()} for shape "
            f"{tuple(x.shape)}, pass a contiguous tensor."
        )
    return stride


class _Graph:
    """A computation that cuDNN has compiled, and the tensors it takes, in order."""

    def __init__(self, graph: Any, handle: Any, tensors: list[Any], device: torch.device) -> None:
        import cudnn

        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self._graph, self._handle, self._tensors, self._device = graph, handle, tensors, device
        self._workspace_bytes = graph.get_workspace_size()

    def run(self, *tensors: Tensor) -> None:
        """Runs it on the current stream."""
        import cudnn

        cudnn.set_stream(handle=self._handle, stream=torch.cuda.current_stream(self._device).cuda_stream)
        workspace = torch.empty(self._workspace_bytes, dtype=torch.uint8, device=self._device)
        pack = dict(zip(self._tensors, tensors, strict=True))
        self._graph.execute(pack, workspace, handle=self._handle)


@cache
def _handle(device: torch.device) -> Any:
    import cudnn

    with torch.cuda.device(device):
        return cudnn.create_handle()


class _Builder:
    """Tensors of a graph over documents with these sizes."""

    def __init__(self, slots: int, length: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device):
        import cudnn

        kinds = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}
        self.kind, self.float32 = kinds[dtype], cudnn.data_type.FLOAT
        self.int32, self.int64 = cudnn.data_type.INT32, cudnn.data_type.INT64
        self.slots, self.length, self.heads, self.head_dim = slots, length, heads, head_dim
        self.handle = _handle(device)
        self.graph = cudnn.pygraph(
            handle=self.handle,
            io_data_type=self.kind,
            intermediate_data_type=self.float32,
            compute_data_type=self.float32,
        )

    def lengths(self) -> Any:
        return self.graph.tensor(dim=[self.slots, 1, 1, 1], stride=[1, 1, 1, 1], data_type=self.int32)

    def starts(self) -> Any:
        return self.graph.tensor(dim=[self.slots + 1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=self.int64)

    def heads_of(self, token_stride: int, starts: Any) -> Any:
        tensor = self.graph.tensor(dim=self._dim(), stride=self._stride(token_stride), data_type=self.kind)
        tensor.set_ragged_offset(starts)
        return tensor

    def sums(self, starts: Any) -> Any:
        tensor = self.graph.tensor(dim=[*self._dim()[:3], 1], stride=self._sum_stride(), data_type=self.float32)
        tensor.set_ragged_offset(starts)
        return tensor

    def gives(self, tensor: Any, token_stride: int, starts: Any) -> None:
        """Makes a result of the graph an output that lies so."""
        tensor.set_output(True).set_dim(self._dim()).set_stride(self._stride(token_stride)).set_ragged_offset(starts)

    def gives_sums(self, tensor: Any, starts: Any) -> None:
        tensor.set_output(True).set_data_type(self.float32)
        tensor.set_dim([*self._dim()[:3], 1]).set_stride(self._sum_stride()).set_ragged_offset(starts)

    def _dim(self) -> list[int]:
        return [self.slots, self.heads, self.length, self.head_dim]

    def _stride(self, token_stride: int) -> list[int]:
        return [self.length * token_stride, self.head_dim, token_stride, 1]

    def _sum_stride(self) -> list[int]:
        return [self.length * self.heads, 1, self.heads, 1]


@cache
def _forward_graph(
    slots: int, rows: int, length: int, heads: int, head_dim: int, q_stride: int, k_stride: int, v_stride: int,
    dtype: torch.dtype, device: torch.device,
) -> _Graph:  # fmt: skip
    build = _Builder(slots, length, heads, head_dim, dtype, device)
    lengths, *starts, sum_starts, own = build.lengths(), *(build.starts() for _ in range(5))
    strides = (q_stride, k_stride, v_stride)
    q, k, v = (build.heads_of(stride, start) for stride, start in zip(strides, starts, strict=True))
    out, sums = build.graph.sdpa(
        name="attention",
        q=q,
        k=k,
        v=v,
        is_inference=False,
        attn_scale=head_dim**-0.5,
        use_padding_mask=True,
        seq_len_q=lengths,
        seq_len_kv=lengths,
        use_causal_mask=True,
    )
    build.gives(out, heads * head_dim, own)
    build.gives_sums(sums, sum_starts)
    return _Graph(build.graph, build.handle, [q, k, v, out, sums, lengths, *starts, sum_starts, own], device)


@cache
def _backward_graph(
    slots: int, rows: int, length: int, heads: int, head_dim: int, q_stride: int, k_stride: int, v_stride: int,
    grad_stride: int, dtype: torch.dtype, device: torch.device,
) -> _Graph:  # fmt: skip
    build = _Builder(slots, length, heads, head_dim, dtype, device)
    lengths, *starts, sum_starts, own, grad_starts = build.lengths(), *(build.starts() for _ in range(6))
    strides, whole = (q_stride, k_stride, v_stride), heads * head_dim
    q, k, v = (build.heads_of(stride, start) for stride, start in zip(strides, starts, strict=True))
    out, grad = (build.heads_of(whole, own) for _ in range(2))
    sums = build.sums(sum_starts)
    grads = build.graph.sdpa_backward(
        name="attention_backward",
        q=q,
        k=k,
        v=v,
        o=out,
        dO=grad,
        stats=sums,
        attn_scale=head_dim**-0.5,
        use_padding_mask=True,
        seq_len_q=lengths,
        seq_len_kv=lengths,
        use_causal_mask=True,
        max_total_seq_len_q=rows * length,
        max_total_seq_len_kv=rows * length,
    )
    for each, stride, begin in zip(grads, (whole, *(grad_stride,) * 2), (own, *(grad_starts,) * 2), strict=True):
        build.gives(each, stride, begin)
    tensors = [q, k, v, out, sums, grad, *grads, lengths, *starts, sum_starts, own, grad_starts]
    return _Graph(build.graph, build.handle, tensors, device)


@flash_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    rows, length, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, rows * length), dtype=torch.float32)


@flash_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@cudnn_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, q_starts: Tensor, k_starts: Tensor, v_starts: Tensor,
    sum_starts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@cudnn_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, lengths: Tensor, q_starts: Tensor,
    k_starts: Tensor, v_starts: Tensor, sum_starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:])


def _flash_back(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*flash_attention_backward(grad.contiguous(), *ctx.saved_tensors), None)


def _cudnn_back(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*cudnn_attention_backward(grad.contiguous(), *ctx.saved_tensors), *(None,) * 5)


flash_attention.register_autograd(_flash_back, setup_context=_keep)
cudnn_attention.register_autograd(_cudnn_back, setup_context=_keep)
