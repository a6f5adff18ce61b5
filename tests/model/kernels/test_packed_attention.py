"""Where documents lie, for the kernels that need a GPU: lists of starts, slots, and what is refused.

FlashAttention 4 is not installed here: torch plays its part.
"""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lerope
from lerope.model import attention
from lerope.model.attention import DocumentMask
from lerope.model.kernels import packages, packed_attention
from lerope.model.kernels.packed_attention import (
    Packed,
    check,
    flash_attention,
    flash_attention_backward,
    flash_obstacle,
    num_slots,
)
from tests.model.kernels.played_quack import Stop

IDS = torch.tensor([[1, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1], [3, 2, 2, 2, 2, 0]])
STARTS = [0, 3, 4, 6, 12, 13, 17, 18]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("num_documents", [None, 7, 8, 64])
def test_starts_of_documents_then_empty_ones(num_documents):
    """A row always starts a document, also where the row before ended with the same id."""
    packed = Packed(IDS, 2, num_documents)
    assert packed.starts.dtype == torch.int32
    assert packed.starts.tolist() == STARTS + [18] * (65 - len(STARTS))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_ids_of_any_integer_type(dtype):
    assert Packed(IDS.to(dtype), 4).starts[:8].tolist() == STARTS


def test_documents_of_one_token_fill_all_slots():
    ids = torch.arange(128).view(2, 64)
    assert Packed(ids, 2).starts.tolist() == [*range(129)]
    assert Packed(ids, 2, 200).starts.tolist() == [*range(129)] + [128] * (num_slots(200) - 128)


def test_rows_of_one_document():
    assert Packed(torch.zeros(3, 50, dtype=torch.int64), 2).starts[:4].tolist() == [0, 50, 100, 150]


@pytest.mark.parametrize(("documents", "slots"), [(1, 64), (63, 64), (64, 64), (65, 128), (1000, 1024)])
def test_slots_come_in_steps(documents, slots):
    """So that shapes, and with them compiled kernels, seldom change."""
    assert num_slots(documents) == slots
    ids = torch.arange(documents)[None]
    assert len(Packed(ids, 2, documents).starts) == slots + 1


def test_more_documents_than_room_are_never_merged_without_a_word():
    """A host that promised too few: an error, not attention across documents."""
    with pytest.raises((RuntimeError, ValueError)):
        Packed(torch.arange(65)[None], 2, 64)


def test_float32_is_refused():
    q = torch.randn(1, 6, 2, 8)
    for version in (2, 4):
        with pytest.raises(ValueError, match=r"^backend.* got torch\.float32"):
            Packed(IDS[:1], version).attend(q, q, q)


@pytest.mark.parametrize("head_dim", [4, 12, 100, 264, 512])
def test_heads_that_flash_attention_4_cannot_take(head_dim):
    """A sentence here, where the library would have an assertion or a crash; torch pads for version 2."""
    x = torch.empty(1, 6, 2, head_dim, dtype=torch.bfloat16)
    sentence = f"^backend flash4 .*head_dim.* got {head_dim}"
    with pytest.raises(ValueError, match=sentence):
        check(x, 4)
    with pytest.raises(ValueError, match=sentence):
        Packed(IDS[:1], 4).attend(x, x, x)
    check(x, 2)


