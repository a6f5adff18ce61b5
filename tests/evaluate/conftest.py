"""Finished tiny runs to evaluate."""

import random

import pytest

from lerope.data.prepare import prepare
from tests.data.corpora import write_corpus
from tests.train.runs import TINY, tiny_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Rows of 32 tokens, documents up to 150: some within the train length, some of several windows."""
    folder = tmp_path_factory.mktemp("evaluated")
    lengths = random.Random(3)
    data = write_corpus(
        folder / "data",
        {
            "train": [lengths.randint(5, 90) for _ in range(60)],
            "validation": [2, 33, 34, *(lengths.randint(3, 150) for _ in range(25))],
        },
    )
    outcome = tiny_run(data, folder / "run", steps=12)
    assert outcome.finished
    return outcome.path


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """A run with a tokenizer of its own, on a few sentences."""
    folder = tmp_path_factory.mktemp("text")
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "while",
        "seven",
        "wizards",
        "box",
        "very",
        "quietly",
    ]
    source = random.Random(0)
    for number in range(40):
        sentences = [" ".join(source.choices(words, k=12)) + "." for _ in range(source.randint(1, 9))]
        (folder / f"{number}.txt").write_text(" ".join(sentences))
    data = folder / "data"
    manifest = prepare([str(folder)], data, vocab_size=300, validation_fraction=0.3)
    model = type(TINY)(num_layers=1, num_heads=2, head_dim=16, vocab_size=manifest.vocab_size)
    return tiny_run(data, folder / "run", steps=3, model=model).path
