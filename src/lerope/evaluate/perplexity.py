"""Loss and perplexity of a run over documents that are not packed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lerope.core.checks import check_count
from lerope.core.encoding import EncodingSpec
from lerope.core.recipe import Hashing, Precision
from lerope.core.run import Run, finished_run
from lerope.data.packing import Piece, windows
from lerope.data.shards import Verify
from lerope.evaluate.documents import Documents, outside_documents, validation_documents
from lerope.evaluate.losses import binned, position_sums, window_losses
from lerope.evaluate.measuring import Measurement, file_name
from lerope.evaluate.scorer import Scorer
from lerope.evaluate.work import Floats
from lerope.model.saved import load_model
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer
from lerope.results import Arrays, Evaluation
from lerope.results.token_losses import SUMS, TOKENS, loss_arrays
from lerope.train.parallel import Ranks, start_ranks

_NUM_BINS = 32


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """What to evaluate a run on, and how; all but the device, the batch and the check are part of the result."""

    data: Path | None = None
    """A corpus other than the run's own, with the same tokenizer: its validation split is scored."""
    text: tuple[str, ...] = ()
    """Texts from outside instead of a corpus: files, folders, python: or hf:NAME."""
    length: int | None = None
    """Tokens of a window; the run's row length unless given."""
    truncate: bool = False
    """Score only the first window of each document instead of all."""
    max_tokens: int | None = None
    """Score whole documents up to the one that reaches this many tokens; all unless given."""
    encoding: str | None = None
    """Frequencies to score with instead of the run's own, as `lerope train --encoding` takes them: a hard swap."""
    precision: Precision = "float32"
    """float32 is the reference; bf16 is faster on a GPU and rounds."""
    device: str = "auto"
    """cuda, cuda:1 or cpu; auto takes a GPU if there is one."""
    batch_tokens: int | None = None
    """Tokens that go through the model at once, on each rank; as many as are useful unless given."""
    verify: Hashing = "changed"
    """Which files of a corpus to hash first: those never hashed or with another size or time than then, or all."""

    def __post_init__(self) -> None:
        for field in ("length", "max_tokens", "batch_tokens"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        if self.encoding is not None:
            EncodingSpec.parse(self.encoding)
        if self.data is not None and self.text:
            raise ValueError(f"give either data or text; got {self.data} and {', '.join(self.text)}.")

    def documents(self, run: Run, ranks: Ranks | None = None) -> Documents:
        """What to score; of several ranks the main one checks that files are intact."""

        def read(verify: Verify) -> Documents:
            if self.text:
                return outside_documents(run, self.text, self.max_tokens)
            return validation_documents(run, self.data, verify)

        if ranks is None or ranks.num_ranks == 1:
            return read(self.verify)
        ranks.on_main(lambda: read(self.verify).name)
        return ranks.together(lambda: read("sizes"))


def evaluate(path: Path, request: EvalRequest | None = None) -> Evaluation:
    """Scores a finished run and writes `results/eval.json` with the loss of every token beside it.

    What is there is not scored again: neither the same request nor fewer tokens of it. The file of an unusual request
    has more in its name: what it was scored on, `truncated`, the length, the precision.
    """
    request = request or EvalRequest()
    ranks = start_ranks(request.device)
    run = ranks.together(lambda: finished_run(path))
    documents = request.documents(run, ranks)
    length = request.length or run.recipe.row_length
    settings = {
        "documents": documents.name,
        "fingerprint": documents.fingerprint,
        "length": length,
        "truncate": request.truncate,
        "max_tokens": request.max_tokens,
        "precision": request.precision,
        **({} if request.encoding is None else {"encoding": EncodingSpec.parse(request.encoding).text}),
    }
    file = run.results / _name(request, documents, length != run.recipe.row_length)
    pieces = ranks.together(lambda: select(documents, length, request.truncate, request.max_tokens))
    measurement = Measurement(Evaluation, file, run.label, settings, ranks)

    def measure() -> Callable[[], tuple[Evaluation, Arrays]]:
        scorer = Scorer(
            ranks.together(lambda: _model(run, request.encoding)),
            train_length=length,
            device=ranks.device,
            precision=request.precision,
        )
        work = measurement.work(f"{run.name}, {documents.name}", batch_tokens=request.batch_tokens)
        losses = window_losses(work, scorer, documents.source, pieces)
        return lambda: (
            _summarise(measurement, documents, pieces, losses),
            loss_arrays(np.concatenate(losses), _ends(pieces), length),
        )

    return measurement.carry_out(measure, lambda: _known(measurement, documents, pieces))


def _model(run: Run, encoding: str | None) -> Transformer:
    """The run's model, turned by its own frequencies or by others."""
    model = load_model(run.path)
    if encoding is not None:
        model.encoding = build_encoding(encoding, run.recipe.model, run.recipe.row_length).freeze()
    return model


def select(documents: Documents, length: int, truncate: bool, max_tokens: int | None) -> list[Piece]:
    """The windows to score, in order of documents."""
    lengths = documents.source.lengths.astype(np.int64)
    found = windows(np.minimum(lengths, length + 1) if truncate else lengths, length, max_tokens)
    if not found:
        raise ValueError(f"{documents.name} has no document of two tokens or more; name other text.")
    return found


def document_words(documents: Documents) -> list[str]:
    """What the name of a result says about documents that are not the run's own."""
    return [] if documents.is_own else [documents.name, documents.fingerprint[:8]]


def _name(request: EvalRequest, documents: Documents, other_length: bool) -> str:
    words = document_words(documents)
    words += ["truncated"] * request.truncate
    words += [str(request.length)] * other_length
    words += ["with", EncodingSpec.parse(request.encoding).name] if request.encoding is not None else []
    words += [request.precision] * (request.precision != "float32")
    return file_name("eval", *words)


def _known(measurement: Measurement[Evaluation], documents: Documents, pieces: list[Piece]) -> Evaluation | None:
    """What an earlier evaluation of the same or of more tokens says."""
    file, settings = measurement.file, measurement.settings
    try:
        most, wanted = Evaluation.load(file).settings.get("max_tokens"), settings["max_tokens"]
    except ValueError:
        return None
    if most != wanted and (wanted is None or (most is not None and most < wanted)):
        return None
    before = measurement.saved(max_tokens=most)
    if before is None:
        return None
    try:  # Files of earlier versions have no sums, and those of archives no losses.
        with before.open_arrays(file, *(SUMS if most == wanted else TOKENS)) as arrays:
            if most == wanted:
                return before
            losses = arrays.get_slice("losses")[: int(_ends(pieces)[-1])]
    except ValueError:
        return None
    split = np.split(losses, np.cumsum([piece.stop - piece.start for piece in pieces])[:-1])
    return replace(_summarise(measurement, documents, pieces, split), provenance=before.provenance)


def _ends(pieces: list[Piece]) -> npt.NDArray[np.int64]:
    """Where the losses of each document end."""
    counts = np.zeros(pieces[-1].document + 1, np.int64)
    for piece in pieces:
        counts[piece.document] += piece.stop - piece.start
    return np.cumsum(counts)


def _summarise(
    measurement: Measurement[Evaluation], documents: Documents, pieces: list[Piece], losses: list[Floats]
) -> Evaluation:
    """What the losses of all windows come to."""
    num_documents = pieces[-1].document + 1
    sums, counts = np.zeros((2, num_documents))
    for piece, values in zip(pieces, losses, strict=True):
        sums[piece.document] += values.sum(dtype=np.float64)
        counts[piece.document] += len(values)
    total, num_tokens, some = float(sums.sum()), int(counts.sum()), counts > 0
    whole = num_documents == len(documents.source.lengths) and not measurement.settings["truncate"]
    return Evaluation(
        **measurement.common,
        num_documents=int(some.sum()),
        num_tokens=num_tokens,
        loss=total / num_tokens,
        perplexity=perplexity(total / num_tokens),
        document_mean_loss=float((sums[some] / counts[some]).mean()),
        bits_per_byte=total / math.log(2) / documents.num_bytes if whole and documents.num_bytes else None,
        by_position=binned(*position_sums(losses, max(map(len, losses))), _NUM_BINS, measurement.settings["length"]),
    )


def perplexity(loss: float) -> float:
    """exp(loss), finite for any finite loss."""
    return math.exp(min(loss, 700.0))
