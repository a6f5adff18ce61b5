"""Compiles the kernels of many layouts for Hopper, which takes no GPU, and prints what each takes.

Registers of a thread, bytes that do not fit into them, and instructions for each pair of numbers: of the backward
kernel those of its loop.

Run in a process of its own without Triton's interpreter, in which kernels are not compiled.
"""

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from lerope.bench.rotary import VARIANTS, Variant
from lerope.rotary import triton_rotary

TOOLS = Path(triton.backends.nvidia.__file__).parent / "bin"
HOPPER = GPUTarget("cuda", 90, 32)
ALIKE = ("views of qkv", "packed positions", "float16")
"""What is compiled like other layouts."""
MORE = (
    Variant(name="partial, 32 of 128", head_dim=128, rotary_dim=32),
    Variant(name="partial, 64 of 128", head_dim=128, rotary_dim=64),
    Variant(name="partial, 32 of 80, 32 heads", q_heads=32, k_heads=32, head_dim=80, rotary_dim=32),
    Variant(name="partial, 24 of 96", head_dim=96, rotary_dim=24),
    Variant(name="partial, 20 of 80, 32 heads", q_heads=32, k_heads=32, head_dim=80, rotary_dim=20),
    Variant(name="partial, 64 of 256, interleaved", head_dim=256, rotary_dim=64, layout="interleaved"),
    Variant(name="head_dim 80", head_dim=80),
    Variant(name="head_dim 128, grouped queries", q_heads=32, k_heads=8, head_dim=128),
)
"""What other models have."""
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32"}


class Launches:
    """Stands for a kernel and notes its arguments instead of being launched."""

    def __init__(self):
        self.found = []

    def __getitem__(self, grid):
        return lambda *args, **settings: self.found.append((args, settings))


def launches(variant, norm):
    """The arguments with which the forward and the backward kernel would be launched."""
    lead, dim = (2, 256), variant.head_dim
    dtype = variant.dtype or torch.bfloat16
    bands = (variant.rotary_dim or dim) // 2
    q, k = (torch.empty(*lead, heads, dim, dtype=dtype) for heads in (variant.q_heads, variant.k_heads))
    table = torch.empty(lead[1], variant.k_heads if variant.per_head else 1, bands)
    index = torch.zeros(lead, dtype=torch.int32) if variant.packed else None
    gain = torch.empty(dim) if norm else None
    noted, half = Launches(), variant.layout == "half"
    kernels = {name: getattr(triton_rotary, name) for name in ("_forward", "_backward", "_add_rows")}
    for name in kernels:
        setattr(triton_rotary, name, noted)
    try:
        triton_rotary.turn(q, k, table, table, index, half, gain, gain, 1e-5)
        triton_rotary.turn_back(
            q, k, q, k, torch.empty_like(q), torch.empty_like(k), table, table, index, torch.empty(lead[1]), half,
            gain, gain, 1e-5, True,
        )  # fmt: skip
    finally:
        for name, kernel in kernels.items():
            setattr(triton_rotary, name, kernel)
    return noted.found[:2]


def compiled(kernel, args, settings):
    """PTX, for arguments that are specialised as at a launch."""
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **settings}
    signature, constants, attributes = {}, {}, {}
    for number, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        value = values[name]
        is_pointer = isinstance(value, torch.Tensor)
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants[number,] = value
            continue
        signature[name] = POINTERS[value.dtype] if is_pointer else "i32" if isinstance(value, int) else "fp32"
        if is_pointer or value % 16 == 0:
            attributes[number,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return compile_kernel(source, target=HOPPER, options={"num_warps": settings["num_warps"]}).asm["ptx"]


def usage(ptx):
    """Registers of a thread, bytes that do not fit into them, and instructions: of the longest loop, or all."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        said = run("ptxas", "-v", "-arch=sm_90a", source, "-o", binary).stderr
        code = run("nvdisasm", "-c", binary).stdout
    registers, stores = (re.search(what, said) for what in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
    return int(registers[1]), int(stores[1]), length(code)


def run(tool, *arguments):
    return subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=True)


def length(code):
    """Instructions between a label and the last jump back to it, at most; without a loop all."""
    labels, number, longest = {}, 0, 0
    for line in code.splitlines():
        if label := re.match(r"\s*\.(L_x_\d+):", line):
            labels[label[1]] = number
        elif re.search(r"/\*[0-9a-f]{4,}\*/", line):
            number += 1
            jump = re.search(r"BRA.*?(L_x_\d+)", line)
            # The last instruction of all jumps to itself.
            if jump and number - labels.get(jump[1], number) > 1:
                longest = max(longest, number - labels[jump[1]])
    return longest or number


def pairs_of_thread(settings):
    """Pairs of numbers that a thread takes at a time, padding included."""
    return settings["TOKENS"] * settings["PADDED_HEADS"] * settings["PADDED"] / (32 * settings["num_warps"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only")
    parser.add_argument("--tokens", type=int, help="in a tile, instead of what the kernel takes")
    asked = parser.parse_args()
    if asked.tokens:
        triton_rotary.backward_tile = lambda size: (asked.tokens, 2)
    for variant, norm in itertools.product((*VARIANTS, *MORE), (False, True)):
        name = variant.name + (", QK-norm" if norm else "")
        if name == asked.only if asked.only else variant.name not in ALIKE:
            forward, backward = launches(variant, norm)
            # The forward kernel has the instructions for queries and for keys; a loop is that of one of them.
            for kernel, (args, settings), parts in (("_forward", forward, 2), ("_backward", backward, 1)):
                registers, spilled, number = usage(compiled(getattr(triton_rotary, kernel), args, settings))
                each = round(number / parts / pairs_of_thread(settings), 1)
                print(json.dumps([name, kernel.strip("_"), registers, spilled, each]), flush=True)
