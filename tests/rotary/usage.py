"""Compiles the kernels of many layouts for Hopper, which takes no GPU, and prints what each takes.

Registers of a thread, bytes that do not fit into them, and instructions for each pair of numbers of a head, those spent
on heads that only fill a tile included: of the forward kernel those on its longest way, of the backward kernel those of
its longest loop. Each is of queries or of keys.

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
from lerope.rotary import triton_launch, triton_rotary

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
    Variant(name="head_dim 128, 28 and 4 heads", q_heads=28, k_heads=4, head_dim=128),
    Variant(name="9 and 3 heads", q_heads=9, k_heads=3),
    Variant(name="head_dim 128, 64 and 8 heads", q_heads=64, k_heads=8, head_dim=128),
    Variant(name="frequencies of each of 8 key heads, 32 heads", q_heads=32, k_heads=8, head_dim=128, per_head=True),
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
    kernels = {name: getattr(triton_rotary, name) for name in ("forward", "backward", "add_up")}
    for name in kernels:
        setattr(triton_rotary, name, noted)
    try:
        triton_launch.turn(q, k, table, table, index, half, gain, gain, 1e-5)
        triton_launch.turn_back(
            q, k, q, k, torch.empty_like(q), torch.empty_like(k), table, table, index, torch.empty(lead[1]), half,
            gain, gain, 1e-5, True,
        )  # fmt: skip
    finally:
        for name, kernel in kernels.items():
            setattr(triton_rotary, name, kernel)
    return noted.found[:2]


def named(kernel, args, settings):
    """A launch's arguments by name."""
    return {**dict(zip(kernel.arg_names, args, strict=False)), **settings}


def compiled(kernel, values):
    """PTX, for arguments that are specialised as at a launch."""
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
    return compile_kernel(source, target=HOPPER, options={"num_warps": values["num_warps"]}).asm["ptx"]


def usage(ptx):
    """Registers of a thread, bytes that do not fit into them, and instructions."""
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
    """Instructions of the longest loop; without a loop on the longest way."""
    labels, found = {}, []
    for line in code.splitlines():
        if label := re.match(r"\s*\.(L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/ +(@\S+ )?\s*(.*)", line):
            found.append(instruction.groups())
    ways, longest = [0] * (len(found) + 1), 0
    for place, (condition, what) in reversed(list(enumerate(found))):
        jump = re.match(r"BRA.*?(L_x_\d+)", what)
        target = labels[jump[1]] if jump else place
        # The last instruction of all jumps to itself.
        longest = max(longest, place + 1 - target if target < place else 0)
        goes_on = condition or not (jump or what.startswith("EXIT"))
        ways[place] = 1 + max(goes_on and ways[place + 1], ways[target] if target > place else 0)
    return longest or ways[0]


def pairs_of_thread(values):
    """Pairs of numbers that a thread takes at a time, but for the heads that only fill a tile."""
    of_tile = values["Q_TOKENS"] * values["Q_PADDED_HEADS"] * values["PADDED"]
    heads = [(values[f"{name}_HEADS"], values[f"{name}_PADDED_HEADS"]) for name in "QK"]
    there = sum(count for count, _ in heads) / sum(-(-count // padded) * padded for count, padded in heads)
    return of_tile * there / (32 * values["num_warps"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only")
    parser.add_argument("--tokens", type=int, help="in a tile, instead of what the kernel takes")
    asked = parser.parse_args()
    if asked.tokens:
        triton_launch.backward_tile = lambda size: triton_launch.Tile(asked.tokens * size.most, 2, size.padded)
    for variant, norm in itertools.product((*VARIANTS, *MORE), (False, True)):
        name = variant.name + (", QK-norm" if norm else "")
        if name == asked.only if asked.only else variant.name not in ALIKE:
            forward, backward = launches(variant, norm)
            for kernel, launch in (("forward", forward), ("backward", backward)):
                code = getattr(triton_rotary, kernel)
                values = named(code, *launch)
                registers, spilled, number = usage(compiled(code, values))
                each = round(number / pairs_of_thread(values), 1)
                print(json.dumps([name, kernel, registers, spilled, each]), flush=True)
