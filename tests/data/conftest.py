import pytest

from lerope.data import workers
from lerope.data.tokenizer import Tokenizer, train_tokenizer
from tests.data.texts import made_up


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory):
    """The path of a tokenizer of 400 pieces."""
    path = tmp_path_factory.mktemp("tokenizer") / "small.model"
    train_tokenizer(made_up(200), 400, path)
    return path


class InThisProcess:
    """What encodes without starting a process, which takes most of the time where a test starts many."""

    def __init__(self, num_workers, context, initializer, initargs):
        workers._tokenizer, workers._validation_fraction = Tokenizer(*initargs[:2]), initargs[2]

    def submit(self, function, *arguments):
        future = workers.Future()
        future.set_result(function(*arguments))
        return future

    def shutdown(self, **options):
        pass


@pytest.fixture
def in_this_process(monkeypatch):
    """For tests of what is written and not of who encodes it."""
    monkeypatch.setattr(workers, "ProcessPoolExecutor", InThisProcess)