@pytest.mark.parametrize("head_dim", [8, 64, 96, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_heads_that_it_can(head_dim, dtype):
    for version in (2, 4):
        check(torch.empty(1, 6, 2, head_dim, dtype=dtype), version)


def test_the_fused_operator_checks_heads_as_well():
    pytest.importorskip("triton")
    from lerope.model.kernels.fused_attention import attend

    for dtype, head_dim, sentence in (
        (torch.float32, 8, r"got torch\.float32"),
        (torch.float16, 12, "head_dim.* got 12"),
    ):
        with pytest.raises(ValueError, match=sentence):
            attend(torch.empty(1, 6, 3, 2, head_dim, dtype=dtype), None, Packed(IDS[:1], 4))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """FlashAttention 4 as a package that can be imported, on a GPU that is not there; what was asked for."""
    asked = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packages.os, "environ", dict(packages.os.environ))  # an import says there where to compile
    packages.import_obstacle.cache_clear()
    monkeypatch.setattr(packages, "version", lambda package: asked.append(package) or "4.0.1")
    monkeypatch.setattr(packages, "import_module", asked.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or (9, 0))
    yield asked
    packages.import_obstacle.cache_clear()


def check_refused(reason):
    """A mask on a GPU that is not there says what keeps FlashAttention 4 from running, and what helps."""
    sentence = attention.backend_obstacle("flash4", CUDA, torch.bfloat16)
    for part in ("attention 'flash4'", reason, "flash-attn-4"):
        assert part in sentence
    with FakeTensorMode():
        ids = torch.empty(3, 6, dtype=torch.int64, device="cuda")
        with pytest.raises(ValueError, match=re.escape(sentence)):
            DocumentMask(ids, "flash4", 7)


def test_flash_attention_4_that_is_not_installed(installed, monkeypatch):
    """The package `flash_attn` alone says nothing: that of FlashAttention 2 has the same name."""
    monkeypatch.setattr(packages, "version", lambda package: None if package == "flash-attn-4" else "2.8")
    assert "flash-attn-4" in flash_obstacle(4, CUDA)
    check_refused(flash_obstacle(4, CUDA))
    assert not installed
    assert attention.backend_obstacle("varlen", CUDA, torch.bfloat16) is None


@pytest.mark.parametrize(("capability", "runs"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 3), True)])
def test_flash_attention_4_needs_hopper_or_later(installed, monkeypatch, capability, runs):
    second = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: installed.append(device) or capability)
    reason = flash_obstacle(4, second)
    assert second in installed
    # An import takes seconds, and may fail where nothing could run anyway.
    assert ("flash_attn.cute.interface" in installed) == runs
    if runs:
        assert reason is attention.backend_obstacle("flash4", CUDA, torch.float16) is None
    else:
        assert "{}.{}".format(*capability) in reason
        check_refused(reason)


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_flash_attention_2_needs_ampere_or_later(monkeypatch, capability, runs):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    reason, sentence = flash_obstacle(2, CUDA), attention.backend_obstacle("varlen", CUDA, torch.bfloat16)
    assert (reason is None) == (sentence is None) == runs
    if not runs:
        assert "8.0" in reason
        assert "7.5" in reason
        assert sentence.startswith(f"attention 'varlen' cannot run: {reason}")


@pytest.mark.parametrize("error", [ImportError("no cutlass"), OSError("no libcuda"), RuntimeError("CUDA 11")])
def test_flash_attention_4_that_cannot_be_imported_is_a_sentence(installed, monkeypatch, error):
    tried = []

    def tear(module):
        tried.append(module)
        raise error

    monkeypatch.setattr(packages, "import_module", tear)
    reason = flash_obstacle(4, CUDA)
    assert re.search(f"flash-attn-4 4.0.1 .*{type(error).__name__}: {error}", reason)
    check_refused(reason)
    assert tried == ["flash_attn.cute.interface"]


def test_each_of_torch_s_kernels_is_named_once():
    """A compiled graph hands the list to torch as it is, which has room for no more."""
    for order in (attention._FASTEST_FIRST, attention._READY_FIRST):
        assert len(order) == len(set(order)) == 4


@pytest.mark.parametrize("backend", ["flex", "varlen", "flash4"])
def test_what_keeps_backends_from_running(backend):
    device = torch.device("cpu")
    assert attention.backend_obstacle("sdpa", device, torch.float32) is None
    sentence = attention.backend_obstacle(backend, device, torch.bfloat16)
    assert re.search(f"^attention must be .* on a CPU; got {backend!r}", sentence)
    wide = attention.backend_obstacle(backend, CUDA, torch.float32)
    assert (wide is None) == (backend == "flex")
    assert wide is None or re.search(f"^attention must be .* in float32; got {backend!r}", wide)


@pytest.mark.parametrize("version", [2, 4])
def test_the_operators_know_their_shapes_without_running(version):
    """What a compiled model asks before there is any data: fake tensors in, fake tensors out."""
    with FakeTensorMode():
        q, k, v = torch.empty(2, 5, 3, 4, 8, dtype=torch.bfloat16).unbind(2)
        starts = torch.empty(65, dtype=torch.int32)
        out, sums = flash_attention(q, k, v, starts, version)
        assert (out.shape, out.dtype, out.is_contiguous()) == ((2, 5, 4, 8), torch.bfloat16, True)
        assert (sums.shape, sums.dtype) == ((4, 10), torch.float32)
        for grad in flash_attention_backward(out, q, k, v, out, sums, starts, version):
            assert (grad.shape, grad.dtype, grad.is_contiguous()) == ((2, 5, 4, 8), torch.bfloat16, True)


