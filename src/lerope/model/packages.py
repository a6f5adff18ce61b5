"""Packages that need not be there: which version is, and whether it works on this machine."""

from functools import cache
from importlib import import_module, metadata

import torch


@cache
def version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def broken(package: str, module: str) -> str | None:
    """What goes wrong when a module that needs this package is imported; None if nothing does."""
    try:
        import_module(module)
    except Exception as error:  # of whatever kind: other versions, other libraries of CUDA
        return f"{package} {version(package)} does not work here ({type(error).__name__}: {error})"
    return None


def too_old(device: torch.device, least: int = 9) -> str | None:
    """Why a GPU cannot run kernels made for this compute capability or later, 9 is Hopper's; None if it can."""
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= least else f"it needs compute capability {least}.0 and this GPU has {major}.{minor}"
