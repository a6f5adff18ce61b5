"""What depends on the train length: dominant bands, and losses beyond it."""

import math
from collections.abc import Sequence

from lerope.core.encoding import FROZEN
from lerope.paper import numbers as paper
from lerope.report.bands import wavelengths
from lerope.report.collect import Bundle
from lerope.report.groups import rung, same_corpus
from lerope.report.measured import scored
from lerope.report.style import method_label
from lerope.report.tables.table import Cell, Column, Table
from lerope.results import Bands, Extrapolation
from lerope.scaling.wavelengths import left_out_of_ratio, wavelength_ratio

_SELECTIONS = {"all": "all", "long": "long alone"}


def dominant_bands(bundle: Bundle) -> Table:
    """The dominant band of runs with learned frequencies, and wavelength / train length under both estimators."""
    rows: list[list[Cell]] = []
    lengths, found = [], []
    for files in same_corpus(bundle):
        bands, profile = files.result(Bands), wavelengths(files)
        band, family = None if bands is None else bands.dominant_band, files.run.recipe.spec.family
        if family not in ("lerope", FROZEN) or bands is None or band is None or profile is None:
            continue
        rope, own = profile[0][band], profile[1][band]
        why = left_out_of_ratio(bands)
        if why is None:
            lengths.append(bands.train_length)
            found.append(float(own))
        theta = 2 * math.pi / own
        cells: list[Cell] = [files.run.name, rung(files), bands.train_length, band, rope / own, theta, float(own)]
        cells += [theta * bands.train_length, own / bands.train_length, bands.dominance]
        rows.append([*cells, "yes" if why is None else f"no: {why}"])
    if found:
        rows += _ratios("ours", lengths, found)
    printed_lengths = [row[0] for row in paper.DOMINANT_BANDS.values()]
    printed_wavelengths = [float(row[4]) for row in paper.DOMINANT_BANDS.values()]
    for name, (length, band, scale, frequency, wavelength, turn) in paper.DOMINANT_BANDS.items():
        place = name.partition(",")[0]
        ratio = float(wavelength) / length
        rows.append([f"paper, {place}", place, length, band, scale, frequency, wavelength, turn, ratio, None, "yes"])
    rows += _ratios("paper", printed_lengths, printed_wavelengths)
    columns = [Column("run"), Column("rung"), Column("L", ",d"), Column("band", "d"), Column("exp(alpha)", ".4f")]
    columns += [Column("frequency", ".6f"), Column("wavelength, tokens", ",.1f"), Column("frequency L", ".3f")]
    columns += [Column("wavelength / L", ".3f"), Column("dominance", ".1f"), Column("counted")]
    caption = (
        "Dominant bands. Dominance is the band's variation relative to the next largest. Runs count if they have one "
        "set of learned frequencies and a band that stands out, varying at least twice as much as any other. The mean "
        "counts runs equally; the slope through the origin weights a run by the square of its train length."
    )
    return Table("dominant-bands", caption, columns, rows)


def extrapolation(bundle: Bundle) -> Table:
    """Perplexity within and beyond the train length, for each way of stretching."""
    rows: list[list[Cell]] = []
    for name, files in scored(bundle).items():
        result = files.result(Extrapolation)
        assert result is not None
        for way in result.ways:
            documents = _SELECTIONS.get(way["selection"], way["selection"])
            parts: list[Cell] = [way["in_distribution_perplexity"], way["extrapolated_perplexity"]]
            cells: list[Cell] = [method_label(name), way["label"], f"ours, {rung(files)}", documents]
            rows.append([*cells, way["num_documents"], *parts, way["full_perplexity"]])
    rows.sort(key=lambda row: row[3] != _SELECTIONS["all"])
    for (name, words), printed in paper.EXTRAPOLATION.items():
        rows.append([method_label(name), words, "paper, 2.52B", _SELECTIONS["all"], None, *printed])
    columns = [Column("method"), Column("way"), Column("source"), Column("documents"), Column("number", ",d")]
    columns += [Column(title, ",.3f") for title in ("within", "beyond", "full")]
    caption = (
        "Perplexity at positions within and beyond the train length, over all documents, cut where the longest end, "
        "and over only those that reach this end. The paper speaks of long documents, but its full column has 7 % of "
        "its tokens beyond the train length, so it covers all."
    )
    return Table("extrapolation", caption, columns, rows)


def _ratios(source: str, lengths: Sequence[int], found: Sequence[float]) -> list[list[Cell]]:
    """Both estimators of wavelength / L, as rows of the table of dominant bands."""
    ratio = wavelength_ratio([float(length) for length in lengths], found)
    blank: list[Cell] = [None] * 7
    return [
        [f"{source}, mean of {len(found)} runs", *blank, ratio.mean, None, None],
        [f"{source}, slope through the origin", *blank, ratio.slope, None, None],
    ]
