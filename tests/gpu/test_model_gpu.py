"""The model on a CUDA device: attention backends and fused kernels agree with plain torch, in values and gradients."""

import itertools

import pytest
import torch
from torch.nn import functional

import lerope
from lerope.core.ladder import ModelConfig
from lerope.model import attention
from lerope.model.attention import DocumentMask
from lerope.model.init import init_weights
from lerope.model.kernels import products
from lerope.model.kernels.fused_mlp import fused_mlp, mlp
from lerope.model.kernels.layers import FastLinear, FastMLP, use_layers
from lerope.model.kernels.products import linear
from lerope.model.loss import Head
from lerope.model.transformer import Transformer
from tests.rotary.test_triton import poisoned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CONFIG = ModelConfig(num_layers=2, num_heads=4, head_dim=64, vocab_size=500)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(500, (3, 1024), generator=generator)
    starts = torch.rand(3, 1024, generator=generator) < 0.01
    starts[:, 0] = True
    ids = starts.cumsum(1)
    index = torch.arange(1024).expand(3, -1)
    positions = index - torch.where(starts, index, 0).cummax(1).values
    return tokens.cuda(), positions.cuda(), ids.cuda()


def test_flex_equals_the_dense_mask():
    model = Transformer(CONFIG, lerope.LeRoPE(64)).cuda()
    init_weights(model, 0)
    tokens, positions, ids = batch()
    results = {}
    for backend in ("sdpa", "flex"):
        model.zero_grad()
        logits = model(tokens, positions, ids, backend=backend)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        results[backend] = [logits.detach()] + [p.grad.clone() for p in model.parameters()]
    for dense, flex in zip(results["sdpa"], results["flex"], strict=True):
        torch.testing.assert_close(flex, dense, rtol=0, atol=3e-3 * dense.abs().max().item())


def test_init_is_that_of_the_cpu():
    gpu, cpu = Transformer(CONFIG, lerope.LeRoPE(64)).cuda(), Transformer(CONFIG, lerope.LeRoPE(64))
    init_weights(gpu, 3)
    init_weights(cpu, 3)
    for a, b in zip(gpu.parameters(), cpu.parameters(), strict=True):
        assert torch.equal(a.cpu(), b)


def documents(kind: str) -> torch.Tensor:
    """(3, 1024): documents as in a corpus, tiny ones, rows of one document."""
    generator = torch.Generator().manual_seed(1)
    share = {"real": 0.01, "tiny": 0.5, "whole rows": 0.0}[kind]
    return (torch.rand(3, 1024, generator=generator) < share).cumsum(1).cuda()


