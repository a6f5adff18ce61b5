"""A stand-in for nanoGPT's model.py: what the benchmark calls of it, and no attention."""

MODEL = """
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert (config.dropout, config.bias) == (0.0, False)
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.block_size = config.block_size
        print("number of parameters")

    def forward(self, tokens, targets):
        assert tokens.shape == targets.shape
        assert tokens.shape[1] == self.block_size
        logits = self.head(self.embedding(tokens))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), learning_rate, betas, weight_decay=weight_decay)
"""
