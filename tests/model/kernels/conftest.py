"""A GPU and a package that are not there, for tests of what they compute."""

import sys
from types import SimpleNamespace

import pytest
import torch

import lerope
from lerope.model.kernels import layers, products
from tests.model.kernels.played_quack import Config, Played, forget


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that is not there, and nothing remembered of another."""
    monkeypatch.setitem(sys.modules, "quack.gemm_config", SimpleNamespace(GemmConfig=Config))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    forget()
    yield
    forget()


@pytest.fixture
def kernel(hopper, monkeypatch):
    """QuACK's kernels, for whoever calls them."""
    played = Played()
    monkeypatch.setitem(sys.modules, "lerope.model.kernels.cute_products", played)
    monkeypatch.setattr(lerope.model.kernels, "cute_products", played, raising=False)
    return played


@pytest.fixture
def quack(kernel, monkeypatch):
    """QuACK that takes everything, float64 as well."""
    monkeypatch.setattr(layers, "quack_obstacle", lambda x, *weights: None)
    return kernel


@pytest.fixture
def installed(kernel, monkeypatch):
    """QuACK that takes what it says it takes, on a CPU."""
    monkeypatch.setattr(products, "_QUACK", "1.2.3")
    monkeypatch.setattr(products, "dispatch", SimpleNamespace(triton_obstacle=lambda *tensors: None))
    return kernel
