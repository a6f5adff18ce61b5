"""Which code turns a tensor: the fused Triton kernels where they can run, the reference elsewhere."""

import importlib.util
import os
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lerope.core.recipe import Kernel

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
    """Picks what turns these tensors; raises if `triton` was requested but cannot run."""
    if kernel == "reference":
        return Choice("reference", "asked for")
    reason = triton_obstacle(*tensors, frequencies, interpreted=kernel == "triton")
    if reason is None and frequencies.dtype != torch.float32:
        reason = f"the frequencies are {frequencies.dtype}"
    if reason is None and frequencies.ndim > 2 and frequencies.requires_grad:
        reason = "learned frequencies have more than two dimensions"
    if reason is None:
        return Choice("triton")
    if kernel == "triton":
        raise ValueError(f"kernel 'triton' cannot run here, because {reason}; leave it at 'auto'.")
    return Choice("reference", reason)


def triton_obstacle(*tensors: Tensor, interpreted: bool = False) -> str | None:
    """What keeps Triton kernels from taking these tensors; None if nothing does.

    Args:
        interpreted: whether Triton's interpreter, which takes CPU tensors, will do.
    """
    if not _HAS_TRITON:
        return "triton is not installed"
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "fused kernels support neither torch.func transforms nor forward-mode gradients"
    for tensor in tensors:
        if hasattr(tensor, "full_tensor"):
            return "fused kernels do not take DTensors"
        if tensor.device.type != "cuda" and not (interpreted and _INTERPRETED):
            return f"fused kernels need a CUDA device and the tensors are on {tensor.device.type}"
        if tensor.dtype not in _DTYPES:
            return f"fused kernels do not take {tensor.dtype}"
    return None