@pytest.mark.parametrize("kind", ["real", "tiny", "whole rows"])
@pytest.mark.parametrize("backend", ["flex", "varlen", "flash4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("known", [True, False])
def test_backends_equal_the_dense_mask(backend, kind, dtype, known):
    """In values and gradients, no further from float64 than twice what dense attention in 16 bits is."""
    reason = attention.backend_obstacle(backend, torch.device("cuda"), dtype)
    if backend == "flex" and (known or dtype == torch.float16):
        reason = "flex counts no documents, and takes seconds to compile for another dtype"
    if reason is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    ids = documents(kind)
    num_documents = int((ids[:, 1:] != ids[:, :-1]).sum()) + len(ids)
    qkv = torch.randn(3, 1024, 3, 4, 64, device="cuda").to(dtype)
    weight = torch.randn(3, 1024, 4, 64, device="cuda").to(dtype)

    def results(mask, qkv, weight):
        leaf = qkv.detach().requires_grad_()
        out = mask.attend(*leaf.unbind(2))
        return [out, *torch.autograd.grad(out, leaf, weight)]

    dense = DocumentMask(ids, "sdpa")
    exact = results(dense, qkv.double(), weight.double())
    plain = results(dense, qkv, weight)
    got = results(DocumentMask(ids, backend, num_documents + 30 if known else None), qkv, weight)
    for a, b, c in zip(got, plain, exact, strict=True):
        assert not a.isnan().any()
        ours, theirs = ((t.double() - c).norm() / c.norm() for t in (a, b))
        assert ours < 2 * theirs + torch.finfo(dtype).eps / 2, (float(ours), float(theirs))


@torch.no_grad()
def test_attention_without_gradients_plans_for_no_shape():
    """cuDNN would for each, and rows of evaluation have many."""
    q = torch.randn(2, 96, 4, 64, device="cuda", dtype=torch.bfloat16)
    with torch.profiler.profile() as profile:
        DocumentMask(None).attend(q, q, q)
    operators = {event.name for event in profile.events()}
    assert "aten::_scaled_dot_product_flash_attention" in operators
    assert "aten::_scaled_dot_product_cudnn_attention" not in operators


@pytest.mark.parametrize("kind", ["real", "tiny", "whole rows"])
@pytest.mark.parametrize("length", [1024, 1000, 100])
def test_the_block_mask_shows_what_create_block_mask_shows(kind, length):
    """Made without a look at pairs of tokens; every visible pair lies in one of its blocks, full blocks are full."""
    from torch.nn.attention.flex_attention import create_block_mask

    ids = documents(kind)[:, :length]
    mask = DocumentMask(ids, "flex").block
    theirs = create_block_mask(mask.mask_mod, len(ids), None, length, length, device="cuda", BLOCK_SIZE=128)
    assert torch.equal(mask.to_dense().bool(), theirs.to_dense().bool())


def model_of(kernel: str) -> Transformer:
    model = Transformer(CONFIG, lerope.LeRoPE(64)).cuda()
    init_weights(model, 0)
    model.use_kernel(kernel)
    return model


@pytest.mark.parametrize("backend", ["sdpa", "flex", "varlen", "flash4"])
def test_a_model_with_fused_kernels_is_as_close_to_float32_as_one_without(backend):
    """Loss and gradients in bf16 against the reference in float32: errors of the same size, as roundings differ."""
    if attention.backend_obstacle(backend, torch.device("cuda"), torch.bfloat16) is not None:
        pytest.skip("cannot run here")
    tokens, positions, ids = batch()
    centres = torch.full_like(positions, 50)

    def results(kernel, backend, autocast):
        model = model_of(kernel)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(tokens, positions, ids, tokens, centres, backend)
        (loss / tokens.numel()).backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    exact = results("reference", "sdpa", False)
    plain, fused = results("reference", "sdpa", True), results("auto", backend, True)
    for a, b, c in zip(fused, plain, exact, strict=True):
        ours, theirs = ((t.double() - c.double()).norm() / c.double().norm() for t in (a, b))
        assert ours < 2 * theirs + 3e-3, (float(ours), float(theirs))


@pytest.mark.parametrize("z_weight", [0.0, 1e-3])
@pytest.mark.parametrize("vocab_size", [500, 50_257])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_head_with_its_kernel_equals_the_head_without(vocab_size, z_weight, precision):
    torch.manual_seed(0)
    head = Head(128, vocab_size).cuda()
    x = torch.randn(2, 300, 128, device="cuda")
    targets = torch.randint(-1, vocab_size, (2, 300), device="cuda")
    results = []
    for fast in (True, False):
        use_layers(head, fast)
        head.weight.grad = None
        leaf = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == torch.bfloat16):
            total = head(leaf, targets, z_weight)
        (total / 600).backward()
        results.append((total.detach(), leaf.grad, head.weight.grad))
    limit = 3e-3 if precision == torch.bfloat16 else 2e-5
    for got, want in zip(*results, strict=True):
        assert (got - want).double().norm() < limit * want.double().norm()
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-6, atol=0)


