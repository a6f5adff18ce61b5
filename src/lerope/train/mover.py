"""Moves batches to a GPU while it is still working on the previous step."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.int32]


class Mover:
    """Copies arrays to a GPU on a separate stream, through memory that is allocated once.

    Two buffers per shape alternate: one is filled while a step still reads the other.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self._stream = device, torch.cuda.Stream(device)
        self._buffers: dict[torch.Size, list[_Buffer]] = {}
        self._last: _Buffer | None = None

    def move(self, arrays: list[Array]) -> Tensor:
        """The arrays, stacked, on the GPU, valid until the call after next, for anything launched from now on."""
        now = torch.cuda.current_stream(self.device)
        if self._last is not None:
            self._last.read.record(now)
        shape = torch.Size((len(arrays), *arrays[0].shape))
        buffers = self._buffers.setdefault(shape, [])
        buffer = _Buffer(shape, self.device) if len(buffers) < 2 else buffers.pop(0)
        buffers.append(buffer)
        buffer.copied.synchronize()
        # With numpy, because torch would wait for its own threads.
        np.stack(arrays, out=buffer.host.numpy())
        self._stream.wait_event(buffer.read)
        with torch.cuda.stream(self._stream):
            buffer.there.copy_(buffer.host, non_blocking=True)
            buffer.copied.record(self._stream)
        now.wait_event(buffer.copied)
        self._last = buffer
        return buffer.there


class _Buffer:
    """Pinned memory, GPU memory, and events: when the one was copied to the other, and when that was read."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self.host = torch.empty(shape, dtype=torch.int32, pin_memory=True)
        self.there = torch.empty(shape, dtype=torch.int32, device=device)
        self.copied, self.read = torch.cuda.Event(), torch.cuda.Event()
        # Kernels that use this memory's previous content may not have run yet.
        self.read.record(torch.cuda.current_stream(device))
