"""QK-norm and rotation in one kernel, for families that norm each head of queries and keys just before they turn.

The norms of a converted model hand on what they were given as `Unnormed`, and the rotation that receives it norms and
turns at once. Nothing else happens to queries and keys in between, in these families, but a transposition.
"""

import functools
from typing import Any

from torch import Tensor, nn

from lerope.core.recipe import Kernel
from lerope.rotary.dispatch import triton_obstacle
from lerope.rotary.rotation import Rotation

# Attention layers with norms q_norm and k_norm over a head, and what is added to their weights to make a gain.
_ADDED = {
    "ApertusAttention": 0.0,
    "Gemma3Attention": 1.0,
    "Qwen3Attention": 0.0,
    "Qwen3MoeAttention": 0.0,
    "Qwen3NextAttention": 1.0,
}


class Unnormed:
    """Queries or keys whose norm is still to come; anything but a transposition is done to the normed tensor."""

    __slots__ = ("added", "norm", "x")

    def __init__(self, x: Tensor, norm: nn.Module, added: float) -> None:
        self.x, self.norm, self.added = x, norm, added

    def transpose(self, first: int, second: int) -> "Unnormed":
        return Unnormed(self.x.transpose(first, second), self.norm, self.added)

    def gain(self) -> Tensor:
        """What the norm multiplies by."""
        weight = self.norm.weight
        assert isinstance(weight, Tensor)
        return weight.float() + self.added if self.added else weight

    @property
    def shape(self) -> Any:
        """That of the tensor."""
        return self.x.shape

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__ or name.startswith("__"):  # asked of an object that is still being made
            raise AttributeError(name)
        return getattr(normed(self), name)


def normed(x: Any) -> Any:
    """Queries or keys with their norm, where it is still to come."""
    return type(x.norm).forward(x.norm, x.x) if isinstance(x, Unnormed) else x


def defer_norms(model: nn.Module, kernel: Kernel) -> None:
    """Makes the norms of queries and keys leave their work to the rotation, wherever the fused kernel can run."""
    for module in model.modules():
        added = _ADDED.get(type(module).__name__)
        if added is None:
            continue
        for norm in (module.q_norm, module.k_norm):
            assert isinstance(norm, nn.Module)
            # An attribute of the instance, which hides the method of its class.
            norm.forward = functools.partial(_deferred, norm, added, kernel)


def restore_norms(model: nn.Module) -> None:
    """Undoes `defer_norms`."""
    for module in model.modules():
        if isinstance(forward := vars(module).get("forward"), functools.partial) and forward.func is _deferred:
            del module.forward


def turned_after_norm(rotation: Rotation, q: Unnormed, k: Unnormed) -> tuple[Tensor, Tensor]:
    """Queries and keys, (rows, length, heads, head_dim), normed and turned."""
    eps = _eps(q.norm)
    if eps == _eps(k.norm):
        found = rotation.after_gains(q.x, k.x, q.gain(), k.gain(), eps)
        if found is not None:
            return found
    return rotation(normed(q), normed(k))


def _deferred(norm: nn.Module, added: float, kernel: Kernel, x: Tensor) -> Any:
    weight: Any = norm.weight
    if triton_obstacle(x, weight, interpreted=kernel == "triton") is None:
        return Unnormed(x, norm, added)
    return type(norm).forward(norm, x)


def _eps(norm: Any) -> float:
    eps: float = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return eps
