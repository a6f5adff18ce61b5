import pytest

from lerope.data.tokenizer import train_tokenizer
from tests.data.texts import made_up


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory):
    """The path of a tokenizer of 400 pieces."""
    path = tmp_path_factory.mktemp("tokenizer") / "small.model"
    train_tokenizer(made_up(200), 400, path)
    return path