def test_the_fused_operator_knows_its_shapes_without_running():
    pytest.importorskip("triton")
    from lerope.model.kernels.fused_attention import fused_attention, fused_attention_backward

    with FakeTensorMode():
        qkv = torch.empty(2, 5, 3, 4, 8, dtype=torch.bfloat16)
        frequencies, table = torch.empty(4), torch.empty(20, 1, 4)
        index, offsets = torch.empty(10, dtype=torch.int32), torch.empty(10)
        gain, starts = torch.empty(8), torch.empty(65, dtype=torch.int32)
        out, sums, q, k = fused_attention(
            qkv, frequencies, table, table, index, offsets, True, gain, gain, 1e-5, starts
        )  # fmt: skip
        for each in (out, q, k):
            assert (each.shape, each.dtype, each.is_contiguous()) == ((2, 5, 4, 8), torch.bfloat16, True)
        assert (sums.shape, sums.dtype) == ((4, 10), torch.float32)
        for learn, columns in ((True, 4 + 8), (False, 8)):
            grad, totals = fused_attention_backward(
                out, qkv, table, table, index, offsets, True, gain, gain, 1e-5, starts, out, sums, q, k, learn
            )
            assert (grad.shape, grad.dtype, grad.is_contiguous()) == (qkv.shape, torch.bfloat16, True)
            assert totals.shape[0] == 2
            assert totals.shape[-1] == columns


class Played:
    """FlashAttention 4 as torch computes it: tokens of all rows end to end, a logsumexp for each head and token."""

    def __init__(self):
        self.deterministic = []
        self.in_place = []

    def _flash_attn_fwd(self, q, k, v, *, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, return_lse):
        assert causal
        assert return_lse
        assert cu_seqlens_q is cu_seqlens_k
        assert max_seqlen_q == max_seqlen_k >= cu_seqlens_q.diff().max()
        scores = self.scores(q, k, cu_seqlens_q)
        out = torch.einsum("hst,thd->shd", scores.softmax(-1), v).contiguous()
        return out, scores.logsumexp(-1).float(), None

    def _flash_attn_bwd(
        self, q, k, v, out, grad, sums, *, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dq, dk, dv,
        deterministic,
    ):  # fmt: skip
        assert causal
        assert cu_seqlens_q is cu_seqlens_k
        assert max_seqlen_q == max_seqlen_k >= cu_seqlens_q.diff().max()
        self.deterministic.append(deterministic)
        memory = [t.untyped_storage().data_ptr() for t in (dq, dk, dv)]
        assert len({t.data_ptr() for t in (dq, dk, dv)}) == 3
        assert memory.count(memory[2]) in (1, 3)
        self.in_place.append(memory.count(memory[2]) == 3)
        # Autograd is off inside of an operator: the gradient of softmax by hand, from what the forward pass left.
        shares = (self.scores(q, k, cu_seqlens_q) - sums.to(q.dtype)[..., None]).exp()
        dv.copy_(torch.einsum("hst,shd->thd", shares, grad))
        slopes = torch.einsum("shd,thd->hst", grad, v) - (grad * out).sum(-1).t()[..., None]
        slopes = slopes * shares * q.shape[-1] ** -0.5
        dq.copy_(torch.einsum("hst,thd->shd", slopes, k))
        dk.copy_(torch.einsum("hst,shd->thd", slopes, q))

    @staticmethod
    def scores(q, k, starts):
        tokens = torch.arange(len(q))
        document = torch.searchsorted(starts.long(), tokens, right=True)
        hidden = (document[:, None] != document[None, :]) | (tokens[:, None] < tokens[None, :])
        scores = torch.einsum("shd,thd->hst", q, k) * q.shape[-1] ** -0.5
        return scores.masked_fill(hidden, -torch.inf)


@pytest.fixture
def played(monkeypatch):
    played = Played()
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", played)
    return played


