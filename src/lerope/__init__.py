"""Rotary position encodings whose frequencies are learned.

    encoding = lerope.LeRoPE(head_dim=64)
    q, k = encoding(q, k, positions)

Names load on first use, so `import lerope` costs nothing and parts that need no torch stay free of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lerope.interop.export_hf import export
    from lerope.interop.huggingface import convert
    from lerope.interop.unconvert import unconvert
    from lerope.rotary.artifact import Frequencies
    from lerope.rotary.encodings import Encoding, FrozenRoPE, LeRoPE, NoPE, PRoPE, RoPE
    from lerope.rotary.extension import Extension, extend, scale_by_position
    from lerope.rotary.frequencies import Diagnostics
    from lerope.rotary.optim import GradientNorms, check_gradients, clip_grad_norm_, param_groups
    from lerope.rotary.preset import preset
    from lerope.rotary.rotate import permute_layout, rerotate, rotate
    from lerope.rotary.rotation import Rotation

__version__ = "0.1.0"

__all__ = [
    "Diagnostics",
    "Encoding",
    "Extension",
    "Frequencies",
    "FrozenRoPE",
    "GradientNorms",
    "LeRoPE",
    "NoPE",
    "PRoPE",
    "RoPE",
    "Rotation",
    "check_gradients",
    "clip_grad_norm_",
    "convert",
    "export",
    "extend",
    "param_groups",
    "permute_layout",
    "preset",
    "rerotate",
    "rotate",
    "scale_by_position",
    "unconvert",
]

_HOME = {
    "lerope.interop.export_hf": ["export"],
    "lerope.interop.huggingface": ["convert"],
    "lerope.interop.unconvert": ["unconvert"],
    "lerope.rotary.artifact": ["Frequencies"],
    "lerope.rotary.encodings": ["Encoding", "FrozenRoPE", "LeRoPE", "NoPE", "PRoPE", "RoPE"],
    "lerope.rotary.extension": ["Extension", "extend", "scale_by_position"],
    "lerope.rotary.frequencies": ["Diagnostics"],
    "lerope.rotary.optim": ["GradientNorms", "check_gradients", "clip_grad_norm_", "param_groups"],
    "lerope.rotary.preset": ["preset"],
    "lerope.rotary.rotate": ["permute_layout", "rerotate", "rotate"],
    "lerope.rotary.rotation": ["Rotation"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lerope' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
