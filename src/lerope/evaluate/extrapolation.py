"""Loss beyond the train length, for every way of stretching frequencies, each document by its own length.

Documents are cut at `to` tokens. Those no longer than the train length are the same to every way, so they are scored
once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lerope.core.checks import check_count, check_number
from lerope.core.run import finished_run
from lerope.data.packing import Piece
from lerope.evaluate.losses import Floats64, binned, position_sums, window_losses
from lerope.evaluate.measuring import Measurement, file_name
from lerope.evaluate.perplexity import EvalRequest, document_words, perplexity, select
from lerope.evaluate.scorer import Scorer, Stretch
from lerope.evaluate.work import Floats
from lerope.model.saved import load_model
from lerope.results import Arrays, Extrapolation, ExtrapolationBin, ExtrapolationRow
from lerope.train.parallel import start_ranks

TEMPERATURES = (0.05, 0.1, 0.15, 0.2)
# YaRN's own, also tried with the slow bands and the dominant band.
_TEMPERATURE = 0.1
BY_POSITION = (0.1, 0.2)
"""Temperatures of logits by position."""
_NUM_BINS = 64
ALL, LONG = "all", "long"


@dataclass(frozen=True)
class Way:
    """One way of going beyond the train length, with its losses by position."""

    stretch: Stretch
    losses: list[Floats]


def stretches(temperatures: tuple[float, ...], dominant_band: int | None) -> list[Stretch]:
    """All those compared: naive, logits by position, PI, NTK-by-parts, YaRN with each temperature, and without and with
    one the slow bands alone and the dominant band alone.

    YaRN without temperature is NTK-by-parts.
    """
    found = [Stretch(method="none"), Stretch(method="pi"), Stretch(method="ntk_by_parts")]
    found += [Stretch(method="logits", temperature=c) for c in BY_POSITION]
    found += [Stretch(method="yarn", temperature=c) for c in temperatures]
    for c in (0.0, _TEMPERATURE):
        found.append(Stretch(method="slow_bands", temperature=c))
    if dominant_band is not None:
        for c in (0.0, _TEMPERATURE):
            found.append(Stretch(method="dominant_band", temperature=c, dominant_band=dominant_band))
    return found


def extrapolate(
    path: Path,
    to: int,
    request: EvalRequest | None = None,
    temperatures: tuple[float, ...] = TEMPERATURES,
    dominant_band: int | None = None,
) -> Extrapolation:
    """Scores a finished run on documents up to `to` tokens long and writes `results/extrapolation.json`.

    Args:
        path: a run directory.
        to: where documents are cut; beyond the train length.
        request: which documents, and how to score them.
        temperatures: coefficients c of YaRN's temperature.
        dominant_band: which band that is (see `lerope.analyze.bands`); None leaves this way out.
    """
    request = request or EvalRequest()
    ranks = start_ranks(request.device)
    run = ranks.together(lambda: finished_run(path))
    train_length = run.recipe.row_length
    if check_count("to", to) <= train_length:
        raise ValueError(f"to must be above the train length of {train_length:,} tokens; got {to:,}.")
    for c in temperatures:
        if not check_number("temperatures", c) > 0:
            raise ValueError(f"temperatures must be positive (NTK-by-parts has none anyway); got {c!r}.")
    documents = request.documents(run, ranks)
    settings = {
        "documents": documents.name,
        "fingerprint": documents.fingerprint,
        "train_length": train_length,
        "to": to,
        "max_tokens": request.max_tokens,
        "precision": request.precision,
        "temperatures": list(temperatures),
        "dominant_band": dominant_band,
    }
    words = [*document_words(documents), *[str(to)] * (to != 2 * train_length)]
    words += [f"first{request.max_tokens}"] * (request.max_tokens is not None)
    words += [request.precision] * (request.precision != "float32")
    file = run.results / file_name("extrapolation", *words)
    pieces = ranks.together(lambda: select(documents, to, truncate=True, max_tokens=request.max_tokens))
    short = [piece for piece in pieces if piece.stop <= train_length]
    long = [piece for piece in pieces if piece.stop > train_length]
    if not long:
        raise ValueError(
            f"{documents.name} has no document longer than the train length of {train_length:,} tokens; score "
            "other documents with --data or --text, or more of them with --max-tokens."
        )
    measurement = Measurement(Extrapolation, file, run.label, settings, ranks)

    def measure() -> Callable[[], tuple[Extrapolation, Arrays]]:
        model = ranks.together(lambda: load_model(run.path))

        def score(stretch: Stretch, some: list[Piece], label: str) -> list[Floats]:
            scorer = Scorer(
                model, train_length=train_length, device=ranks.device, precision=request.precision, stretch=stretch
            )
            work = measurement.work(f"{run.name}, {label}", label, request.batch_tokens)
            return window_losses(work, scorer, documents.source, some)

        same = score(Stretch(), short, "documents within the train length") if short else []
        ways = [Way(how, score(how, long, name(how))) for how in stretches(temperatures, dominant_band)]
        return lambda: _summarise(measurement, same, ways)

    return measurement.carry_out(measure)


def name(stretch: Stretch) -> str:
    """A way in a few words."""
    words = {"none": "naive", "pi": "PI", "ntk_by_parts": "NTK-by-parts", "yarn": "YaRN", "slow_bands": "slow bands"}
    words["logits"] = "logits by position"
    if stretch.method == "dominant_band":
        words["dominant_band"] = f"band {stretch.dominant_band} alone"
    return words[stretch.method] + (f", c = {stretch.temperature:g}" if stretch.temperature else "")


def _summarise(
    measurement: Measurement[Extrapolation], same: list[Floats], ways: list[Way]
) -> tuple[Extrapolation, Arrays]:
    to, train_length = measurement.settings["to"], measurement.settings["train_length"]
    rows: list[ExtrapolationRow] = []
    bins: list[ExtrapolationBin] = []
    curves: dict[str, Floats64] = {}
    for number, way in enumerate(ways):
        # A document that was cut has as many targets as the cut allows.
        whole = [values for values in way.losses if len(values) == to]
        for selection, chosen in ((ALL, same + way.losses), (LONG, whole)):
            if not chosen:
                continue
            sums, counts = position_sums(chosen, to)
            label = {
                "selection": selection,
                "method": way.stretch.method,
                "temperature": way.stretch.temperature,
                "label": name(way.stretch),
            }
            rows.append(_row(label, len(chosen), sums, counts, train_length))
            bins += [cast(ExtrapolationBin, {**label, **each}) for each in binned(sums, counts, _NUM_BINS, to)]
            curves |= {f"{selection}.{number}.sums": sums, f"{selection}.{number}.counts": counts}
    result = Extrapolation(**measurement.common, ways=rows, by_position=bins)
    return result, curves


def _row(
    label: dict[str, Any], num_documents: int, sums: Floats64, counts: Floats64, train_length: int
) -> ExtrapolationRow:
    parts = {
        "in_distribution": slice(0, train_length),
        "extrapolated": slice(train_length, None),
        "full": slice(None),
    }
    losses = {part: float(sums[where].sum() / counts[where].sum()) for part, where in parts.items()}
    row: dict[str, Any] = {**label, "num_documents": num_documents, "num_tokens": int(counts.sum())}
    row["num_extrapolated"] = int(counts[train_length:].sum())
    for part, loss in losses.items():
        row |= {f"{part}_loss": loss, f"{part}_perplexity": perplexity(loss)}
    return cast(ExtrapolationRow, row)
