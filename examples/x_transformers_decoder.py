"""Learned frequencies in x-transformers: its rotary module replaced by one whose phases have a gradient.

Needs x-transformers (tried with 2.31.10).
"""

import torch
from torch import Tensor, nn
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

import lerope


class LearnedRotary(nn.Module):
    """In place of x-transformers' RotaryEmbedding: positions to phases, every band twice, side by side."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.encoding = lerope.LeRoPE.starting_at(frequencies, layout="interleaved")

    def forward(self, positions: Tensor, offset: int = 0) -> tuple[Tensor, float]:
        positions = positions[None] if positions.ndim == 1 else positions
        phases = positions[..., None] * self.encoding.frequencies()
        return phases.repeat_interleave(2, dim=-1), 1.0


def main(steps: int = 20) -> None:
    torch.manual_seed(0)
    layers = Decoder(dim=64, depth=2, heads=2, attn_dim_head=32, rotary_pos_emb=True, rotary_emb_dim=32)
    model = TransformerWrapper(num_tokens=64, max_seq_len=64, attn_layers=layers)
    tokens = torch.randint(64, (8, 48))
    with torch.no_grad():
        before = model(tokens)
        layers.rotary_pos_emb = LearnedRotary(layers.rotary_pos_emb.inv_freq)
        print(f"largest change of the logits: {(model(tokens) - before).abs().max():.1e}")
    lerope.check_gradients(model, tokens)

    trained = AutoregressiveWrapper(model)
    optimizer = torch.optim.AdamW(lerope.param_groups(trained, lr=3e-3, weight_decay=0.1))
    for _ in range(steps):
        half = torch.randint(64, (8, 24))
        loss = trained(torch.cat((half, half), dim=1))
        optimizer.zero_grad()
        loss.backward()
        lerope.clip_grad_norm_(trained, max_norm=1.0)
        optimizer.step()
    alpha = layers.rotary_pos_emb.encoding.alpha.detach()
    print(f"loss {loss.item():.3f}, log-scales {alpha.numpy().round(3)}")


if __name__ == "__main__":
    main()
