"""Result files: one typed JSON object per evaluation or study, with the run and the machine it came from. No torch.

Lists in a result hold flat records, so that `pandas.DataFrame(result.by_position)` is a table. What is too long for
JSON, such as the loss of every token, lies beside it in a safetensors file of the same name.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

from lerope.data.files import write_whole

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every result has."""

    kind: ClassVar[str]

    settings: dict[str, Any]
    """What was asked for; results are comparable where these are equal."""
    provenance: dict[str, Any]
    """See `lerope.runs.provenance`."""

    def as_dict(self) -> dict[str, Any]:
        """What the file says."""
        return {"kind": self.kind, "version": VERSION, **asdict(self)}

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.as_dict(), indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file back; whatever is wrong with it is one ValueError."""
        again = "make it again with the command that wrote it"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path} does not exist.") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not whole JSON ({error}); {again}.") from None
        found = (content.pop("kind", None), content.pop("version", None)) if isinstance(content, dict) else (None, None)
        if found != (cls.kind, VERSION):
            raise ValueError(f"{path}: kind and version must be {cls.kind}, {VERSION}; got {found[0]}, {found[1]}.")
        for name in sorted({field.name for field in fields(cls)} ^ set(content)):
            raise ValueError(f"{path}: field {name} is {'unknown' if name in content else 'missing'}; {again}.")
        return cls(**content)


@dataclass(frozen=True, kw_only=True)
class RunResult(Result):
    """A result about one run, in its folder `results`."""

    run: dict[str, Any]
    """`Run.label`: name, creation time, recipe, fingerprints of data and initial frequencies."""


class PositionBin(TypedDict):
    """Tokens whose position in their window is in [start, stop)."""

    start: int
    stop: int
    num_tokens: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(RunResult):
    """`lerope eval`: the loss of a run on documents.

    Beside it in .safetensors: `losses`, one float32 a token in order of documents; `ends`, where each document's losses
    end in it.
    """

    kind: ClassVar[str] = "evaluation"

    num_documents: int
    num_tokens: int
    """Targets: every token but BOS."""
    loss: float
    """Nats per token: the sum over tokens by their number."""
    perplexity: float
    document_mean_loss: float
    """Nats per token, every document counted alike."""
    by_position: list[PositionBin]
