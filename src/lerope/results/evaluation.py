"""Loss over documents, within the train length and beyond it."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from lerope.results.base import Count, RunResult


class PositionBin(TypedDict):
    """Tokens whose position in their window is in [start, stop)."""

    start: int
    stop: int
    num_tokens: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(RunResult):
    """`lerope eval`: the loss of a run on documents.

    Beside it in .safetensors: `losses`, one float32 per token in order of documents, and `ends`, where each document's
    end in it; `document_sums` and `document_counts`, (documents, bins of `position_edges`), and `position_sums` and
    `position_counts`, the sum of losses and their number at every position of a window. An archive has no `losses` and
    no `ends`.
    """

    kind: ClassVar[str] = "evaluation"
    settings_read: ClassVar[dict[str, Any]] = {
        "documents": str,
        "fingerprint": str,
        "length": Count,
        "truncate": bool | None,
        "max_tokens": Count | None,
        "precision": str | None,
        "encoding": str | None,
    }

    num_documents: int
    num_tokens: int
    """Targets: every token except BOS."""
    loss: float
    """Nats per token: the sum over tokens divided by their number."""
    perplexity: float
    document_mean_loss: float
    """Nats per token, every document counted equally."""
    bits_per_byte: float | None
    """Comparable across tokenizers; None where only some tokens of the text were scored."""
    by_position: list[PositionBin]


class ExtrapolationRow(TypedDict):
    """One way of going beyond the train length, on one selection of documents."""

    selection: str
    """`all`: every document, cut at `to` tokens; `long`: only those longer than that."""
    method: str
    temperature: float
    label: str
    num_documents: int
    num_tokens: int
    num_extrapolated: int
    """Tokens at positions from the train length on."""
    in_distribution_loss: float
    in_distribution_perplexity: float
    extrapolated_loss: float
    extrapolated_perplexity: float
    full_loss: float
    full_perplexity: float


class ExtrapolationBin(PositionBin):
    """The same by position."""

    selection: str
    method: str
    temperature: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Extrapolation(RunResult):
    """`lerope extrapolate`: loss within and beyond the train length.

    Beside it in .safetensors: `SELECTION.WAY.sums` and `.counts`, the sum of losses and their number at every position,
    for the WAY-th of the ways.
    """

    kind: ClassVar[str] = "extrapolation"
    settings_read: ClassVar[dict[str, Any]] = {
        "documents": str,
        "train_length": Count,
        "to": Count,
        "precision": str | None,
    }

    ways: list[ExtrapolationRow]
    by_position: list[ExtrapolationBin]