@pytest.fixture
def _quack():
    x, weight = (torch.empty(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    reason = products.quack_obstacle(x, weight)
    if reason is not None:
        pytest.skip(reason)


def plain_mlp(x, up, down):
    return functional.linear(functional.gelu(functional.linear(x, up)), down)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def share_in_16_bits(x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> float:
    """Of numbers that are what they would be in this dtype."""
    return (x == x.to(dtype)).double().mean().item()


def check_as_close_as_torch(function, plain, num_tokens: int, weights: list[torch.Tensor], dtype: torch.dtype) -> None:
    """Values and all gradients against float64, with memory full of NaN for what nobody writes.

    Torch multiplies with copies of weights in the dtype of the input, as in autocast.
    """
    x = random(num_tokens, weights[0].shape[1], dtype=dtype)
    grad = random(num_tokens, weights[-1].shape[0], dtype=dtype)

    def results(function, *inputs, grad):
        leaves = [t.detach().requires_grad_() for t in inputs]
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, leaves, grad)]

    with poisoned():
        got = results(function, x, *weights, grad=grad)
    theirs = results(lambda x, *weights: plain(x, *(t.to(dtype) for t in weights)), x, *weights, grad=grad)
    exact = results(plain, *(t.to(dtype).double() for t in (x, *weights)), grad=grad.double())
    for a, b, c, own in zip(got, theirs, exact, [dtype, dtype, *(t.dtype for t in weights)], strict=True):
        assert (a.shape, a.dtype) == (c.shape, own)
        assert not a.isnan().any()
        ours, torchs = ((t.double() - c).norm() / c.norm() for t in (a, b))
        assert ours <= 1.5 * torchs + torch.finfo(dtype).eps / 8, (num_tokens, float(ours), float(torchs))
        assert own == dtype or share_in_16_bits(a, dtype) < 0.1  # torch's are rounded


# The first count comes again, with other numbers: a kernel that was compiled for one count of tokens meets others.
TOKENS = (77, 1, 1000, 4096, 77)
# Not all of them in float16: each kernel takes seconds to compile for each dtype and size of tiles.
MLP_CASES = [
    (torch.bfloat16, 64, 256),
    (torch.bfloat16, 512, 2048),
    (torch.bfloat16, 1024, 4096),
    (torch.float16, 64, 256),
    (torch.float16, 512, 2048),
]
LINEAR_CASES = [*MLP_CASES, (torch.bfloat16, 256, 64), (torch.bfloat16, 2048, 512), (torch.bfloat16, 4096, 1024)]


@pytest.mark.usefixtures("_quack")
@pytest.mark.parametrize(("dtype", "in_width", "out_width"), LINEAR_CASES)
def test_a_matrix_is_as_close_to_float64_as_that_of_torch(dtype, in_width, out_width):
    torch.manual_seed(0)
    weight = random(out_width, in_width, dtype=torch.float32) * in_width**-0.5
    for num_tokens, own in itertools.product(TOKENS, (dtype, torch.float32)):
        check_as_close_as_torch(linear, functional.linear, num_tokens, [weight.to(own)], dtype)


@pytest.mark.usefixtures("_quack")
@pytest.mark.parametrize(("dtype", "width", "mlp_width"), MLP_CASES)
def test_the_fused_mlp_is_as_close_to_float64_as_torch(dtype, width, mlp_width):
    torch.manual_seed(0)
    shapes = ((mlp_width, width), (width, mlp_width))
    weights = [random(*shape, dtype=torch.float32) * shape[1] ** -0.5 for shape in shapes]
    owns = [(dtype, dtype), (torch.float32, torch.float32), (torch.float32, dtype), (dtype, torch.float32)]
    for num_tokens, own in itertools.product(TOKENS, owns):
        cast = [t.to(each) for t, each in zip(weights, own, strict=True)]
        check_as_close_as_torch(mlp, plain_mlp, num_tokens, cast, dtype)


@pytest.mark.usefixtures("_quack")
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_weights_in_float32_are_sums_in_float32(dtype, within):
    """Also if the backward pass is in autocast as well."""
    torch.manual_seed(0)
    for num_tokens in TOKENS:
        x, grad = random(num_tokens, 512, dtype=dtype), random(num_tokens, 256, dtype=dtype)
        module = FastLinear(512, 256).cuda()
        with torch.autocast("cuda", dtype):
            out = module(x)
        with poisoned(), torch.autocast("cuda", dtype, enabled=within):
            out.backward(grad)
        got, exact = module.weight.grad, grad.double().t() @ x.double()
        assert got.dtype == torch.float32
        assert (got.double() - exact).norm() < 1e-4 * exact.norm()
        assert share_in_16_bits(got, dtype) < 0.1


@pytest.mark.usefixtures("_quack")
def test_gradients_of_float16_weights_in_bf16():
    """cuBLAS multiplies 16 bits to the same 16 or to 32."""
    torch.manual_seed(0)
    x, grad = (random(77, width, dtype=torch.bfloat16) for width in (64, 256))
    module = FastLinear(64, 256).cuda().half()
    with torch.autocast("cuda", torch.bfloat16):
        out = module(x)
    out.backward(grad)
    exact = grad.double().t() @ x.double()
    assert module.weight.grad.dtype == torch.float16
    assert (module.weight.grad.double() - exact).norm() < 1e-3 * exact.norm()


@pytest.mark.usefixtures("_quack")
def test_what_products_keep_for_the_backward_pass():
    """Copies of weights in 16 bits, or weights that are in 16 bits themselves."""
    x, saved = random(77, 64, dtype=torch.bfloat16), []
    for own in (torch.float32, torch.bfloat16):
        up, down = (random(*shape, dtype=own).requires_grad_() for shape in ((256, 64), (64, 256)))
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            mlp(x, up, down)
            linear(x, up)
        assert {t.dtype for t in saved} == {torch.bfloat16}
        assert [tuple(t.shape) for t in saved[3:]] == [(256, 64), (64, 256), (77, 64), (256, 64)]
        itself = [t.data_ptr() == w.data_ptr() for t, w in zip((*saved[3:5], saved[6]), (up, down, up), strict=True)]
        assert itself == [own == torch.bfloat16] * 3


@pytest.mark.usefixtures("_quack")
def test_gelu_at_its_ends():
    """Hidden values from -12 to 12, one for each token: zero on the left, the number itself on the right."""
    hidden = torch.linspace(-12, 12, 4096, device="cuda").bfloat16()
    x, up = torch.zeros(4096, 64, device="cuda", dtype=torch.bfloat16), torch.zeros(256, 64, device="cuda").bfloat16()
    x[:, 0], up[:, 0] = hidden, 1.0
    leaf = x.requires_grad_()
    _, activated, *_ = fused_mlp(leaf.detach(), up, up.t().contiguous(), True)
    value = functional.gelu(hidden.double())
    error = (activated.double() - value[:, None]).abs()
    assert (error <= (2**-8 * value.abs() + 3e-7 * (1 + hidden.double().abs()))[:, None]).all()
    # One hidden value goes into one output: its gradient is the slope.
    down = torch.zeros(64, 256, device="cuda", dtype=torch.bfloat16)
    down[0, 0] = 1.0
    grad = torch.zeros_like(x)
    grad[:, 0] = 1.0
    (x_grad,) = torch.autograd.grad(mlp(leaf, up, down), leaf, grad)
    wide = hidden.double().requires_grad_()
    (slope,) = torch.autograd.grad(functional.gelu(wide).sum(), wide)
    error = (x_grad[:, 0].double() - slope).abs()
    assert (error <= 2 * 2**-8 * slope.abs() + 1e-6 * (1 + hidden.double().abs())).all()


@pytest.mark.usefixtures("_quack")
def test_slopes_that_are_not_kept_change_nothing():
    torch.manual_seed(0)
    up, down = random(2048, 512, dtype=torch.bfloat16) / 20, random(512, 2048, dtype=torch.bfloat16) / 40
    for num_tokens in TOKENS:
        x = random(num_tokens, 512, dtype=torch.bfloat16)
        with poisoned():
            kept, other = (fused_mlp(x, up, down, keeps) for keeps in (True, False))
        assert torch.equal(kept[0], other[0])
        assert torch.equal(kept[1], other[1])
        assert (kept[2].shape, other[2].numel()) == ((num_tokens, 2048), 0)
        assert not kept[2].isnan().any()
        assert not any(t.numel() for t in (*kept[3:], *other[3:]))


@pytest.mark.usefixtures("_quack")
@pytest.mark.parametrize("learn", [learn for learn in itertools.product([True, False], repeat=3) if any(learn)])
@pytest.mark.parametrize("own", [torch.bfloat16, torch.float32])
def test_what_is_frozen_changes_no_other_gradient(learn, own):
    """Of the MLP, and of a matrix where the first two say something about it."""
    torch.manual_seed(0)
    weights = [random(*shape, dtype=own) for shape in ((2048, 512), (512, 2048))]
    inputs = [random(77, 512, dtype=torch.bfloat16), *weights]
    cases = [(mlp, inputs, learn), (linear, inputs[:2], learn[:2])]
    for function, tensors, learns in cases:
        if not any(learns):
            continue
        results = []
        for wanted in (learns, [True] * len(learns)):
            leaves = [t.detach().requires_grad_(each) for t, each in zip(tensors, wanted, strict=True)]
            out = function(*leaves)
            with poisoned():
                out.backward(torch.ones_like(out))
            results.append([leaf.grad for leaf in leaves])
        for got, want, each in zip(*results, learns, strict=True):
            assert (got is not None) == each
            assert got is None or torch.equal(got, want)


@pytest.mark.usefixtures("_quack")
def test_inputs_of_other_shapes_and_layouts():
    """A vector, no tokens, and inputs that do not lie in one piece."""
    torch.manual_seed(0)
    module = FastLinear(64, 256).cuda().bfloat16()
    wide = random(3, 5, 128, dtype=torch.bfloat16)
    for x in (wide[0, 0, :64], wide[:0, :, :64], wide[..., :64], wide[..., ::2], wide[..., :64].transpose(0, 1)):
        got, want = module(x), functional.linear(x, module.weight)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-7)


