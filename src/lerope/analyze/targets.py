"""What `lerope analyze` is pointed at: a finished run or a folder with a Hugging Face model, and documents for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from lerope.analyze.subjects import OwnModel, Subject
from lerope.core.run import RESULTS, Run, finished_run, is_run
from lerope.data.shards import Tokens
from lerope.evaluate.documents import Documents
from lerope.evaluate.measuring import Measurement
from lerope.evaluate.perplexity import EvalRequest
from lerope.model.saved import load_model
from lerope.results import RunResult
from lerope.train.parallel import Ranks

Kind = TypeVar("Kind", bound=RunResult)

# A Hugging Face model may take rows far longer than are needed to see what its bands do.
_LONGEST_ROW = 2048


@dataclass(frozen=True)
class Target:
    """A model to analyze and what to analyze it on."""

    path: Path
    label: dict[str, Any]
    """What a result file says about the run or model."""
    train_length: int
    """Tokens of a row in training."""
    length: int
    """Tokens of a row here."""
    find_documents: Callable[[], Documents]
    load: Callable[[torch.device], Subject]
    run: Run | None
    """None for a Hugging Face model."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @cached_property
    def documents(self) -> Documents:
        """Found on demand: a run's frequencies can be read without its data."""
        return self.find_documents()

    @property
    def settings(self) -> dict[str, Any]:
        """What every result says about its documents."""
        return {
            "documents": self.documents.name,
            "fingerprint": self.documents.fingerprint,
            "length": self.length,
        }

    def measurement(
        self, kind: type[Kind], name: str, settings: dict[str, Any], device: torch.device | str = "cpu"
    ) -> Measurement[Kind]:
        """A measurement that ends up in this file of its folder `results`."""
        ranks = Ranks(0, 1, 1, torch.device(device))
        return Measurement(kind, self.path / RESULTS / name, self.label, settings, ranks)


def open_target(path: Path, request: EvalRequest) -> Target:
    """A run directory, or a folder with a model that transformers can load."""
    if path.name == "model" and is_run(path.parent):
        raise ValueError(f"{path} is the model of a run; name the run, {path.parent}.")
    if not is_run(path) and (path / "config.json").is_file():
        from lerope.analyze.huggingface import HuggingFaceModel, describe, folder_documents

        if request.data is not None:
            raise ValueError(f"data must be left out for a Hugging Face model; got {request.data}; name text instead.")
        label, train_length = describe(path)
        length = request.length or min(train_length, _LONGEST_ROW)
        return Target(
            path,
            label,
            train_length,
            length,
            lambda: folder_documents(path, request.text, length),
            lambda device: HuggingFaceModel(path, device),
            None,
        )
    run = finished_run(path)
    train_length = run.recipe.row_length
    return Target(
        path,
        run.label,
        train_length,
        request.length or train_length,
        lambda: request.documents(run),
        lambda device: OwnModel(load_model(path), device),
        run,
    )


def check_rows(rows: Sequence[Tokens], target: Target) -> None:
    """Raises unless some row has tokens at two distances."""
    if not rows or max(map(len, rows)) < 3:
        raise ValueError(f"{target.documents.name} has no document of three tokens or more; name other text.")


def mean_frequencies(subject: Subject) -> list[float]:
    """Each band's frequency, the mean over layers and heads where they have their own."""
    means: list[float] = subject.frequencies.mean((0, 1)).tolist()
    return means


def wavelength(frequency: float) -> float | None:
    """Tokens per full turn; None for a band that does not turn."""
    return 2 * math.pi / abs(frequency) if frequency else None
