"""Finished tiny runs to analyze."""

import random

import pytest

from tests.data.corpora import write_corpus
from tests.train.runs import tiny_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Rows of 32 tokens, 8 bands, trained until frequencies have moved."""
    folder = tmp_path_factory.mktemp("analyzed")
    lengths = random.Random(3)
    data = write_corpus(
        folder / "data",
        {
            "train": [lengths.randint(5, 90) for _ in range(60)],
            "validation": [2, 33, 34, 400, *(lengths.randint(3, 90) for _ in range(9))],
        },
    )
    outcome = tiny_run(data, folder / "run", steps=30)
    assert outcome.finished
    return outcome.path
