"""Learned frequencies in a plain PyTorch model: the three lines that change, and a training that moves them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

import lerope

WIDTH, NUM_HEADS, NUM_LAYERS, VOCAB_SIZE, LENGTH = 64, 4, 2, 64, 48


class Layer(nn.Module):
    """Attention and an MLP, as one writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, rotation: lerope.Rotation) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, NUM_HEADS, -1)).unbind(-3)
        q, k = rotation(q, k)  # in place of your own RoPE; (rows, length, heads, head_dim)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.out(attended)
        out: Tensor = x + self.mlp(x)
        return out


class Model(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, WIDTH)
        self.encoding = lerope.LeRoPE(head_dim=WIDTH // NUM_HEADS)  # one for all layers
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB_SIZE)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rotation = self.encoding.rotation(torch.arange(tokens.shape[1], device=tokens.device))  # once per pass
        for layer in self.layers:
            x = layer(x, rotation)
        out: Tensor = self.head(x)
        return out


def main(steps: int = 60) -> None:
    torch.manual_seed(0)
    model = Model()
    lerope.check_gradients(model)  # raises if anything keeps the frequencies from learning
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=3e-3, weight_decay=0.1))
    for step in range(steps):
        half = torch.randint(VOCAB_SIZE, (16, LENGTH // 2))
        tokens = torch.cat((half, half), dim=1)  # the second half repeats the first, so positions matter
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        lerope.clip_grad_norm_(model, max_norm=1.0)
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(
                f"step {step:3d}  loss {loss.item():.3f}  log-scales {model.encoding.alpha.detach().numpy().round(3)}"
            )


if __name__ == "__main__":
    main()