def example(seed=0):
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(3, 6, 3, 2, 8, generator=generator, dtype=torch.float64).requires_grad_()
    return qkv, torch.randn(3, 6, 2, 8, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("exact", [True, False])
def test_flash_attention_4_is_told_what_it_needs(played, exact):
    """q, k and v may be views of one tensor; where torch is to repeat itself bit by bit, so is the library."""
    qkv, weight = example()
    starts = Packed(IDS, 4).starts
    torch.use_deterministic_algorithms(exact)
    try:
        out, _ = flash_attention(*qkv.unbind(2), starts, 4)
        (grad,) = torch.autograd.grad(out, qkv, weight.transpose(0, 1).contiguous().transpose(0, 1))
    finally:
        torch.use_deterministic_algorithms(False)
    assert played.deterministic == [exact]
    leaf = qkv.detach().requires_grad_()
    want = DocumentMask(IDS, "sdpa").attend(*leaf.unbind(2))
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(grad, torch.autograd.grad(want, leaf, weight)[0], rtol=0, atol=1e-5)  # sums are float32


@pytest.mark.parametrize(("backend", "version"), [("varlen", 2), ("flash4", 4)])
def test_each_backend_has_its_version(installed, monkeypatch, backend, version):
    """Of a mask on a GPU that is not there."""
    monkeypatch.setattr(packed_attention, "Packed", lambda ids, *args: args)
    with FakeTensorMode():
        ids = torch.empty(3, 6, dtype=torch.int64, device="cuda")
        assert DocumentMask(ids, backend, 7).packed == (version, 7)


def test_packed_attention_asks_for_its_version(played):
    q, k, v = example()[0].detach().bfloat16().unbind(2)
    got = Packed(IDS, 4).attend(q, k, v)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, DocumentMask(IDS, "sdpa").attend(q, k, v), rtol=0.02, atol=0.02)


def test_the_operators_are_registered_as_torch_wants_it(played):
    qkv, weight = example()
    starts = Packed(IDS, 4).starts
    q, k, v = (t.detach().requires_grad_() for t in qkv.unbind(2))
    torch.library.opcheck(torch.ops.lerope.flash_attention.default, (q, k, v, starts, 4))
    with torch.no_grad():
        out, sums = flash_attention(q, k, v, starts, 4)
    plain = [t.detach() for t in (weight, q, k, v)]
    torch.library.opcheck(torch.ops.lerope.flash_attention_backward.default, (*plain, out, sums, starts, 4))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for Triton's interpreter")
@pytest.mark.usefixtures("_rounds_as_a_gpu")
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("bands", [4, 3, 1])
@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(("precision", "limit"), [(torch.bfloat16, 0.03), (torch.float32, 1e-5)])
def test_the_fused_operator_equals_its_parts(played, layout, bands, learn, precision, limit):
    """From the projection to attention's output: values, and the gradients of projection, frequencies and gains.

    Of heads of 8, all of which or the first dimensions of which turn; by the operator itself also in float32, which
    the library would not take.
    """
    pytest.importorskip("triton")
    from lerope.model.kernels.fused_attention import attend, fused_attention
    from tests.rotary.test_triton import poisoned

    qkv, weight = (t.detach().bfloat16() for t in example())
    theta = torch.rand(bands, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 0]])
    gains = [torch.linspace(0.5, 1.5, 8), torch.linspace(1.5, 0.5, 8)]

    def results(kernel, dtype):
        norms = [nn.RMSNorm(8, eps=1e-5, dtype=torch.promote_types(dtype, torch.float32)) for _ in range(2)]
        for norm, gain in zip(norms, gains, strict=True):
            norm.weight.data.copy_(gain)
        leaf = qkv.to(dtype).requires_grad_()
        frequencies = theta.to(norms[0].weight.dtype).requires_grad_(learn)
        rotation = lerope.Rotation(positions, frequencies, layout, 8, length=6, kernel=kernel)
        q, k, v = leaf.unbind(2)
        documents = Packed(IDS, 4)
        if kernel == "reference":
            out = DocumentMask(IDS, "sdpa").attend(*rotation.after_norm(q, k, *norms), v)
        elif dtype == torch.float32:
            out = fused_attention(leaf, *rotation.fused(q, k, *norms), documents.starts)[0]
        else:
            out = attend(leaf, rotation.fused(q, k, *norms), documents)
        leaves = [leaf, *(norm.weight for norm in norms), *([frequencies] if learn else [])]
        return [out, *torch.autograd.grad(out, leaves, weight.to(dtype))]

    with poisoned():
        ours = results("triton", precision)
    for got, want in zip(ours, results("reference", torch.float64), strict=True):
        assert got.shape == want.shape
        assert (got.double() - want).norm() < limit * want.norm()
    assert played.in_place == [True]  # in one tensor, in which q and k are turned back


def test_a_gradient_that_nobody_has(played):
    qkv, _ = example()
    Stop.apply(flash_attention(*qkv.unbind(2), Packed(IDS, 4).starts, 4)[0]).sum().backward()
    assert qkv.grad is None or not qkv.grad.any()
