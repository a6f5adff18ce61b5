"""Where documents lie, for the kernels that need a GPU: lists of starts, slots, and what is refused."""

import pytest
import torch

from lerope.model import attention, packed_attention
from lerope.model.packed_attention import Packed, _token_stride, num_slots, obstacle

IDS = torch.tensor([[1, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1], [3, 2, 2, 2, 2, 0]])
STARTS = [0, 3, 4, 6, 12, 13, 17, 18]


@pytest.mark.parametrize("num_documents", [None, 7, 8, 64])
def test_starts_of_documents_then_empty_ones(num_documents):
    """A row always starts a document, also where the row before ended with the same id."""
    packed = Packed(IDS, "flash", num_documents)
    assert packed.starts.dtype == torch.int32
    assert packed.starts.tolist() == STARTS + [18] * (65 - len(STARTS))
    assert packed.length == 6


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_ids_of_any_integer_type(dtype):
    assert Packed(IDS.to(dtype), "cudnn").starts[:8].tolist() == STARTS


def test_documents_of_one_token_fill_all_slots():
    ids = torch.arange(128).view(2, 64)
    assert Packed(ids, "flash").starts.tolist() == [*range(129)]
    assert Packed(ids, "flash", 200).starts.tolist() == [*range(129)] + [128] * (num_slots(200) - 128)


def test_rows_of_one_document():
    assert Packed(torch.zeros(3, 50, dtype=torch.int64), "flash").starts[:4].tolist() == [0, 50, 100, 150]


@pytest.mark.parametrize(("documents", "slots"), [(1, 64), (63, 64), (64, 64), (65, 128), (1000, 1024)])
def test_slots_come_in_steps(documents, slots):
    """So that shapes, and with them compiled kernels, seldom change."""
    assert num_slots(documents) == slots
    ids = torch.arange(documents)[None]
    assert len(Packed(ids, "flash", documents).starts) == slots + 1


def test_more_documents_than_room_are_never_merged_without_a_word():
    """A host that promised too few: an error, not attention across documents."""
    with pytest.raises((RuntimeError, ValueError)):
        Packed(torch.arange(65)[None], "flash", 64)


def test_float32_is_refused():
    q = torch.randn(1, 6, 2, 8)
    for library in ("flash", "cudnn"):
        with pytest.raises(ValueError, match=r"backends varlen and cudnn need bfloat16 or float16; got torch.float32"):
            Packed(IDS[:1], library).attend(q, q, q)


def test_strides_that_cudnn_takes():
    qkv = torch.randn(2, 5, 3, 4, 8)
    assert [_token_stride(x) for x in qkv.unbind(2)] == [96, 96, 96]
    assert _token_stride(qkv[:, :, 0].contiguous()) == 32
    assert _token_stride(qkv[:1, :, 1]) == 96


STRIDES = {
    "heads before tokens": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "a gap between rows": lambda x: torch.cat((x, x), 1)[:, :5],
    "a gap between heads": lambda x: torch.cat((x, x), 3)[..., :8],
    "dimensions apart": lambda x: torch.stack((x, x), -1)[..., 0],
    "rows that are one": lambda x: x[:1].expand(2, -1, -1, -1),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides_that_cudnn_cannot_take_are_one_sentence(name):
    x = STRIDES[name](torch.randn(2, 5, 4, 8))
    with pytest.raises(ValueError, match="cudnn") as problem:
        _token_stride(x)
    assert str(problem.value) == (
        f"backend 'cudnn' needs heads side by side and tokens evenly spaced; got strides {x.stride()} for shape "
        "(2, 5, 4, 8), pass a contiguous tensor."
    )


def test_one_row_or_one_head_may_have_any_stride_there():
    """Torch gives a dimension of size one whatever stride it likes, and no kernel ever uses it."""
    row = torch.randn(5, 1, 4, 8).transpose(0, 1)
    head = torch.randn(2, 5, 8, 3)[..., :1].transpose(2, 3).contiguous().as_strided((2, 5, 1, 8), (40, 8, 3, 1))
    assert _token_stride(row) == 32
    assert _token_stride(head) == 8


def test_cudnn_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert obstacle() == "nvidia-cudnn-frontend is not installed"
    sentence = attention.obstacle("cudnn", torch.device("cuda"), torch.bfloat16)
    assert sentence == (
        "attention 'cudnn' cannot run: nvidia-cudnn-frontend is not installed; "
        "pip install 'lerope[cudnn]', or take auto."
    )
    assert attention.obstacle("varlen", torch.device("cuda"), torch.bfloat16) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert packed_attention.obstacle() is None


@pytest.mark.parametrize("backend", ["flex", "varlen", "cudnn"])
def test_what_keeps_backends_from_running(backend):
    device, cuda = torch.device("cpu"), torch.device("cuda")
    assert attention.obstacle("sdpa", device, torch.float32) is None
    sentence = attention.obstacle(backend, device, torch.bfloat16)
    assert sentence == f"attention must be auto or sdpa on a CPU; got {backend!r}, which needs a CUDA device."
    wide = attention.obstacle(backend, cuda, torch.float32)
    assert (wide is None) == (backend == "flex")
    assert wide is None or wide.startswith("attention must be auto, sdpa or flex in float32; got ")


def test_the_operators_know_their_shapes_without_running():
    """What a compiled model asks before there is any data: fake tensors in, fake tensors out."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = torch.empty(2, 5, 3, 4, 8, dtype=torch.bfloat16).unbind(2)
        starts, lengths = torch.empty(65, dtype=torch.int32), torch.empty(64, dtype=torch.int32)
        wide = torch.empty(65, dtype=torch.int64)
        out, sums = packed_attention.flash_attention(q, k, v, starts)
        assert (out.shape, out.is_contiguous(), sums.shape) == ((2, 5, 4, 8), True, (4, 10))
        out, sums = packed_attention.cudnn_attention(q, k, v, lengths, wide, wide, wide, wide)
        assert (out.shape, out.is_contiguous(), sums.shape) == ((2, 5, 4, 8), True, (2, 5, 4))
        assert sums.dtype == torch.float32
