"""What all tests share: one thread, and without a GPU Triton's kernels in its interpreter."""

import os

import torch

if not torch.cuda.is_available():
    # Triton and lerope look at this when they are imported. No code but a test asks for these kernels on a CPU.
    os.environ["TRITON_INTERPRET"] = "1"

from typing import Any

import pytest

# These models are so small that more threads would wait for each other, and the last digits stay the same everywhere.
torch.set_num_threads(1)


@pytest.fixture
def _rounds_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts digits off where a GPU rounds float32 to the nearest bfloat16."""
    if torch.cuda.is_available():
        return
    from triton import language as tl
    from triton.runtime import interpreter

    cut = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return cut(values, source, target, mode)
        rounded = torch.tensor(values.tolist(), dtype=torch.float32).bfloat16().view(torch.uint16)
        return rounded.numpy().reshape(values.shape)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
