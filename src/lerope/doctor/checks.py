"""Tries everything lerope can use on a machine: kernels against float64, the compiler, packages, folders."""

import importlib.util
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lerope
from lerope.core.extras import install
from lerope.results import Finding

if TYPE_CHECKING:
    import torch

    from lerope.doctor.trials import Outcome
    from lerope.model.attention import Backend

OK, MISSING, BROKEN = "ok", "missing", "broken"
_NO_GPU = "needs a CUDA device"

# Package: (module, extra that installs it, what it is for).
PACKAGES = {
    "sentencepiece": ("sentencepiece", "data", "tokenizers"),
    "protobuf": ("google.protobuf", "data", "reading tokenizers"),
    "pyarrow": ("pyarrow", "data", "Parquet files"),
    "zstandard": ("zstandard", "data", ".zst files"),
    "datasets": ("datasets", "data", "Hugging Face datasets"),
    "transformers": ("transformers", "hf", "Hugging Face models"),
    "tokenizers": ("tokenizers", "hf", "exported tokenizers"),
    "accelerate": ("accelerate", "hf", "Trainer"),
    "gguf": ("gguf", "gguf", "exports for llama.cpp"),
    "scipy": ("scipy", "scaling", "intervals and fits"),
    "matplotlib": ("matplotlib", "plots", "figures"),
    "tensorboard": ("tensorboard", "tensorboard", "a tracker"),
    "wandb": ("wandb", "wandb", "a tracker"),
    "trackio": ("trackio", "trackio", "a tracker"),
}
_COMPILER = "install a C++ compiler, for example: apt install build-essential"
# Error patterns, and what helps.
_FIXES = {
    r"C(\+\+)? compiler": _COMPILER,
    "non-zero exit status": "the compiler failed; often Python's headers are missing: apt install python3-dev",
    "out of memory": "another program is using the GPU's memory; nvidia-smi shows it",
}
_COMPILE_S = 120
"""Long enough for a slow machine."""
_BACKENDS: "tuple[Backend, ...]" = ("sdpa", "flex", "varlen", "flash4")


class Verdict(NamedTuple):
    """The result of a check."""

    status: str
    note: str
    fix: str = ""
    worst: "Outcome | None" = None


def examine(trying: Callable[[str], Any]) -> Iterator[Finding]:
    """Runs all checks in order.

    Args:
        trying: returns a context to enter while the check of this name runs.
    """
    for name, check in checks().items():
        with trying(name):
            status, note, fix, worst = _isolated(check)
        error, tolerance = (None, None) if worst is None else (worst.error, worst.tolerance)
        if error is not None and not math.isfinite(error):
            error = None  # JSON has no such numbers
        yield {"name": name, "status": status, "note": note, "fix": fix, "error": error, "tolerance": tolerance}


def checks() -> dict[str, Callable[[], Verdict]]:
    """Every check by name, in order."""
    return {
        "lerope": lambda: Verdict(OK, f"{lerope.__version__}, Python {platform.python_version()}"),
        "torch": _torch,
        "GPU": _gpu,
        "rotary, reference": partial(_tried, "rotary", "reference"),
        "rotary, fused": _fused_rotary,
        "norm": lambda: _tried("norm", by=_own_kernels()),
        "products": _products,
        "MLP": lambda: _tried("mlp", by=_own_kernels() if _quack_obstacle() else "QuACK"),
        "head and loss": lambda: _tried("head", by=_own_kernels()),
        **{f"attention, {backend}": partial(_attention, backend) for backend in _BACKENDS},
        "torch.compile": _compile,
        "distributed": _distributed,
        "cache folder": _cache_folder,
        "bytecode": _bytecode,
        **{name: partial(_package, name) for name in PACKAGES},
    }


