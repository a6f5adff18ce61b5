"""What the tests of training share."""

import pytest

from tests.train.runs import tiny_corpus


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("data") / "c")
