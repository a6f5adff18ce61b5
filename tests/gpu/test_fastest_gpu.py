"""Attention is measured by what the device does, whatever the host does meanwhile."""

import time

import pytest
import torch

from lerope.model.attention import BACKENDS, backend_obstacle
from lerope.model.kernels.fastest import _milliseconds, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = torch.device("cuda")
IDS = torch.arange(1024).repeat(2, 1) // 200


def test_every_backend_has_a_time():
    backends = [b for b in BACKENDS if b != "sdpa" and backend_obstacle(b, DEVICE, torch.bfloat16) is None]
    times = measure(backends, IDS, 4, 64, torch.bfloat16, DEVICE)
    assert list(times) == backends
    assert min(times.values()) > 0


def test_what_the_host_does_takes_no_time():
    x = torch.zeros(1000, device=DEVICE)

    def slowly() -> None:
        time.sleep(5e-4)
        x.add_(1)

    assert min(_milliseconds(slowly) for _ in range(10)) < 0.2  # others may use the GPU too
