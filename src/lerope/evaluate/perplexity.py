"""Loss and perplexity of a run over documents that are not packed."""

import math
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from lerope.data.files import locked
from lerope.data.packing import Piece, windows
from lerope.data.shards import Verify
from lerope.evaluate.documents import Documents, outside_documents, validation_documents
from lerope.evaluate.losses import position_sums, window_losses
from lerope.evaluate.scorer import Scorer
from lerope.evaluate.work import Floats, digest, saved
from lerope.model.accounting import Precision
from lerope.model.saved import load_model
from lerope.results import Evaluation, PositionBin
from lerope.rotary.frequencies import check_count
from lerope.runs import RESULTS, Run, finished_run
from lerope.train.parallel import Ranks, start_ranks
from lerope.train.rundir import provenance

_NUM_BINS = 32


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to evaluate a run on, and how; all of it but the device and the batch is part of the result."""

    data: Path | None = None
    """Another corpus than the run's own, with the same tokenizer: its validation split is scored."""
    text: tuple[str, ...] = ()
    """Texts from outside instead of a corpus: files, folders, python: or hf:NAME."""
    length: int | None = None
    """Tokens of a window; the run's row length unless given."""
    truncate: bool = False
    """Score only the first window of each document instead of all."""
    max_tokens: int | None = None
    """Score whole documents up to the one that reaches this many tokens; all unless given."""
    precision: Precision = "float32"
    """float32 is the reference; bf16 is faster on a GPU and rounds."""
    device: str = "auto"
    """cuda, cuda:1 or cpu; auto takes a GPU if there is one."""
    batch_tokens: int | None = None
    """Tokens that go through the model at once, on each rank; as many as are useful unless given."""

    def __post_init__(self) -> None:
        for field in ("length", "max_tokens", "batch_tokens"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        if self.data is not None and self.text:
            raise ValueError(f"give either data or text; got {self.data} and {', '.join(self.text)}.")

    def documents(self, run: Run, ranks: Ranks | None = None) -> Documents:
        """What is to be scored; of several ranks the main one looks whether files are whole."""

        def read(verify: Verify) -> Documents:
            if self.text:
                return outside_documents(run, self.text)
            return validation_documents(run, self.data, verify)

        if ranks is None or ranks.num_ranks == 1:
            return read("changed")
        ranks.first(lambda: read("changed").name)
        return ranks.together(lambda: read("sizes"))


def evaluate(path: Path, request: Request | None = None) -> Evaluation:
    """Scores a finished run and leaves `results/eval.json` with the loss of every token beside it.

    Scored again with the same request, it returns what is there. The file of another request than the usual has more in
    its name: what it was scored on, `truncated`, the length.
    """
    request = request or Request()
    ranks = start_ranks(request.device)
    run = ranks.together(lambda: finished_run(path))
    documents = request.documents(run, ranks)
    train_length = int(run.recipe["row_length"])
    length = request.length or train_length
    settings = {
        "documents": documents.name,
        "fingerprint": documents.fingerprint,
        "length": length,
        "truncate": request.truncate,
        "max_tokens": request.max_tokens,
        "precision": request.precision,
    }
    results = run.path / RESULTS
    file = results / f"{_stem(request, documents, length, train_length)}.json"
    with ExitStack() as held:
        ranks.first(lambda: held.enter_context(locked(results)))
        found = ranks.first(lambda: saved(Evaluation, file, run, settings))
        if found is not None:
            return found
        pieces = select(documents, length, request.truncate, request.max_tokens)
        scorer = Scorer(load_model(run.path), train_length=length, device=ranks.device, precision=request.precision)
        partial = results / f".{file.stem}-{digest(run, settings)}.partial"
        losses = window_losses(
            scorer,
            documents.source,
            pieces,
            ranks=ranks,
            partial=partial,
            label=f"{run.name}, {documents.name}",
            batch_tokens=request.batch_tokens,
        )

        def finish() -> Evaluation:
            result = _summarise(run, settings, documents, pieces, losses, file)
            partial.unlink()
            return result

        return ranks.first(finish)


def select(documents: Documents, length: int, truncate: bool, max_tokens: int | None) -> list[Piece]:
    """The windows to score, in order of documents."""
    lengths = documents.source.lengths
    found = windows(np.minimum(lengths, length + 1) if truncate else lengths, length, max_tokens)
    if not found:
        raise ValueError(f"{documents.name} has no document of two tokens or more; name other text.")
    return found


def _stem(request: Request, documents: Documents, length: int, train_length: int) -> str:
    parts = ["eval"]
    if not documents.is_own:
        parts.append(re.sub(r"[^A-Za-z0-9.]+", "-", documents.name).strip("-.")[:60])
    parts += ["truncated"] * request.truncate
    parts += [str(length)] * (length != train_length)
    return "-".join(parts)


def _summarise(
    run: Run, settings: dict[str, Any], documents: Documents, pieces: list[Piece], losses: list[Floats], file: Path
) -> Evaluation:
    """Writes the losses of all tokens, then what they come to."""
    num_documents = pieces[-1].document + 1
    sums, counts = np.zeros((2, num_documents))
    for piece, values in zip(pieces, losses, strict=True):
        sums[piece.document] += values.sum(dtype=np.float64)
        counts[piece.document] += len(values)
    ends = np.cumsum(counts).astype(np.int64)
    file.with_suffix(".json").unlink(missing_ok=True)
    save_file({"losses": np.concatenate(losses), "ends": ends}, file.with_suffix(".safetensors"))
    total, some = float(sums.sum()), counts > 0
    whole = num_documents == len(documents.source.lengths) and not settings["truncate"]
    result = Evaluation(
        run=run.label,
        settings=settings,
        provenance=provenance(),
        num_documents=int(some.sum()),
        num_tokens=int(ends[-1]),
        loss=total / int(ends[-1]),
        perplexity=math.exp(total / int(ends[-1])),
        document_mean_loss=float((sums[some] / counts[some]).mean()),
        bits_per_byte=total / math.log(2) / documents.num_bytes if whole and documents.num_bytes else None,
        by_position=by_position(losses, settings["length"]),
    )
    result.save(file)
    return result


def by_position(losses: list[Floats], length: int) -> list[PositionBin]:
    """Mean loss of tokens by their position in the window, in bins of equal width."""
    sums, counts = position_sums(losses, max(map(len, losses)))
    width = math.ceil(length / _NUM_BINS)
    found: list[PositionBin] = []
    for start in range(0, len(sums), width):
        here = slice(start, start + width)
        number = int(counts[here].sum())
        mean = float(sums[here].sum() / number)
        found.append({"start": start, "stop": min(start + width, len(sums)), "num_tokens": number, "loss": mean})
    return found
