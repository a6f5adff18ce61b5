"""Which bands make a run fall off beyond its train length: each set back to RoPE's frequency, the others as learned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lerope.analyze.ablation import NUM_DOCUMENTS, Floats, paired_difference
from lerope.analyze.targets import Target, wavelength
from lerope.core.checks import check_count
from lerope.data.packing import Piece
from lerope.evaluate.losses import position_sums, window_losses
from lerope.evaluate.measuring import Measurement, file_name
from lerope.evaluate.perplexity import select
from lerope.evaluate.scorer import Scorer
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.results import Arrays, BandSetBack, Beyond
from lerope.rotary import frequencies as fq

TIMES = 4
"""How many train lengths documents reach, unless said."""
_LEARNED = 1e-4
"""A band whose log-scale is nowhere larger has RoPE's frequency already."""
_NUM_BINS = 128


@dataclass(frozen=True)
class _Scored:
    """Sums of losses by document, within the train length and beyond it, and by position."""

    within: Floats
    beyond: Floats
    by_position: Floats


def set_back(target: Target, to: int | None, max_tokens: int | None, device: torch.device) -> Beyond:
    """Scores a run on long documents, with no extension, and writes `results/beyond.json`.

    If stopped, it resumes at the band it was at.

    Args:
        to: where documents are cut, four train lengths unless given; only those longer than the train length count.
        max_tokens: score as many documents as it takes to reach this many tokens; by default enough for 32.
    """
    if target.run is None:
        raise ValueError(f"parts: beyond is for runs of lerope; {target.name} is none: leave it out.")
    length = target.train_length
    to = TIMES * length if to is None else to
    if check_count("to", to) <= length:
        raise ValueError(f"to must be above the train length of {length:,} tokens; got {to:,}.")
    max_tokens = max_tokens or NUM_DOCUMENTS * to
    documents = target.documents
    settings = {
        "documents": documents.name,
        "fingerprint": documents.fingerprint,
        "train_length": length,
        "to": to,
        "max_tokens": max_tokens,
    }
    name = file_name("beyond", *[str(to)] * (to != TIMES * length))
    measurement = target.measurement(Beyond, name, settings, device)

    def measure() -> Callable[[], tuple[Beyond, Arrays]]:
        model = load_model(target.path)
        own, rope = _both(model, target)
        windows = _long(select(documents, to, True, None), length, max_tokens)
        if not windows:
            raise ValueError(
                f"{documents.name} has no document longer than the train length of {length:,} tokens; name other "
                "documents with --data or --text."
            )
        bands = torch.nonzero(_moved(own, rope)).flatten().tolist()
        changes: list[tuple[int, ...]] = [(), tuple(bands), *((band,) for band in bands)]
        scored = [_score(target, model, own, rope, change, windows, to, measurement) for change in changes]
        counts = np.array([(min(w.stop, length), w.stop - length) for w in windows], np.float64).T
        rows = [_row(change, own, rope, each, scored[0], counts) for change, each in zip(changes, scored, strict=True)]
        return lambda: _result(measurement, scored, counts, rows[1:])

    return measurement.carry_out(measure)


def _both(model: Transformer, target: Target) -> tuple[torch.Tensor, torch.Tensor]:
    """The run's frequencies, (..., bands), and RoPE's."""
    encoding = model.encoding
    own = encoding.theta.detach().clone()
    rope = None if encoding.base is None else fq.geometric(encoding.rotary_dim, encoding.base)
    if rope is None or not _moved(own, rope).any():
        raise ValueError(f"parts: beyond is for learned frequencies; {target.name} has none: leave it out.")
    return own, rope


def _moved(own: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Bands that turn otherwise than RoPE's."""
    return ((own / rope - 1).abs() > _LEARNED).view(-1, len(rope)).any(0)


def _long(windows: Sequence[Piece], length: int, max_tokens: int) -> list[Piece]:
    found: list[Piece] = []
    for window in windows:
        if window.stop > length and sum(each.stop for each in found) < max_tokens:
            found.append(window)
    return found


def _score(
    target: Target,
    model: Transformer,
    own: torch.Tensor,
    rope: torch.Tensor,
    bands: tuple[int, ...],
    windows: list[Piece],
    to: int,
    measurement: Measurement[Beyond],
) -> _Scored:
    changed = own.clone()
    changed[..., list(bands)] = rope[list(bands)]
    model.encoding = model.encoding.freeze(changed)
    scorer = Scorer(model, train_length=target.train_length, device=measurement.ranks.device)
    label = "as learned" if not bands else f"band {bands[0]} set back" if len(bands) == 1 else "all bands set back"
    losses = window_losses(measurement.work(f"{target.name}, {label}", label), scorer, target.documents.source, windows)
    split = target.train_length
    parts = [[values[where].sum(dtype=np.float64) for values in losses] for where in (slice(split), slice(split, None))]
    sums, _ = position_sums(losses, to)
    return _Scored(np.array(parts[0]), np.array(parts[1]), np.add.reduceat(sums, _edges(to)[:-1]))


def _edges(to: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.unique(np.linspace(0, to, _NUM_BINS + 1).round().astype(np.int64))


def _row(
    bands: tuple[int, ...], own: torch.Tensor, rope: torch.Tensor, scored: _Scored, learned: _Scored, counts: Floats
) -> BandSetBack:
    within, within_error = paired_difference(scored.within - learned.within, counts[0])
    beyond, beyond_error = paired_difference(scored.beyond - learned.beyond, counts[1])
    band = bands[0] if len(bands) == 1 else None
    return BandSetBack(
        band=band,
        wavelength=None if band is None else wavelength(float(own[..., band].mean())),
        rope_wavelength=None if band is None else wavelength(float(rope[band])),
        within=within,
        within_error=within_error,
        beyond=beyond,
        beyond_error=beyond_error,
    )


def _result(
    measurement: Measurement[Beyond], scored: list[_Scored], counts: Floats, rows: list[BandSetBack]
) -> tuple[Beyond, Arrays]:
    learned, to = scored[0], measurement.settings["to"]
    edges = _edges(to)
    lengths = counts.sum(0)
    numbers = np.array([(lengths > position).sum() for position in range(to)], np.float64)
    result = Beyond(
        **measurement.common,
        num_documents=counts.shape[1],
        num_tokens=int(counts[1].sum()),
        within_loss=float(learned.within.sum() / counts[0].sum()),
        beyond_loss=float(learned.beyond.sum() / counts[1].sum()),
        bands=rows,
    )
    return result, {
        "edges": edges,
        "counts": np.add.reduceat(numbers, edges[:-1]),
        "sums": np.stack([each.by_position for each in scored]),
    }