@pytest.mark.usefixtures("_quack")
def test_a_config_is_the_same_object_in_every_call():
    x = torch.empty(8, 64, device="cuda", dtype=torch.bfloat16)
    first, again = (products.settings(x, (128, 192)) for _ in range(2))
    assert first.get("config") is again.get("config")


@pytest.mark.usefixtures("_quack")
def test_weights_in_float32_need_autocast():
    x = random(8, 64, dtype=torch.bfloat16)
    module = FastLinear(64, 64).cuda()
    assert "torch.float32" in products.quack_obstacle(x, module.weight)
    with torch.autocast("cuda", torch.bfloat16):
        assert products.quack_obstacle(x, module.weight) is None
        assert module(x).dtype == torch.bfloat16


class Layers(torch.nn.Module):
    """A matrix and an MLP after it, with weights in float32 and in autocast as in training."""

    def __init__(self) -> None:
        super().__init__()
        config = ModelConfig(num_layers=1, num_heads=8, head_dim=64)
        self.matrix, self.mlp = FastLinear(512, 512), FastMLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return self.mlp(self.matrix(x).relu())


def layers() -> Layers:
    torch.manual_seed(0)
    module = Layers().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        x = torch.empty(2, 512, device="cuda", dtype=torch.bfloat16)
        assert products.quack_obstacle(x, module.mlp.up.weight, module.mlp.down.weight) is None
    return module


