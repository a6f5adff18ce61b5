"""Leave-one-out: how much loss it costs to take one band away, by both meanings.

contribution  the band's part of every query is zero after QK-norm: its term of the logits is gone
frequency     the band does not turn (theta_m = 0): its term stays and says nothing about position
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from lerope.analyze.subjects import MEANINGS, Removal, Subject
from lerope.analyze.targets import Target, mean_frequencies, reused, store, wavelength
from lerope.data.display import Display
from lerope.data.packing import Piece
from lerope.evaluate.documents import Source
from lerope.evaluate.perplexity import select
from lerope.evaluate.work import in_batches
from lerope.results import Ablation, BandRemoval
from lerope.runs import RESULTS
from lerope.train.parallel import Ranks
from lerope.train.rundir import provenance

Floats = npt.NDArray[np.float64]

FILE = "ablation.json"


def leave_one_out(target: Target, max_tokens: int | None, device: torch.device) -> Ablation:
    """Scores a target whole and without each band, and leaves `results/ablation.json`.

    Stopped, it goes on with the band it was at.

    Args:
        max_tokens: score whole documents up to the one that reaches this many tokens; all if None.
    """
    settings = {**target.settings, "max_tokens": max_tokens}
    found = reused(Ablation, target, FILE, settings)
    if found is not None:
        return found
    results = target.path / RESULTS
    with target.held():
        windows = select(target.documents, target.length, False, max_tokens)
        subject = target.load(device)
        removals = [Removal(band, meaning) for meaning in MEANINGS for band in range(subject.num_bands)]
        lengths = [window.stop - window.start for window in windows]
        partials: list[Path] = []
        display = Display()  # bands may each be too quick for a line of their own

        def sums(removal: Removal | None, number: int) -> Floats:
            label = "whole" if removal is None else f"{removal.meaning} of band {removal.band}"
            partials.append(results / f".ablation-{target.digest([settings, label])}.partial")
            scored = in_batches(
                lengths,
                lengths,
                lambda batch: _start(subject, removal, target.documents.source, [windows[index] for index in batch]),
                ranks=Ranks(0, 1, 1, device),
                partial=partials[-1],
                label=f"{target.name}, without {label} ({number} of {len(removals)})" if number else target.name,
            )
            display.show(f"{target.name}, leave-one-out  {number} of {len(removals)}")
            return _by_document(windows, [values.sum(dtype=np.float64) for values in scored])

        whole = sums(None, 0)
        without = [sums(removal, number) for number, removal in enumerate(removals, start=1)]
        counts = _by_document(windows, lengths)
        result = _summarise(target, settings, subject, removals, whole, without, counts)
        shape = (len(MEANINGS), subject.num_bands, -1)
        arrays = {"counts": counts, "whole": whole, "without": np.stack(without).reshape(shape)}
        store(result, target, FILE, arrays)
        for partial in partials:
            partial.unlink()
        return result


def _start(
    subject: Subject, removal: Removal | None, source: Source, windows: Sequence[Piece]
) -> Callable[[], npt.NDArray[np.float32]]:
    """Scores some windows; the function that is returned waits for a GPU and gives their losses, end to end."""
    losses = subject.losses([source.document(each.document, each.start, each.stop + 1) for each in windows], removal)

    def wait() -> npt.NDArray[np.float32]:
        rows = losses.cpu().numpy()
        return np.concatenate([row[: each.stop - each.start] for row, each in zip(rows, windows, strict=True)])

    return wait


def _summarise(
    target: Target,
    settings: dict[str, object],
    subject: Subject,
    removals: list[Removal],
    whole: Floats,
    without: list[Floats],
    counts: Floats,
) -> Ablation:
    theta = mean_frequencies(subject)
    rows = []
    for removal, sums in zip(removals, without, strict=True):
        increase, error = paired_difference(sums - whole, counts)
        rows.append(
            BandRemoval(
                meaning=removal.meaning,
                band=removal.band,
                wavelength=wavelength(theta[removal.band]),
                increase=increase,
                standard_error=error,
            )
        )
    return Ablation(
        run=target.label,
        settings=settings,
        provenance=provenance(),
        num_documents=len(counts),
        num_tokens=int(counts.sum()),
        loss=float(whole.sum() / counts.sum()),
        removals=rows,
    )


def paired_difference(differences: Floats, counts: Floats) -> tuple[float, float | None]:
    """Nats per token and their standard error, with documents as what varies; no error from one document.

    Args:
        differences: of each document, the sum of its losses less that of the other.
        counts: its tokens.
    """
    total = counts.sum()
    mean = float(differences.sum() / total)
    if len(counts) < 2:
        return mean, None
    rest = differences - mean * counts
    return mean, math.sqrt(float((rest**2).sum()) * len(counts) / (len(counts) - 1)) / float(total)


def _by_document(windows: Sequence[Piece], values: Sequence[float]) -> Floats:
    """Sums of windows' values over the documents that have any."""
    documents, index = np.unique([window.document for window in windows], return_inverse=True)
    found = np.zeros(len(documents))
    np.add.at(found, index, values)
    return found
