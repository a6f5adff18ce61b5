"""Initial weights that depend only on the seed and a parameter's name.

Not on the encoding, the order of construction, the device, or how parameters are sharded: runs that differ in any of
these start from the same numbers, so that they can be compared as a pair.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from lerope.model.transformer import Transformer
from lerope.rotary.encodings import assign


@torch.no_grad()
def init_weights(model: Transformer, seed: int) -> None:
    """Fills every weight; the encoding returns to its start, which needs no random numbers.

    Linear layers get N(0, 1 / fan_in), those that write to the residual stream N(0, 1 / (2 num_layers fan_in)),
    embeddings N(0, 1 / width), which gives each vector unit norm on average, and gains one.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of 0 or more; got {seed!r}.")
    for name, module in model.named_modules():
        if isinstance(module, nn.RMSNorm):
            module.weight.fill_(1.0)
        elif isinstance(module, nn.Linear):
            depth = 2 * model.config.num_layers if name.endswith((".out", ".down")) else 1
            _fill(module.weight, seed, name, 1 / math.sqrt(depth * module.in_features))
        elif isinstance(module, nn.Embedding):
            _fill(module.weight, seed, name, 1 / math.sqrt(module.embedding_dim))
    model.encoding.reset_parameters()


@torch.no_grad()
def set_weights(model: Transformer, weights: dict[str, Tensor]) -> None:
    """Gives a model, in shards or not, whole weights by name; its encoding stays as it is."""
    for name, parameter in model.named_parameters():
        if not name.startswith("encoding."):
            assign(parameter, weights[name])


def _fill(weight: Tensor, seed: int, name: str, std: float) -> None:
    """Draws the whole float32 tensor on the CPU from a stream of its own, then keeps this rank's part of it."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    values = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
    assign(weight, values.normal_(0.0, std, generator=generator))
