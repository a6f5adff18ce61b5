"""What is missing comes with a command that installs it, wherever lerope itself is."""

import shlex

import pytest

from lerope.core import extras


@pytest.fixture(autouse=True)
def _fresh():
    extras.install.cache_clear()
    yield
    extras.install.cache_clear()


def test_the_packages_of_an_extra_and_of_those_it_names():
    plots = shlex.split(extras.install("plots"))
    assert plots[:2] == ["pip", "install"]
    assert {each.partition(">")[0] for each in plots[2:]} == {"scipy", "matplotlib"}
    assert not any("lerope" in extras.install(name) for name in ("data", "hf", "gguf", "fast", "kernels", "wandb"))


def test_packages_of_an_extra_by_name():
    needed = shlex.split(extras.install("data", "sentencepiece", "protobuf"))
    assert {word.partition(">")[0] for word in needed[2:]} == {"sentencepiece", "protobuf"}


def test_a_checkout_that_is_not_installed(monkeypatch):
    def missing(name):
        raise extras.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "requires", missing)
    assert extras.install("data") == "pip install '.[data]' in a checkout of lerope"
