"""A transformer whose weights are set by hand to copy: it finds where the last tokens stood before and repeats what
followed them there.

Layer 0 leaves at each token the sum of the tokens before it, each with weight r^distance: a head whose logits fall with
distance does that, by rotation alone. Layer 1 turns by nothing. Its query is that sum, its key the sum without the
token itself, which is r times the sum at the token before; so it attends to the token that followed the same past.
"""

import math
from pathlib import Path

import numpy as np
import torch

from lerope.core.ladder import ModelConfig
from lerope.core.run import TOKENIZER
from lerope.data.tokenizer import Tokenizer, train_tokenizer
from lerope.evaluate.filler import load_filler
from lerope.model.init import init_weights
from lerope.model.saved import save_model
from lerope.model.transformer import Transformer
from lerope.rotary.encodings import FrozenRoPE, RoPE
from tests.made_runs import made_recipe, make_run

HEAD_DIM, CONSTANT = 128, 127
NUM_SPECIAL = 259  # unknown, BOS, EOS and bytes come before all pieces
VOCAB_SIZE = NUM_SPECIAL + 124
LENGTH = 512
FORGETTING = 0.85


def copier_tokenizer(path: Path) -> Tokenizer:
    """Few pieces, most of them words of needles."""
    needles = [" The special magic number for quiet-river is 0123456789."] * 400
    train_tokenizer([" ".join(load_filler().sentences), *needles], VOCAB_SIZE, path)
    return Tokenizer(path)


def _kernel(frequencies: torch.Tensor, length: int) -> np.ndarray:
    """Cosine and sine amplitudes of bands whose sum falls by -ln r a token, down to -16."""
    distance = np.arange(length)
    target = -np.minimum(-math.log(FORGETTING) * distance, 16.0)
    angles = distance[:, None] * frequencies.double().numpy()
    basis = np.concatenate([np.cos(angles), np.sin(angles)], 1)
    weight = np.exp(target / 4)[:, None] + 0.01
    amplitudes, *_ = np.linalg.lstsq(basis * weight, (target - target.mean()) * weight[:, 0], rcond=1e-7)
    error = basis @ amplitudes - (target - target.mean())
    assert np.ptp(error[:60]) < 0.02
    assert np.ptp(error) < 2
    return amplitudes


@torch.no_grad()
def copier(length: int = LENGTH) -> Transformer:
    config = ModelConfig(num_layers=2, num_heads=2, head_dim=HEAD_DIM, vocab_size=VOCAB_SIZE)
    frequencies = torch.zeros(2, HEAD_DIM // 2)
    frequencies[0] = torch.arange(1, HEAD_DIM // 2 + 1) * math.pi / length
    model = Transformer(config, FrozenRoPE(frequencies, HEAD_DIM, "layer"))
    for parameter in model.parameters():
        parameter.zero_()
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.weight.fill_(1.0)
    slots, width = VOCAB_SIZE - NUM_SPECIAL, config.width
    here, past = torch.arange(slots), HEAD_DIM + torch.arange(slots)
    model.embedding.weight[NUM_SPECIAL + here, here] = 1.0
    model.embedding.weight[:, CONSTANT] = 1.0
    scale = math.sqrt(2 / width)  # what the first norm divides by

    gather, match = (block.attention for block in model.blocks)
    q, k, v = gather.qkv.weight.view(3, 2, HEAD_DIM, width)[:, 0]
    amplitudes = torch.tensor(_kernel(frequencies[0], length), dtype=torch.float32)
    amplitudes[HEAD_DIM // 2 :] *= -1
    q[:, CONSTANT] = amplitudes
    k[: HEAD_DIM // 2, CONSTANT] = 1.0
    # A key of ones in half its dimensions has entries of sqrt(2) after its norm.
    gather.q_norm.weight.fill_(float(amplitudes.square().mean().sqrt()) * math.sqrt(HEAD_DIM / 2))
    v[here, here] = 1.0
    gather.out.weight[past, here] = scale

    q, k, v = match.qkv.weight.view(3, 2, HEAD_DIM, width)[:, 0]
    q[here, past] = 1.0
    k[here, past], k[here, here] = 1.0, -(1 - FORGETTING)
    match.q_norm.weight.fill_(12.0)
    match.k_norm.weight.fill_(12.0)
    v[here, here] = 1.0
    match.out.weight[past, here] = 100.0
    model.head.weight[NUM_SPECIAL + here, past] = 2.0
    return model


def random_model() -> Transformer:
    """The same shape with initial weights."""
    config = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=VOCAB_SIZE)
    model = Transformer(config, RoPE(config.head_dim))
    init_weights(model, 0)
    return model


def write_run(folder: Path, model: Transformer, tokenizer: Path, length: int = LENGTH) -> Path:
    """A finished run directory with this model."""
    make_run(folder, made_recipe("demo", "rope", 0, vars(model.config), row_length=length, batch_tokens=length), "none")
    named = tokenizer.with_name(TOKENIZER)
    if named != tokenizer:
        named.write_bytes(tokenizer.read_bytes())
    save_model(folder / "model", model.config, model.state_dict(), model.encoding.artifact(length), named)
    return folder
