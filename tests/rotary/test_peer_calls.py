"""docs/rotary-embedding-torch.md: its calls and ours give the same numbers."""

import pytest
import torch

import lerope

peer = pytest.importorskip("rotary_embedding_torch")

T = torch.randn(2, 3, 12, 32, generator=torch.Generator().manual_seed(0))
"""(batch, heads, length, head_dim)."""
INTERLEAVED = {"layout": "interleaved"}


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


def test_turning_with_an_offset():
    rotary = peer.RotaryEmbedding(dim=32, theta=500.0)
    encoding = lerope.RoPE(32, base=500.0, **INTERLEAVED)
    for offset in (0, 7):
        same(
            encoding(T, None, offset, heads_first=True)[0],
            rotary.rotate_queries_or_keys(T, offset=offset),
        )
    last = peer.RotaryEmbedding(dim=32, theta=500.0, seq_before_head_dim=True)
    same(encoding(T.transpose(1, 2), None, 0)[0], last.rotate_queries_or_keys(T.transpose(1, 2)))


def test_partial_custom_and_stretched():
    same(
        lerope.RoPE(32, rotary_dim=16, **INTERLEAVED)(T, None, 0, heads_first=True)[0],
        peer.RotaryEmbedding(dim=16).rotate_queries_or_keys(T),
    )
    own = torch.rand(16, generator=torch.Generator().manual_seed(1))
    same(
        lerope.FrozenRoPE(own, **INTERLEAVED)(T, None, 0, heads_first=True)[0],
        peer.RotaryEmbedding(dim=32, custom_freqs=own).rotate_queries_or_keys(T),
    )
    quarter = lerope.FrozenRoPE(lerope.RoPE(32).frequencies() / 4, **INTERLEAVED)
    same(
        quarter(T, None, 0, heads_first=True)[0],
        peer.RotaryEmbedding(dim=32, interpolate_factor=4.0).rotate_queries_or_keys(T),
    )
    rescaled = lerope.RoPE(32, base=10_000.0 * 2.0 ** (32 / 30), **INTERLEAVED)
    same(
        rescaled(T, None, 0, heads_first=True)[0],
        peer.RotaryEmbedding(dim=32, theta_rescale_factor=2.0).rotate_queries_or_keys(T),
    )


def test_cached_keys():
    rotary, encoding = peer.RotaryEmbedding(dim=32), lerope.RoPE(32, **INTERLEAVED)
    q, k = rotary.rotate_queries_with_cached_keys(T[..., -1:, :], T)
    cache = encoding(None, T[..., :-1, :], 0, heads_first=True)[1]
    found_q, new = encoding(T[..., -1:, :], T[..., -1:, :], 11, heads_first=True)
    same(found_q, q)
    same(torch.cat((cache, new), dim=-2), k)


def test_axial():
    freqs = peer.RotaryEmbedding(dim=16, theta=100.0).get_axial_freqs(3, 4)
    expected = peer.apply_rotary_emb(freqs, T.unflatten(2, (3, 4))).flatten(2, 3)
    patches = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    encoding = lerope.RoPE(32, base=100.0, axes=2, **INTERLEAVED)
    same(encoding(T, None, patches, heads_first=True)[0], expected)


def test_learned():
    rotary = peer.RotaryEmbedding(dim=32, learned_freq=True)
    encoding = lerope.LeRoPE(32, parametrization="direct", **INTERLEAVED)
    weights = torch.randn(T.shape, generator=torch.Generator().manual_seed(2))
    (rotary.rotate_queries_or_keys(T) * weights).sum().backward()
    (encoding(T, None, 0, heads_first=True)[0] * weights).sum().backward()
    torch.testing.assert_close(encoding.alpha.grad, rotary.freqs.grad, rtol=1e-4, atol=1e-3)
