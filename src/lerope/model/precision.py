"""In which numbers a model computes: float32, or bfloat16 where autocast chooses it; weights are float32 either way."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lerope.core.recipe import Precision


def dtype_of(precision: Precision) -> torch.dtype:
    """What linear layers compute in."""
    return torch.float32 if precision == "float32" else torch.bfloat16


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Where a forward pass has this precision."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype linear layers compute in here; outside autocast that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
