"""Named GPUs as data: what their vendor says they can do, and how to recognise them."""

import re
from dataclasses import dataclass

from lerope.core.checks import hint


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One model of GPU."""

    name: str
    peak_flops: float
    """Dense bfloat16 matrix products with float32 sums, FLOP/s; vendors also print twice this, for sparse matrices."""
    memory_bytes: int
    """What the driver reports, not the round number of the product's name."""
    link_bytes_per_s: float
    """What it receives from the others of its node, one way: NVLink, or where there is none PCIe 4.0 x16."""
    device_names: str
    """A pattern for the names the driver gives it, without the brand; variants with other peaks must not match."""


def _gpu(name: str, tflops: float, memory_mib: int, link_gb_per_s: float, device_names: str) -> Gpu:
    return Gpu(
        name=name,
        peak_flops=tflops * 1e12,
        memory_bytes=memory_mib << 20,
        link_bytes_per_s=link_gb_per_s * 1e9,
        device_names=device_names,
    )


# Peaks are NVIDIA's: the data sheets of A100, H100 (SXM), H200 (SXM), HGX B200 and L40S, the last four with their
# sparse figures halved where no dense one is printed, and for the RTX 4090 the Ada architecture's white paper.
# Links are half of what the same sheets print for both ways together.
# The H100 PCIe, the NVL cards, GH200, GB200 and the RTX 4090 D have other peaks and are left out rather than guessed.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100-80G", 312, 81_920, 300, r"A100-SXM4-80GB|A100-SXM-80GB|A100 80GB PCIe"),
        _gpu("H100-80G", 989.4, 81_559, 450, r"H100 80GB HBM3"),
        _gpu("H200", 989.4, 143_771, 450, r"H200"),
        _gpu("B200", 2250, 183_359, 900, r"B200"),
        _gpu("L40S", 362.05, 46_068, 32, r"L40S"),
        _gpu("RTX 4090", 165.2, 24_564, 32, r"RTX 4090"),
    )
}


def gpu_named(name: str) -> Gpu:
    """A GPU by its name in `GPUS`, in any case, or by the name torch gives the device, such as "NVIDIA H200"."""
    gpu = _find(name)
    if gpu is None:
        raise ValueError(f"gpu must be one of {', '.join(GPUS)}; got {name!r}{hint(name, GPUS)}")
    return gpu


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 FLOP/s of a device by the name torch gives it, None where it is not known: never a guess."""
    gpu = _find(device_name)
    return None if gpu is None else gpu.peak_flops


def _find(name: str) -> Gpu | None:
    # Whole names, not parts of them: "H200" is also in "GH200" and in "H200 NVL", which are slower or larger.
    bare = re.sub(r"^(NVIDIA )?(GeForce )?", "", name.strip(), flags=re.IGNORECASE)
    for gpu in GPUS.values():
        if bare.lower() == gpu.name.lower() or re.fullmatch(gpu.device_names, bare, re.IGNORECASE):
            return gpu
    return None
