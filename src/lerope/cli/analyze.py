"""lerope analyze RUN ...: what a run learned, band by band."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from rich.table import Table
from tyro.conf import arg

from lerope.cli.options import Folder, Json, Runs, Whole
from lerope.cli.stopping import stoppable
from lerope.cli.tables import new_table
from lerope.core.terminal import Console

if TYPE_CHECKING:
    from lerope.results import Ablation, Bands, Beyond, LearnedFrequencies, Phasors, SlowestRemovals

Part = Literal["frequencies", "bands", "ablation", "slowest", "phasors", "beyond"]

# Removals take two evaluations per band, so they must be requested; a Hugging Face model has no training records.
_RUN_PARTS: tuple[Part, ...] = ("frequencies", "bands", "phasors")
_FOLDER_PARTS: tuple[Part, ...] = ("bands",)
_HARDLY = 0.001


@dataclass
class _Analysis:
    """The findings about one run."""

    name: str
    frequencies: "LearnedFrequencies | None" = None
    bands: "Bands | None" = None
    ablation: "Ablation | None" = None
    slowest: "SlowestRemovals | None" = None
    phasors: "Phasors | None" = None
    beyond: "Beyond | None" = None


def analyze(
    runs: Runs,
    *,
    parts: Annotated[tuple[Part, ...], arg(metavar="PART...", help_behavior_hint="")] = (),
    rows: int = 64,
    phasor_rows: int = 4,
    layer: Whole = None,
    max_tokens: Whole = None,
    length: Whole = None,
    to: Whole = None,
    data: Folder = None,
    text: tuple[str, ...] = (),
    device: str = "auto",
    json_: Json = False,
) -> None:
    """Analyze finished runs: their wavelengths, what each band adds to the logits, which band carries position.

    Example: lerope analyze runs/52M-rope-42 runs/52M-lerope-42

    Removing single bands, and the slowest bands: lerope analyze runs/52M-lerope-42 --parts bands ablation slowest

    A Hugging Face model in a folder: lerope analyze models/Qwen3-0.6B --text essay.txt --parts bands ablation

    Args:
        runs: finished run directories, or folders with Llama, Qwen3 or Mistral models that transformers can load.
        parts: frequencies (against RoPE's, during training), bands (contributions by distance, norms), ablation
            (leave-one-out, two evaluations per band), slowest (without the slowest bands, for every number of them,
            equally many evaluations), phasors (the gradient by distance), beyond (longer documents, with each learned
            frequency set back to RoPE's). By default frequencies, bands and phasors; for a Hugging Face model bands, as
            it has neither frequencies nor phasors.
        rows: documents to measure bands on.
        phasor_rows: documents to measure phasors on.
        layer: The only layer to measure phasors of; all by default.
        max_tokens: Tokens to score removals on, in first windows of documents; by default 32,768, or more if 32
            documents have more.
        length: Tokens per row; by default the train length, for Hugging Face models at most 2,048.
        to: For beyond, where longer documents are cut; by default four train lengths.
        data: A corpus other than the run's own, with the same tokenizer.
        text: external texts instead of a corpus.
        device: cuda, cuda:1 or cpu; auto uses a GPU if there is one.
        json_: Print JSON.
    """
    from lerope.analyze.ablation import leave_one_out, remove_slowest
    from lerope.analyze.bands import measure_bands
    from lerope.analyze.beyond import set_back
    from lerope.analyze.phasors import measure_phasors
    from lerope.analyze.targets import Target, open_target
    from lerope.analyze.wavelengths import describe_frequencies
    from lerope.core.checks import check_count
    from lerope.evaluate.perplexity import EvalRequest
    from lerope.train.parallel import start_ranks

    if not runs:
        raise ValueError("name at least one run to analyze.")
    for field, value in (("rows", rows), ("phasor_rows", phasor_rows), ("max_tokens", max_tokens)):
        if value is not None:
            check_count(field, value)
    request = EvalRequest(data=data, text=text, length=length, device=device)
    where = start_ranks(device).device
    measures: dict[Part, Callable[[Target], Any]] = {
        "frequencies": describe_frequencies,
        "bands": lambda target: measure_bands(target, rows, where),
        "ablation": lambda target: leave_one_out(target, max_tokens, where),
        "slowest": lambda target: remove_slowest(target, max_tokens, where),
        "phasors": lambda target: measure_phasors(target, phasor_rows, layer, where),
        "beyond": lambda target: set_back(target, to, max_tokens, where),
    }
    found = []
    with stoppable(quiet=json_):
        for run in runs:
            target = open_target(run, request)
            chosen = parts or (_FOLDER_PARTS if target.run is None else _RUN_PARTS)
            found.append(_Analysis(target.name, **{part: measures[part](target) for part in chosen}))
    if json_:
        print(json.dumps([_as_dict(analysis) for analysis in found], indent=1))
    else:
        _show(found)


def _as_dict(analysis: _Analysis) -> dict[str, Any]:
    parts = {part: getattr(analysis, part) for part in get_args(Part)}
    return {part: result.as_dict() for part, result in parts.items() if result is not None}


def _show(found: list[_Analysis]) -> None:
    console = Console()
    for analysis in found:
        console.print(_table(analysis))
        for sentence in _sentences(analysis):
            console.print(sentence)
        console.print()
    if len(found) > 1:
        console.print(_side_by_side(found))
        for sentence in _ratio_sentences(found):
            console.print(sentence)


def _table(analysis: _Analysis) -> Table:
    """One row per band, with the measured columns."""
    columns: dict[str, dict[int, str]] = {}
    rope, learned = _wavelengths(analysis)
    if rope:
        columns["RoPE's\nwavelength"] = {band: _tokens(value) for band, value in rope.items()}
    columns["wavelength,\ntokens"] = {band: _tokens(value) for band, value in learned.items()}
    if analysis.bands is not None:
        columns["RMS in\nlogits"] = {row["band"]: f"{row['rms']:.4f}" for row in analysis.bands.bands}
    if analysis.ablation is not None:
        for meaning, heading in (("contribution", "zeroed,\nnats"), ("frequency", "not rotated,\nnats")):
            columns[heading] = {
                row["band"]: f"{row['increase']:+.4f}"
                for row in analysis.ablation.removals
                if row["meaning"] == meaning
            }
    if analysis.beyond is not None:
        columns["set back,\nnats beyond"] = {
            row["band"]: f"{row['beyond']:+.4f}" for row in analysis.beyond.bands if row["band"] is not None
        }
    if analysis.phasors is not None and len(analysis.phasors.bands) == len(learned):
        columns["gradient of\nlog-scale"] = {
            row["band"]: f"{row['log_scale_gradient']:+.1e}" for row in analysis.phasors.bands
        }
        columns["coherence"] = {row["band"]: f"{row['coherence']:.3f}" for row in analysis.phasors.bands}
    table = new_table("band", *columns, title=analysis.name, text=())
    dominant = None if analysis.bands is None or not analysis.bands.stands_out else analysis.bands.dominant_band
    for band in learned:
        cells = [cells.get(band, "") for cells in columns.values()]
        table.add_row(str(band), *cells, style="bold" if band == dominant else None)
    return table


def _wavelengths(analysis: _Analysis) -> tuple[dict[int, float | None], dict[int, float | None]]:
    """RoPE's, if known, and the run's own by band; means over layers and heads if these have their own."""
    from lerope.analyze.targets import wavelength

    if analysis.frequencies is not None:
        rows = analysis.frequencies.bands
        by_band: dict[int, list[float]] = {}
        for row in rows:
            by_band.setdefault(row["band"], []).append(row["frequency"])
        own = {band: wavelength(sum(values) / len(values)) for band, values in by_band.items()}
        rope = {} if analysis.frequencies.base is None else {row["band"]: row["rope_wavelength"] for row in rows}
        return rope, own
    if analysis.bands is not None:
        return {}, {row["band"]: row["wavelength"] for row in analysis.bands.bands}
    if analysis.beyond is not None:
        back = {row["band"]: row for row in analysis.beyond.bands if row["band"] is not None}
        return ({band: row["rope_wavelength"] for band, row in back.items()},
                {band: row["wavelength"] for band, row in back.items()})  # fmt: skip
    removals = analysis.ablation or analysis.slowest
    if removals is not None:
        return {}, dict(sorted((row["band"], row["wavelength"]) for row in removals.removals))
    return {}, {row["band"]: row["wavelength"] for row in (analysis.phasors.bands if analysis.phasors else [])}


def _sentences(analysis: _Analysis) -> list[str]:
    """What the numbers say."""
    found = []
    if analysis.bands is not None:
        found.append(_dominant_sentence(analysis.bands))
    if analysis.frequencies is not None:
        found.append(_suppression_sentence(analysis.frequencies))
    if analysis.ablation is not None:
        worst = max(
            (row for row in analysis.ablation.removals if row["meaning"] == "contribution"),
            key=lambda row: row["increase"],
        )
        error = "" if worst["standard_error"] is None else f" ± {worst['standard_error']:.4f}"
        found.append(
            f"The loss of {analysis.ablation.loss:.4f} rises most, by {worst['increase']:.4f}{error} nats, without "
            f"band {worst['band']} ({analysis.ablation.num_tokens:,} tokens of {analysis.ablation.num_documents:,} "
            "documents)."
        )
    if analysis.slowest is not None:
        found.append(_slowest_sentence(analysis.slowest))
    if analysis.beyond is not None:
        found.append(_beyond_sentence(analysis.beyond))
    if analysis.phasors is not None:
        found.append(
            f"Phasors add up to autograd's gradient with a relative error of {analysis.phasors.relative_error:.1e}, in "
            f"covariance form {analysis.phasors.covariance_relative_error:.1e}."
        )
    return found


def _beyond_sentence(beyond: "Beyond") -> str:
    """What setting frequencies back does to the fall beyond the train length."""
    whole, *single = beyond.bands
    best = min(single, key=lambda row: row["beyond"])
    return (
        f"Beyond {beyond.settings['train_length']:,} tokens, up to {beyond.settings['to']:,}, the loss is "
        f"{beyond.beyond_loss:.4f}. With RoPE's frequency again in band {best['band']} alone it changes by "
        f"{best['beyond']:+.4f} nats there and {best['within']:+.4f} within; in all bands by {whole['beyond']:+.4f} "
        f"and {whole['within']:+.4f} ({beyond.num_documents:,} documents)."
    )


def _dominant_sentence(bands: "Bands") -> str:
    if bands.dominant_band is None:
        return "No band rotates, so none carries position."
    if not bands.stands_out or bands.dominant_wavelength is None:
        ratio = "" if bands.dominance is None else f", is only {bands.dominance:.2f} times the next"
        return f"No band stands out: the largest RMS, that of band {bands.dominant_band}{ratio}."
    return (
        f"Band {bands.dominant_band} carries position: wavelength {_tokens(bands.dominant_wavelength)} tokens, "
        f"{bands.dominant_wavelength / bands.train_length:.2f} train lengths; its RMS is {bands.dominance:.1f} times "
        "the next."
    )


def _slowest_sentence(slowest: "SlowestRemovals") -> str:
    """How many of the slowest bands hardly matter."""
    total, still, gone = len(slowest.removals) // 2, *(slowest.most(m, _HARDLY) for m in ("frequency", "contribution"))
    return (
        f"At a cost of at most {_HARDLY:g} nats, the {still} slowest of {total} bands need not rotate, and "
        f"the {gone} slowest can be removed altogether."
    )


def _suppression_sentence(frequencies: "LearnedFrequencies") -> str:
    sets = frequencies.sets
    aliased, dead = sum(row["num_aliased"] for row in sets), sum(row["num_dead"] for row in sets)
    counts = f"{aliased} aliased, {dead} dead of {len(frequencies.bands)} bands."
    known = [row["suppressed_from"] for row in sets if row["suppressed_from"] is not None]
    if not known:
        return f"No band is suppressed; {counts}"
    if len(sets) > 1:
        return f"Bands are suppressed in {len(known)} of {len(sets)} sets, from band {min(known)} on; {counts}"
    limit = _tokens(sets[0]["suppressed_rope_wavelength"])
    return f"Suppressed from band {known[0]} on, where RoPE's wavelength is {limit} tokens; {counts}"


def _side_by_side(found: list[_Analysis]) -> Table:
    """Wavelengths of all runs, and RoPE's from the first that has any."""
    pairs = [_wavelengths(analysis) for analysis in found]
    rope = next((rope for rope, _ in pairs if rope), {})
    names = ["band", *(["RoPE"] if rope else []), *(analysis.name for analysis in found)]
    table = new_table(*names, title="Wavelengths, tokens", text=())
    for band in range(max(len(own) for _, own in pairs)):
        cells = [_tokens(rope.get(band))] if rope else []
        cells += [_tokens(own[band]) if band in own else "" for _, own in pairs]
        table.add_row(str(band), *cells)
    return table


def _ratio_sentences(found: list[_Analysis]) -> list[str]:
    """How dominant wavelengths scale with the train length, by both estimators."""
    from lerope.scaling.wavelengths import left_out_of_ratio, wavelength_ratio

    measured = [analysis.bands for analysis in found if analysis.bands is not None]
    chosen = [bands for bands in measured if left_out_of_ratio(bands) is None]
    if len(chosen) < 2:
        return []
    ratio = wavelength_ratio(
        [float(bands.train_length) for bands in chosen], [bands.dominant_wavelength or 0.0 for bands in chosen]
    )
    spread = "" if ratio.standard_deviation is None else f" ± {ratio.standard_deviation:.3f}"
    return [
        f"Dominant wavelength / train length over {len(chosen)} runs with one set of learned frequencies where a band "
        f"stands out: mean {ratio.mean:.3f}{spread}; least-squares slope through the origin {ratio.slope:.3f}, where "
        f"one run has {ratio.largest_weight:.0%} of the weight."
    ]


def _tokens(value: float | None) -> str:
    if value is None:
        return "∞"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


COMMAND = analyze
