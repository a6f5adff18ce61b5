"""Optional packages: which version is installed, and whether it works on this machine."""

import os
import warnings
from functools import cache
from importlib import import_module, metadata
from typing import Any

import torch

from lerope.core.cache import cache_folder

# What these packages compile outlasts a process only if they are told to keep it.
_KEPT = {
    "flash-attn-4": ("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}),
    "quack-kernels": ("QUACK_CACHE_DIR", {}),
    "torch": ("TORCHINDUCTOR_CACHE_DIR", {}),  # by itself in the machine's folder for temporary files
}
_LIBRARIES = ("cutlass", "quack", "flash_attn")


@cache
def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def import_obstacle(package: str, module: str) -> str | None:
    """What goes wrong when a module that needs this package is imported; None if nothing does."""
    keep_compiled(package)
    _hush()
    try:
        import_module(module)
    except Exception as error:  # of any kind: other versions, other CUDA libraries
        return f"{package} {version(package)} does not work here ({type(error).__name__}: {error})"
    return None


def gpu_obstacle(device: torch.device, least: int = 9) -> str | None:
    """Why a GPU cannot run kernels made for this compute capability (9 is Hopper) or later; None if it can."""
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= least else f"it needs compute capability {least}.0 and this GPU has {major}.{minor}"


def keep_compiled(package: str) -> None:
    """Has a library keep what it compiles, so that a second run need not wait for it."""
    if package not in _KEPT or version(package) is None:
        return
    variable, others = _KEPT[package]
    folder = cache_folder() / "compiled" / package
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # then each run compiles for itself
    for name, value in {variable: str(folder), **others}.items():
        os.environ.setdefault(name, value)


@cache
def _hush() -> None:
    """Hides kernel libraries' warnings about their own code; one of them removes filters."""
    show: Any = warnings.showwarning

    def chosen(message: Any, category: Any, filename: str, *rest: Any, **options: Any) -> None:
        if not any(f"/{library}" in filename.replace("\\", "/") for library in _LIBRARIES):
            show(message, category, filename, *rest, **options)

    warnings.showwarning = chosen
