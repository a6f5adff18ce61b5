"""Tiny launches of every kernel, forwards and backwards, by all its paths; for a tool that watches memory.

Compiling all paths of the rotary kernels takes long. Triton keeps what it compiled, so that a run without the tool goes
first, and `--every` takes one path in so many; a prime number reaches every value of every choice.

    python benchmarks/sanitize.py --every 11 && compute-sanitizer python benchmarks/sanitize.py --every 11
"""

import argparse
import itertools

import torch
from torch import Tensor, nn

import lerope
from lerope.core.encoding import Layout
from lerope.model.attention import BACKENDS, DocumentMask, backend_obstacle
from lerope.model.kernels import products, triton_gelu, triton_loss, triton_norm
from lerope.model.kernels.fused_mlp import mlp

DEVICE = torch.device("cuda")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Query heads, key heads, head_dim, rotary_dim, sets of frequencies; no size is a power of two where it need not be.
SHAPES = ((4, 2, 32, 32, 1), (5, 5, 24, 20, 1), (6, 3, 80, 48, 3), (40, 40, 256, 256, 1), (3, 1, 64, 64, 1))
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")


def rotary(every: int) -> int:
    """Rotations, with a norm and without, fixed and learned, with a table and without, full tiles and not."""
    paths = itertools.product(SHAPES, DTYPES, LAYOUTS, (False, True), (False, True), (False, True), (16, 13))
    count = 0
    for path in itertools.islice(paths, 0, None, every):
        (q_heads, k_heads, head_dim, rotary_dim, sets), dtype, layout, norm, learns, table, length = path
        qkv = torch.randn(2, length, q_heads + k_heads, head_dim, device=DEVICE, dtype=dtype, requires_grad=True)
        q, k = qkv[:, :, :q_heads], qkv[:, :, q_heads:]
        bands = rotary_dim // 2
        theta = torch.rand((bands,) if sets == 1 else (sets, bands), device=DEVICE, requires_grad=learns)
        positions = torch.arange(length, device=DEVICE).expand(2, -1)
        limit = length if table else None
        rotation = lerope.Rotation(positions, theta, layout, head_dim, length // 2, limit, "triton")
        norms = [nn.RMSNorm(head_dim, eps=1e-5).to(DEVICE) for _ in range(2)]
        outs = rotation.after_norm(q, k, norms[0], norms[1]) if norm else rotation(q, k)
        (outs[0].sum() + outs[1].sum()).backward()
        rotation.turn(q).sum().backward()
        count += 1
    return count


def rest(every: int) -> int:
    """Activation, norm and loss."""
    count = 0
    for dtype, size in itertools.islice(itertools.product(DTYPES, (1, 7, 2048, 5000)), 0, None, every):
        x = torch.randn(size, device=DEVICE, dtype=dtype, requires_grad=True)
        triton_gelu.gelu(x).sum().backward()
        triton_loss.scaled(x.detach(), torch.full((), 0.5, dtype=torch.float64, device=DEVICE))
        count += 1
    norms = itertools.product(DTYPES, DTYPES, (64, 100, 1536), (1, 37))
    for dtype, stream, width, rows in itertools.islice(norms, 0, None, every):
        x = torch.randn(rows, width, device=DEVICE, dtype=stream, requires_grad=True)
        branch = torch.randn(rows, width, device=DEVICE, dtype=dtype, requires_grad=True)
        gain = torch.ones(width, device=DEVICE, requires_grad=True)
        total, normed, _ = triton_norm.add_norm(x, branch, gain, 1e-5)
        (total.float().sum() + normed.float().sum()).backward()
        count += 1
    losses = itertools.product(DTYPES, (2, 1000, 16384, 50_257), (0.0, 0.1), (True, False))
    for dtype, vocab_size, z_weight, gradient in itertools.islice(losses, 0, None, every):
        logits = torch.randn(5, vocab_size, device=DEVICE, dtype=dtype)
        targets = torch.tensor([0, -1, vocab_size - 1, 1, -1], device=DEVICE)
        triton_loss.cross_entropy_(logits, targets, z_weight, gradient)
        count += 1
    return count


def attention(every: int) -> int:
    """What writes where we say: packed attention alone, within the fused operator, and products."""
    ids = torch.arange(2 * 96, device=DEVICE).view(2, 96) // 7
    count = 0
    for backend in BACKENDS:
        if backend in ("sdpa", "flex") or backend_obstacle(backend, DEVICE, torch.bfloat16) is not None:
            continue
        qkv = torch.randn(2, 96, 3, 2, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        mask = DocumentMask(ids, backend)
        out: Tensor = mask.attend(*qkv.unbind(2))
        out.sum().backward()
        count += 1
        if backend != "flash4" or mask.packed is None:
            continue
        from lerope.model.kernels.fused_attention import attend

        for bands in (32, 12):
            theta = torch.rand(bands, device=DEVICE, requires_grad=True)
            norms = [nn.RMSNorm(64, eps=1e-5).to(DEVICE) for _ in range(2)]
            rotation = lerope.Rotation(torch.arange(96, device=DEVICE).expand(2, -1), theta, head_dim=64, length=96)
            arguments = rotation.fused(qkv[:, :, 0], qkv[:, :, 1], norms[0], norms[1])
            assert arguments is not None
            attend(qkv, arguments, mask.packed).sum().backward()
            count += 1
    for num_tokens, dtype in itertools.product((1, 37, 500), (torch.bfloat16, torch.float32)):
        x = torch.randn(num_tokens, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        shapes = ((256, 64), (64, 256))
        up, down = (torch.randn(shape, device=DEVICE, dtype=dtype, requires_grad=True) for shape in shapes)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            runs = products.quack_obstacle(x, up, down) is None
        if runs:
            mlp(x, up, down).sum().backward()
            products.linear(x, up).sum().backward()
            count += 2
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    every = parser.parse_args().every
    if every < 1 or not torch.cuda.is_available():
        parser.error("every must be at least 1, and there must be a CUDA device.")
    for kernels in (rotary, rest, attention):
        num_paths = kernels(every)
        torch.cuda.synchronize()
        print(f"{kernels.__name__}: {num_paths} paths")
