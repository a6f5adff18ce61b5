"""Small ladder models that were really trained, on real text with a real tokenizer, in seconds."""

import atexit
import functools
import inspect
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lerope
from lerope.core.ladder import ModelConfig
from lerope.data.tokenizer import Tokenizer, train_tokenizer
from lerope.model.init import init_weights
from lerope.model.saved import save_model
from lerope.model.transformer import Transformer

VOCAB_SIZE = 512
TRAIN_LENGTH = 256


@functools.cache
def home() -> Path:
    path = Path(tempfile.mkdtemp(prefix="lerope-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def text() -> str:
    return "".join(inspect.getsource(module) for module in (json.decoder, json.encoder, inspect, functools, tempfile))


@functools.cache
def tokenizer_path() -> Path:
    path = home() / "tokenizer.model"
    train_tokenizer([text()], VOCAB_SIZE, path)
    return path


@functools.cache
def tokens() -> torch.Tensor:
    """The text's tokens, BOS first."""
    return torch.from_numpy(Tokenizer(tokenizer_path()).encode([text()])[0].astype(np.int64))[:-1]


def odd_lerope(**options: Any) -> lerope.LeRoPE:
    """LeRoPE at frequencies far from RoPE's."""
    encoding = lerope.LeRoPE(64, **options)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        encoding.alpha.copy_(0.8 * torch.randn(encoding.alpha.shape, generator=noise) - 0.5)
    return encoding


def reset(model: Transformer) -> None:
    """Initial weights, without the encoding's."""
    before = {name: value.clone() for name, value in model.encoding.state_dict().items()}
    init_weights(model, 0)
    model.encoding.load_state_dict(before)


def untrained(encoding: lerope.Encoding, activation: Any = "relu2") -> Transformer:
    """Random weights whose attention is far from even, and gains that all differ."""
    config = ModelConfig(num_layers=2, num_heads=2, vocab_size=VOCAB_SIZE, activation=activation)
    model = Transformer(config, encoding)
    reset(model)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                scale = 2.0 if "q_norm" in name or "k_norm" in name else 1.0
                parameter.copy_(scale * (0.5 + torch.rand(parameter.shape, generator=noise)))
    return model


@functools.cache
def trained(activation: Any = "relu2", num_steps: int = 80) -> Path:
    """The folder of a model trained with odd frequencies."""
    encoding = odd_lerope()
    model = Transformer(ModelConfig(num_layers=2, num_heads=2, vocab_size=VOCAB_SIZE, activation=activation), encoding)
    reset(model)
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=4e-3, weight_decay=0.0))
    starts = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        at = torch.randint(len(tokens()) - 129, (8,), generator=starts)
        rows = torch.stack([tokens()[i : i + 129] for i in at])
        loss = model(rows[:, :-1], targets=rows[:, 1:]) / rows[:, 1:].numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = home() / f"{activation}-{num_steps}" / "model"
    folder.parent.mkdir(exist_ok=True)
    save_model(folder, model.config, model.state_dict(), encoding.artifact(TRAIN_LENGTH), tokenizer_path())
    return folder.parent
