"""Studies and sweeps of a model that trains in a moment."""

import random

import pytest

from lerope.core.ladder import LADDER
from tests.data.corpora import write_corpus
from tests.train.runs import TINY


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    lengths = random.Random(0)
    numbers = {"train": 200, "validation": 12}
    splits = {split: [lengths.randint(5, 90) for _ in range(number)] for split, number in numbers.items()}
    return write_corpus(tmp_path_factory.mktemp("data") / "c", splits)


@pytest.fixture
def tiny_demo(monkeypatch):
    """The rung `demo` is the tests' tiny model."""
    monkeypatch.setitem(LADDER, "demo", TINY)
