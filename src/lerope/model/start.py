"""What a run starts from in place of random weights: the finished model of another run."""

from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from lerope.core.files import sha256_of
from lerope.core.ladder import ModelConfig
from lerope.core.run import FREQUENCIES, TOKENIZER
from lerope.model.saved import read_model
from lerope.rotary.encodings import FrozenRoPE


@dataclass(frozen=True)
class StartingPoint:
    """A finished model."""

    weights: dict[str, Tensor]
    encoding: FrozenRoPE
    """Its frequencies."""
    sha256: str
    """Of the weights."""


def starting_point(path: str, config: ModelConfig, tokenizer_sha256: str) -> StartingPoint:
    """Reads the model of a finished run; raises unless it has this shape and its text had this tokenizer.

    Args:
        path: the run's directory.
        tokenizer_sha256: that of the data to train on.
    """
    folder, saved, weights = read_model(path)
    wanted, found = asdict(config), asdict(saved.model)
    for field, value in wanted.items():
        if found[field] != value:
            raise ValueError(
                f"start_from {path} must be a model of the shape to train: its {field} is {found[field]!r}, not "
                f"{value!r}."
            )
    tokenizer = Path(folder) / TOKENIZER
    if not tokenizer.is_file() or sha256_of(tokenizer) != tokenizer_sha256:
        raise ValueError(
            f"start_from {path} has not the tokenizer of the data, so that tokens would mean something else; prepare "
            f"the data with --tokenizer {tokenizer}."
        )
    return StartingPoint(weights, FrozenRoPE.load(folder / FREQUENCIES), saved.weights_sha256)
