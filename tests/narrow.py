"""A device that has no float64, as Apple's GPUs have none, for machines without one.

Its tensors say that they are on `meta` and hold their values on the CPU. What Apple's GPUs refuse, they refuse:
float64, and a tensor of another device beside them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lerope.rotary import frequencies

DEVICE = "meta"
_MOVES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class Narrow(Tensor):
    """A tensor there."""

    held: Tensor
    is_meta = False  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> "Narrow":
        if held.dtype == torch.float64:
            raise TypeError("Cannot convert a tensor to float64, which this device does not have.")
        made = Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE)
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"Narrow({self.held})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(op, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """For what makes tensors or moves them."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(op, args, kwargs or {})


def _computed(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_here = any(isinstance(tensor, Narrow) for tensor in tensors)
    if is_here and op not in _MOVES and any(not isinstance(each, Narrow) and each.ndim for each in tensors):
        raise RuntimeError(f"{op}: all tensors must be on the same device, but found two.")
    if kwargs.get("device") is not None:
        is_here = torch.device(kwargs["device"]).type == DEVICE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map_only(Narrow, lambda tensor: tensor.held, (args, kwargs))
    out = op(*args, **kwargs)
    if op._schema.is_mutable and op._schema.name.endswith("_"):
        return next(iter(tensors))
    return tree_map_only(Tensor, Narrow, out) if is_here else out


@contextmanager
def narrow_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device's name, for `to` and `device=` in here."""
    monkeypatch.setattr(frequencies, "NARROW", {DEVICE})
    with _Mode():
        yield DEVICE