def _isolated(check: Callable[[], Verdict]) -> Verdict:
    """A check's result, or its failure."""
    try:
        return check()
    except Exception as error:  # of any kind: libraries, drivers and compilers fail in their own ways
        message = str(error).strip()
        return _broken(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def _broken(message: str) -> Verdict:
    """With the first line of an error's message, and a fix if one is known."""
    fix = next((fix for sign, fix in _FIXES.items() if re.search(sign, message)), "")
    return Verdict(BROKEN, message.splitlines()[0], fix)


def _torch() -> Verdict:
    import torch

    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return Verdict(OK, f"{torch.__version__}, {cuda}, {torch.get_num_threads()} CPU threads")


def _gpu() -> Verdict:
    import torch

    if not torch.cuda.is_available():
        return _no_gpu()
    found: Counter[str] = Counter()
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        torch.ones(1, device=torch.device("cuda", index)).add(1).item()  # raises if torch has no kernels for it
        memory = f"{device.total_memory / 2**30:.0f} GiB"
        found[f"{device.name}, {memory}, compute capability {device.major}.{device.minor}"] += 1
    return Verdict(OK, "; ".join(f"{number} x {what}" for what, number in found.items()))


def _no_gpu() -> Verdict:
    import torch

    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return Verdict(MISSING, "none on this machine; everything runs on the CPU")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return Verdict(MISSING, f"hidden by CUDA_VISIBLE_DEVICES = {hidden!r}", "unset CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        return Verdict(BROKEN, "present, but torch was built without CUDA", "install torch as pytorch.org says")
    fix = "check the CUDA version that nvidia-smi prints; it must not be older than torch's"
    return Verdict(BROKEN, "present, but torch cannot use it", fix)


def _device() -> "torch.device":
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _tried(trial: str, *arguments: object, by: str = "") -> Verdict:
    """Whether a trial gives the right result."""
    from lerope.doctor import trials

    outcomes = getattr(trials, trial)(*arguments, _device())
    worst = max(outcomes, key=lambda each: (not each.is_right, each.error / each.tolerance))
    errors = ", ".join(f"{each.error:.0e} in {each.dtype}" for each in outcomes)
    note = f"{by + ', ' if by else ''}off by {errors}"
    if worst.is_right:
        return Verdict(OK, note, worst=worst)
    return Verdict(BROKEN, f"{note}: wrong, rounding explains only {worst.tolerance:.0e} in {worst.dtype}", worst=worst)


def _triton_obstacle() -> str | None:
    """What keeps Triton kernels from running here; None if nothing does."""
    import torch

    from lerope.rotary import dispatch

    device = _device()
    return _NO_GPU if device.type == "cpu" else dispatch.triton_obstacle(torch.empty(0, device=device))


def _fused_rotary() -> Verdict:
    reason = _triton_obstacle()
    if reason is None:
        return _tried("rotary", "triton")
    return Verdict(MISSING, f"{reason}; the reference is used", "" if reason == _NO_GPU else install("kernels"))


def _own_kernels() -> str:
    return "torch" if _triton_obstacle() else "Triton"


def _quack_obstacle() -> str | None:
    """What keeps QuACK's products from running here; None if nothing does."""
    import torch

    from lerope.model.kernels import products

    device = _device()
    if device.type == "cpu":
        return f"QuACK {_NO_GPU}"
    return products.quack_obstacle(torch.empty(0, dtype=torch.bfloat16, device=device))


def _products() -> Verdict:
    reason = _quack_obstacle()
    if reason is None:
        return _tried("product", by="QuACK")
    plain = _tried("product", by=f"torch ({reason})")
    if plain.status == BROKEN or _device().type == "cpu":
        return plain
    return _of_fast("quack-kernels", plain.note)._replace(worst=plain.worst)


def _attention(backend: "Backend") -> Verdict:
    from lerope.model.attention import PACKED
    from lerope.model.kernels import packed_attention

    device = _device()
    if backend != "sdpa" and device.type == "cpu":
        return Verdict(MISSING, _NO_GPU)
    reason = packed_attention.flash_obstacle(PACKED[backend], device) if backend in PACKED else None
    if reason is None:
        return _tried("attention", backend)
    return _of_fast("flash-attn-4", reason) if backend == "flash4" else Verdict(MISSING, reason)


def _of_fast(package: str, reason: str) -> Verdict:
    """Why a package from the extra `fast` does not run on this GPU."""
    import torch

    from lerope.model.kernels import packages

    if packages.gpu_obstacle(_device()) is not None:
        return Verdict(MISSING, reason)
    if packages.version(package) is None:
        return Verdict(MISSING, reason, install("fast"))
    needs_more = (torch.version.cuda or "").startswith("13")
    return Verdict(BROKEN, reason, "pip install 'nvidia-cutlass-dsl[cu13]'" if needs_more else install("fast"))


def _compile() -> Verdict:
    device = _device()
    # In a separate process, as the compiler caches what it finds; and in a separate folder, or a function
    # compiled earlier would hide that the compiler is gone.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", "from lerope.doctor import trials; trials.compile_here()", str(device)]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_COMPILE_S)
    said = done.stdout.strip()
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        verdict = _broken(said or "".join(last) or f"the compiling process exited with {done.returncode}")
        # On a CPU nothing is compiled unless requested.
        unneeded = device.type == "cpu" and verdict.fix == _COMPILER
        return verdict._replace(status=MISSING, note="no C++ compiler was found") if unneeded else verdict
    if not float(said) < 1e-5:
        return Verdict(BROKEN, f"a compiled function is off by {float(said):.0e}")
    return Verdict(OK, "a small function compiles and is correct")


def _distributed() -> Verdict:
    import torch
    from torch import distributed

    if not distributed.is_available():
        return Verdict(MISSING, "torch was built without it; one process trains")
    gpus = torch.cuda.device_count()
    found = [name for name in ("nccl", "gloo") if distributed.is_backend_available(name)]
    note = f"{', '.join(found) or 'no backend'}; {gpus} GPU{'' if gpus == 1 else 's'}"
    if gpus > 1 and "nccl" not in found:
        return Verdict(MISSING, f"{note}, which need NCCL to train together", "install torch as pytorch.org says")
    return Verdict(OK, note)


def _cache_folder() -> Verdict:
    from lerope.model.kernels import fastest

    folder = fastest.cache_path().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        fix = "set XDG_CACHE_HOME to a writable folder; until then, attention is measured in every run"
        return Verdict(BROKEN, f"{folder} is not writable ({error.strerror})", fix)
    return Verdict(OK, str(folder))


def _bytecode() -> Verdict:
    """Whether Python finds torch compiled, or compiles its source, and that of kernels, at each start."""
    import torch

    compiled = Path(importlib.util.cache_from_source(torch.__file__))
    if compiled.exists():
        return Verdict(OK, "Python keeps what it compiles")
    note = f"there is no {compiled}, so every command compiles Python source again, which takes seconds"
    if sys.dont_write_bytecode:
        return Verdict(MISSING, note, "unset PYTHONDONTWRITEBYTECODE")
    return Verdict(MISSING, note, "set PYTHONPYCACHEPREFIX to a writable folder")


def _package(name: str) -> Verdict:
    from lerope.model.kernels import packages

    module, extra, purpose = PACKAGES[name]
    found = packages.version(name)
    if found is None:
        return Verdict(MISSING, f"for {purpose}", install(extra))
    least = _least_version(name)
    if least is not None and _numbers(found) < _numbers(least):
        return Verdict(MISSING, f"{found} is too old: lerope needs {least} or later for {purpose}", install(extra))
    problem = packages.import_obstacle(name, module)
    if problem is not None:
        return Verdict(BROKEN, problem.splitlines()[0], f"pip install --force-reinstall {name}")
    return Verdict(OK, found)


def _least_version(package: str) -> str | None:
    """What lerope's own metadata requires; None for sources that are not installed."""
    try:
        needs = "\n".join(metadata.requires("lerope") or ())
    except metadata.PackageNotFoundError:
        return None
    found = re.search(rf"^{package}>=([\d.]+)", needs, flags=re.MULTILINE)
    return found and found[1]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
