"""The fastest way to attend on this GPU: measured once for a shape, remembered in the user's cache folder."""

import json
import math
import os
import statistics
from pathlib import Path

import torch
from torch import Tensor

from lerope.model.attention import BACKENDS, Backend, DocumentMask, obstacle
from lerope.model.packages import version

_ROUNDS = 7


def fastest(document_ids: Tensor, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Backend:
    """The backend whose forward and backward pass take the least time for documents that lie like these.

    A measurement is made once for a GPU, versions of torch and flash-attn-4, the backends that can run, a shape, a
    dtype and a mean length of documents (a power of two); later calls read it from attention.json in the cache folder.
    Delete that file to measure again.

    Args:
        document_ids: (rows, length), on the CPU.
    """
    candidates = [b for b in BACKENDS if obstacle(b, device, dtype) is None]
    if device.type != "cuda":
        return candidates[0]
    candidates.remove("sdpa")  # its dense mask is slow and large
    if len(candidates) == 1:
        return candidates[0]
    num_documents = len(document_ids) + int((document_ids[:, 1:] != document_ids[:, :-1]).sum())
    mean_length = 2 ** round(math.log2(document_ids.numel() / num_documents))
    rows, length = document_ids.shape
    shape = f"{rows} rows of {length}, {num_heads} heads of {head_dim}, {dtype}, documents of {mean_length}"
    versions = f"torch {torch.__version__}, flash-attn-4 {version('flash-attn-4')}"
    key = f"{torch.cuda.get_device_name(device)}, {versions}, {'/'.join(candidates)}: {shape}"
    known = _remembered().get(key)
    found = next((b for b in candidates if isinstance(known, dict) and known.get("backend") == b), None)
    if found is not None:
        return found
    times = measure(candidates, document_ids, num_heads, head_dim, dtype, device)
    best = min(times, key=lambda b: times[b])
    _remember(key, {"backend": best, "milliseconds": times})
    return best


def measure(
    backends: list[Backend],
    document_ids: Tensor,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[Backend, float]:
    """Milliseconds of a forward and backward pass: the median of rounds in which backends take turns."""
    document_ids = document_ids.to(device)
    shape = (*document_ids.shape, num_heads, head_dim)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    weight = torch.randn(shape, device=device, dtype=dtype)
    times: dict[Backend, list[float]] = {backend: [] for backend in backends}
    problems: list[Exception] = []
    for _ in range(_ROUNDS):
        for backend in list(times):
            try:
                mask = DocumentMask(document_ids, backend)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                torch.autograd.grad(mask.attend(q, k, v), (q, k, v), weight)
                end.record()
                end.synchronize()
                times[backend].append(start.elapsed_time(end))
            except Exception as problem:  # a kernel that is not to be had here; libraries' errors share no class
                problems.append(problem)
                del times[backend]
    if not times:
        raise problems[0]
    # The first rounds compile and warm up.
    return {backend: statistics.median(taken[2:] or taken) for backend, taken in times.items()}


def _cache() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "lerope" / "attention.json"


def _remembered() -> dict[str, object]:
    try:
        known = json.loads(_cache().read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(key: str, value: dict[str, object]) -> None:
    path = _cache()
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({**_remembered(), key: value}, indent=1))
        partial.replace(path)
    except OSError:
        pass  # a cache folder that cannot be written to costs a measurement in every run