@pytest.mark.usefixtures("_quack")
def test_products_compile_without_a_break():
    torch._dynamo.reset()
    module = layers()
    compiled = torch.compile(module, fullgraph=True)
    for rows in (2, 3):
        x, grad = (random(rows, 100, 512, dtype=torch.bfloat16) for _ in range(2))
        results = []
        for function in (compiled, module):
            leaf = x.detach().requires_grad_()
            out = function(leaf)
            results.append([out, *torch.autograd.grad(out, [leaf, *module.parameters()], grad)])
        for got, want in zip(*results, strict=True):
            assert (got.dtype, got.stride()) == (want.dtype, want.stride())
            assert (got - want).double().norm() <= 5e-3 * want.double().norm()
        assert all(grad.dtype == torch.float32 and share_in_16_bits(grad) < 0.1 for grad in results[0][2:])
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


@pytest.mark.usefixtures("_quack")
def test_products_never_wait_for_the_device_and_can_be_captured():
    module = layers()
    x, grad = (random(4, 96, 512, dtype=torch.bfloat16) for _ in range(2))
    x.requires_grad_()

    def step():
        out = module(x)
        return [out.detach(), *torch.autograd.grad(out, [x, *module.parameters()], grad)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    before = [t.clone() for t in captured]
    with torch.no_grad():
        for tensor in (x, grad, *module.parameters()):
            tensor.copy_(torch.randn_like(tensor) * tensor.float().std())
    graph.replay()
    torch.cuda.synchronize()
    for got, old, want in zip(captured, before, step(), strict=True):
        assert (got - old).double().norm() > 0.5 * want.double().norm()
        assert (got - want).double().norm() <= 5e-3 * want.double().norm()  # cuBLAS may choose otherwise in a graph


@pytest.mark.usefixtures("_quack")
def test_the_head_of_a_vocabulary_that_quack_takes():
    """As close to float64 as the head without it, whose logits are rounded to bf16 just so."""
    torch.manual_seed(0)
    head = Head(128, 512).cuda()
    x, targets = torch.randn(2, 300, 128, device="cuda"), torch.randint(-1, 512, (2, 300), device="cuda")

    def results(fast, dtype):
        use_layers(head, fast)
        leaf = x.to(dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            total = head(leaf, targets)
        return [total, *torch.autograd.grad(total, (leaf, head.weight))]

    ours, theirs = results(True, torch.bfloat16), results(False, torch.bfloat16)
    head.double()
    for a, b, c in zip(ours, theirs, results(False, torch.float64), strict=True):
        errors = [(t.double() - c.double()).norm() / c.double().norm() for t in (a, b)]
        assert errors[0] <= 1.5 * errors[1] + 1e-3, errors


@pytest.mark.parametrize("kind", ["real", "tiny", "whole rows"])
@pytest.mark.parametrize("rotary_dim", [64, 32, 24])
def test_the_fused_operator_of_flash_attention_4_equals_its_parts(kind, rotary_dim):
    """Norm, rotation of all or of part of a head and attention in one, against the same three one after the other."""
    reason = attention.backend_obstacle("flash4", torch.device("cuda"), torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
    from lerope.model.kernels.fused_attention import attend

    torch.manual_seed(0)
    ids, index = documents(kind), torch.arange(1024, device="cuda").expand(3, -1)
    begins = torch.cat((torch.ones_like(ids[:, :1], dtype=torch.bool), ids[:, 1:] != ids[:, :-1]), 1)
    positions = index - torch.where(begins, index, 0).cummax(1).values
    mask = DocumentMask(ids, "flash4")
    encoding = lerope.LeRoPE(64, rotary_dim=rotary_dim).cuda()
    norms = [torch.nn.RMSNorm(64, eps=1e-5).cuda() for _ in range(2)]
    qkv, grad = (random(*shape, dtype=torch.bfloat16) for shape in ((3, 1024, 3, 4, 64), (3, 1024, 4, 64)))
    results = []
    for whole in (True, False):
        leaf = qkv.detach().requires_grad_()
        rotation = encoding.rotation(positions, length=1024)
        q, k, v = leaf.unbind(2)
        if whole:
            arguments = rotation.fused(q, k, *norms)
            assert arguments is not None
            out = attend(leaf, arguments, mask.packed)
        else:
            q, k = rotation.after_norm(q, k, *norms)
            out = mask.attend(q.to(v.dtype), k.to(v.dtype), v)
        leaves = [leaf, encoding.alpha, *(norm.weight for norm in norms)]
        results.append([out, *torch.autograd.grad(out, leaves, grad)])
    for got, want in zip(*results, strict=True):
        assert not got.isnan().any()
        # Gradients of frequencies are small differences of large sums over dq, which is not added up in one order.
        limit = 0.1 if got.shape == encoding.alpha.shape else 0.01
        assert (got - want).double().norm() < limit * want.double().norm()
