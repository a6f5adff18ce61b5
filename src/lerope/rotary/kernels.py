"""Which code turns a tensor: the fused Triton kernels where they can run, the reference elsewhere."""

import importlib.util
import os
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kernel = Literal["auto", "triton", "reference"]

_HAS_TRITON = importlib.util.find_spec("triton") is not None
# Triton then runs kernels on the CPU, slowly: how they are tested without a GPU.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Choice(NamedTuple):
    """A kernel, and why it is not the fused one."""

    kernel: Literal["triton", "reference"]
    reason: str | None = None

    def __str__(self) -> str:
        return self.kernel if self.reason is None else f"{self.kernel} ({self.reason})"


def choose(kernel: Kernel, *tensors: Tensor, frequencies: Tensor) -> Choice:
    """What will turn these tensors; raises where `triton` was asked for and cannot."""
    if kernel == "reference":
        return Choice("reference", "asked for")
    reason = obstacle(kernel, *tensors, frequencies=frequencies)
    if reason is None:
        return Choice("triton")
    if kernel == "triton":
        raise ValueError(f"kernel 'triton' cannot run here, because {reason}; leave it at 'auto'.")
    return Choice("reference", reason)


def obstacle(kernel: Kernel, *tensors: Tensor, frequencies: Tensor) -> str | None:
    """What keeps the fused kernel from running; None if nothing does."""
    if not _HAS_TRITON:
        return "triton is not installed"
    by_name = _INTERPRETED and kernel == "triton"
    for tensor in (*tensors, frequencies):
        if hasattr(tensor, "full_tensor"):
            return "it takes no DTensor"
        if tensor.device.type != "cuda" and not by_name:
            return f"it needs a CUDA device and the tensors are on {tensor.device.type}"
    for tensor in tensors:
        if tensor.dtype not in _DTYPES:
            return f"it takes no {tensor.dtype}"
    if frequencies.dtype != torch.float32:
        return f"the frequencies are {frequencies.dtype}"
    if frequencies.ndim > 2 and frequencies.requires_grad:
        return "frequencies that learn have more than two dimensions"
    return None
