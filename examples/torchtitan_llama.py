"""Learned frequencies in torchtitan: its rotary module replaced in a model's config, one set for all layers.

Needs torchtitan (tried with 0.3.0, its debug model on the CPU).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.rope import RoPE
from torchtitan.models.llama3 import llama3_configs
from torchtitan.protocols.module import Module

import lerope


class LearnedRoPE(RoPE):  # type: ignore[misc]
    """In place of ComplexRoPE: the same pairs of neighbouring dimensions, without a cache that could go stale."""

    @dataclass(kw_only=True, slots=True)
    class Config(RoPE.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any) -> None:
        Module.__init__(self)
        self.config = config
        self.encoding = lerope.LeRoPE(config.dim, config.theta, layout="interleaved")

    def forward(self, query: Tensor, key: Tensor, positions: Tensor | None = None) -> Any:
        return self.encoding(query, key, 0 if positions is None else positions)

    def _init_self_parameters(self) -> None:
        self.encoding.reset_parameters()

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        pass


def learn_frequencies(config: Any) -> Any:
    """A model's config with the rotary module of every layer replaced."""
    for layer in config.layers:
        given = {field.name: getattr(layer.attention.rope, field.name) for field in dataclasses.fields(RoPE.Config)}
        layer.attention.rope = LearnedRoPE.Config(**{**given, "scaling": "none"})
    return config


def share(model: nn.Module) -> None:
    """Lets all layers use the first one's frequencies, as in the paper; call it after building the model."""
    ropes = [module for module in model.modules() if isinstance(module, LearnedRoPE)]
    for rope in ropes:
        rope.encoding = ropes[0].encoding


def main(steps: int = 10) -> None:
    torch.manual_seed(0)
    config = learn_frequencies(llama3_configs["debugmodel"](attn_backend="flex"))
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # flex trains on GPUs alone
    model = config.build()
    share(model)
    model.init_states()
    lerope.check_gradients(model, torch.randint(2048, (2, 32)))
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-3, weight_decay=0.1))
    for _ in range(steps):
        half = torch.randint(2048, (4, 24))
        tokens = torch.cat((half, half), dim=1)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        lerope.clip_grad_norm_(model, max_norm=1.0)
        optimizer.step()
    (alpha,) = (p for name, p in model.named_parameters() if name.endswith("alpha"))
    print(f"loss {loss.item():.3f}, log-scales {alpha.detach().numpy().round(4)}")


if __name__ == "__main__":
    main()
