"""The fastest way to attend on this GPU: measured once for a shape, remembered in the user's cache folder."""

import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerope.core.cache import cache_folder
from lerope.core.files import parse_object, write_json
from lerope.model.attention import BACKENDS, Backend, DocumentMask, backend_obstacle
from lerope.model.kernels.packages import version

Call = Callable[[], object]

_ROUNDS = 5
_WARM_UP_CALLS = 3
_CALLS = 8
# About 30 ms, in which the host queues all calls of a round.
_SLEEP_CYCLES = 60_000_000


def fastest(document_ids: Tensor, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Backend:
    """The backend whose forward and backward pass take the least time for documents laid out like these.

    A measurement is made once per GPU, versions of torch and flash-attn-4, the backends that can run, a shape, a
    dtype and a mean length of documents (a power of two); later calls read it from attention.json in the cache folder.
    Delete that file to measure again.

    Args:
        document_ids: (rows, length), on the CPU.
    """
    candidates = [b for b in BACKENDS if backend_obstacle(b, device, dtype) is None]
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
    key = f"{torch.cuda.get_device_name(device)}, {versions}, {'/'.join(candidates)} on the device: {shape}"
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
    """Milliseconds of a forward and backward pass: the median of rounds in which backends take turns.

    Only the device's work counts, as in training, where steps are recorded, not the time the host takes to queue it.
    """
    document_ids = document_ids.to(device)
    shape = (*document_ids.shape, num_heads, head_dim)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    weight = torch.randn(shape, device=device, dtype=dtype)

    def attend(mask: DocumentMask) -> None:
        torch.autograd.grad(mask.attend(q, k, v), (q, k, v), weight)

    times: dict[Backend, list[float]] = {backend: [] for backend in backends}
    problems: list[Exception] = []
    for number in range(_ROUNDS):
        for backend in list(times):
            try:
                call = partial(attend, DocumentMask(document_ids, backend))
                for _ in range(0 if number else _WARM_UP_CALLS):
                    call()
                times[backend].append(_milliseconds(call))
            except Exception as problem:  # a kernel that is unavailable here; libraries' errors share no class
                problems.append(problem)
                del times[backend]
    if not times:
        raise problems[0]
    return {backend: statistics.median(taken) for backend, taken in times.items()}


def _milliseconds(call: Call) -> float:
    """Of one call, while the device always has the next one waiting."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_SLEEP_CYCLES)
    start.record()
    for _ in range(_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / _CALLS


def cache_path() -> Path:
    """The file that holds past measurements."""
    return cache_folder() / "attention.json"


def _remembered() -> dict[str, Any]:
    try:
        return parse_object(cache_path().read_bytes()) or {}
    except OSError:
        return {}


def _remember(key: str, value: dict[str, Any]) -> None:
    path = cache_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**_remembered(), key: value})
    except OSError:
        pass  # an unwritable cache folder costs a measurement in every run
