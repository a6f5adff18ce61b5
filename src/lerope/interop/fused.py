"""The fused kernel in converted models: every layer turns queries and keys in one launch, as in our own model.

A transformers model asks its rotary module once a forward pass and hands what it gives, as (cos, sin), to
`apply_rotary_pos_emb` of its modeling module in every layer. A converted model gives a `Turn` in place of both. That
function, wrapped once for each modeling module, knows it; tensors go to the original, as models not converted have.
"""

import functools
import importlib
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from lerope.core.encoding import Layout
from lerope.interop.qk_norm import Unnormed, normed, turned_after_norm
from lerope.rotary.rotate import rotate
from lerope.rotary.rotation import Rotation

_FUNCTION = "apply_rotary_pos_emb"
# Liger's needs a GPU to run at all, and it stands only where the formula is Llama's.
_LIGER = "liger_kernel."


class Turn:
    """A rotation on its way through a transformers model, where others expect cosines and sines.

    Opaque on purpose, as `Rotation` is: wrappers that cast tensors must not find any.
    """

    __slots__ = ("rotation",)

    def __init__(self, rotation: Rotation) -> None:
        self.rotation = rotation

    def __call__(self, q: Any, k: Any, heads_first: bool) -> tuple[Tensor, Tensor]:
        """Turns queries and keys, (rows, heads, length, head_dim) or heads after the length."""
        self.rotation.head_dim = q.shape[-1]  # layers of some families split off what does not turn, others leave it
        if heads_first:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        if isinstance(q, Unnormed) and isinstance(k, Unnormed):
            q, k = turned_after_norm(self.rotation, q, k)
        else:
            q, k = self.rotation(normed(q), normed(k))
        return (q.transpose(1, 2), k.transpose(1, 2)) if heads_first else (q, k)

    def to(self, device: Any, **_: Any) -> "Turn":
        """The same on another device, for models spread over several; a dtype has no effect."""
        return self if isinstance(device, torch.dtype) else Turn(self.rotation.to(device))


def takes_turns(modeling: str) -> None:
    """Makes a modeling module's function take a `Turn`; harmless when repeated."""
    module: Any = importlib.import_module(modeling)
    original = getattr(module, _FUNCTION)
    if hasattr(original, "takes_turns"):
        return

    # With the package kernels installed the function is a module that calls it.
    @functools.wraps(getattr(original, "forward", original), updated=())
    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cos, Turn):
            return cos(q, k, kwargs.get("unsqueeze_dim", 1) == 1)
        return original(normed(q), normed(k), cos, sin, *args, **kwargs)

    apply_rotary_pos_emb.takes_turns = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, apply_rotary_pos_emb)


def pairing(modeling: str, cos: Tensor, sin: Tensor, positions: Tensor, frequencies: Tensor) -> Layout | None:
    """How a modeling module's function pairs dimensions, seen by calling it; None if it is not one that we know.

    Args:
        cos, sin: (1, length, any), what the rotary module gives for these.
        positions: (1, length).
        frequencies: (bands,).
    """
    function = getattr(sys.modules.get(modeling), _FUNCTION, None)
    if function is None or not modeling.startswith("transformers.") or not _is_only_one(modeling):
        return None
    if str(getattr(function, "__module__", "")).startswith(_LIGER):
        return "half"
    noise = torch.Generator().manual_seed(0)
    positions, frequencies = positions.cpu(), frequencies.cpu()
    # (row, length, heads, dimensions), which the function takes with heads first.
    q, k = (torch.randn(1, positions.shape[1], heads, 2 * len(frequencies), generator=noise) for heads in (2, 1))
    layouts: tuple[Layout, ...] = ("half", "interleaved")
    try:
        found = function(q.transpose(1, 2), k.transpose(1, 2), cos.float().cpu(), sin.float().cpu())
        for layout in layouts:
            pairs = zip((q, k), found, strict=True)
            if all(
                torch.allclose(rotate(x, positions, frequencies, layout), y.transpose(1, 2), atol=1e-5)
                for x, y in pairs
            ):
                return layout
    except (TypeError, ValueError, RuntimeError, IndexError):
        pass
    return None


def _is_only_one(modeling: str) -> bool:
    """Whether nothing else in a modeling module takes cosines: layers might give it a `Turn`."""
    module = sys.modules[modeling]
    found = [
        name
        for name, each in inspect.getmembers(module, lambda x: inspect.isfunction(x) or isinstance(x, nn.Module))
        if not name.startswith("_") and "cos" in inspect.signature(getattr(each, "forward", each)).parameters
    ]
    return found == [_FUNCTION]
