"""What each band adds to the attention logits at each distance, and which band carries position.

c_m(d) = mean over documents, heads and queries s of Re(q_s conj(k_{s-d}) e^{i d theta_m}) / sqrt(head_dim)

with the two dimensions of a band as one complex number, after QK-norm and before rotation. The sum over s is a
cross-correlation, so an FFT gives all distances at once, exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lerope.analyze.subjects import OwnModel, Subject, Turned
from lerope.analyze.targets import Target, check_rows, mean_frequencies, wavelength
from lerope.core.signals import Signals
from lerope.core.terminal import Display
from lerope.data.shards import Tokens
from lerope.evaluate.documents import Source
from lerope.evaluate.measuring import Measurement
from lerope.model.transformer import Transformer
from lerope.results import Arrays, BandContribution, Bands, LayerBand

Floats = npt.NDArray[np.float64]

FILE = "bands.json"


@dataclass(frozen=True)
class Measured:
    """Band by band, what a subject does on some rows."""

    contributions: Floats
    """c_m(d) of every layer, mean over heads: (layers, bands, longest row)."""
    query_norms: Floats
    """Mean length of a band's part of a query: (layers, heads, bands)."""
    key_norms: Floats
    """The same of keys: (layers, key heads, bands)."""
    bounds: Floats
    """The most a band can add to a logit, |q_s| |k_t| / sqrt(head_dim), as the mean over all pairs of a row, then
    over rows: (layers, heads, bands)."""


def measure_bands(target: Target, num_rows: int, device: torch.device) -> Bands:
    """Measures full rows of a target's documents and writes `results/bands.json` with the curves beside it."""
    rows = full_rows(target.documents.source, target.length, num_rows)
    settings = {**target.settings, "num_rows": len(rows)}
    check_rows(rows, target)
    measurement = target.measurement(Bands, FILE, settings, device)

    def measured() -> Callable[[], tuple[Bands, Arrays]]:
        subject = target.load(device)
        found = measure(subject, rows, f"{target.name}, bands")
        curves = found.contributions
        arrays = {
            "contributions": curves,
            "mean": curves.mean(0),
            "std": curves.std(0),
            "query_norms": found.query_norms,
            "key_norms": found.key_norms,
            "bounds": found.bounds,
        }
        return lambda: (_summarise(measurement, target, subject, found), arrays)

    return measurement.carry_out(measured)


def contributions(model: Transformer, rows: Sequence[Tokens], device: torch.device | str = "cpu") -> Floats:
    """c_m(d) of every layer of one of our models: (layers, bands, length of the longest row).

    Args:
        rows: tokens of one document or window each.
    """
    return measure(OwnModel(model, device), rows, "bands").contributions


@torch.no_grad()
def measure(subject: Subject, rows: Sequence[Tokens], label: str) -> Measured:
    """Runs the rows, one at a time, and adds up what each layer shows; memory does not grow with their number.

    Args:
        rows: tokens of one document or window each.
        label: what to call the work in progress.
    """
    longest = max(len(row) for row in rows)
    sums = np.zeros((subject.num_layers, subject.num_bands, longest))
    query_norms, bounds = np.zeros((2, subject.num_layers, subject.num_heads, subject.num_bands))
    key_norms = np.zeros((subject.num_layers, subject.num_key_heads, subject.num_bands))
    num_pairs = np.zeros(longest)

    def see(turned: Turned) -> None:
        layer, length = turned.layer, len(turned.q)
        sums[layer, :, :length] += _summed_logits(turned)
        q_means, k_means = (x.abs().mean(0) for x in (turned.q, turned.k))
        scale = turned.turns[0].abs()
        every_key = k_means.repeat_interleave(subject.num_heads // subject.num_key_heads, 0)
        query_norms[layer] += q_means.cpu().numpy()
        key_norms[layer] += k_means.cpu().numpy()
        bounds[layer] += (q_means * every_key * scale).cpu().numpy()

    with Display() as display, Signals() as signals:
        for number, row in enumerate(rows, start=1):
            subject.watch(row, see)
            num_pairs[: len(row)] += np.arange(len(row), 0, -1)
            display.show(f"{label}  row {number} of {len(rows)}")
            signals.check()
    return Measured(
        sums / (num_pairs * subject.num_heads), query_norms / len(rows), key_norms / len(rows), bounds / len(rows)
    )


def _summarise(measurement: Measurement[Bands], target: Target, subject: Subject, measured: Measured) -> Bands:
    curves = measured.contributions
    rms, layer_rms = variation(curves.mean(0)), variation(curves)
    theta = mean_frequencies(subject)
    dominant = dominant_band(curves, subject.frequencies)
    others = np.delete(rms, dominant) if dominant is not None else np.zeros(1)
    return Bands(
        **measurement.common,
        train_length=target.train_length,
        dominant_band=dominant,
        dominant_wavelength=None if dominant is None else wavelength(theta[dominant]),
        dominance=float(rms[dominant] / others.max()) if others.any() else None,
        bands=[
            BandContribution(
                band=band,
                wavelength=wavelength(theta[band]),
                rms=float(rms[band]),
                mean=float(curves[:, band, 1:].mean()),
                layer_spread=float(np.sqrt((curves[:, band, 1:].std(0) ** 2).mean())),
            )
            for band in range(subject.num_bands)
        ],
        layers=[
            LayerBand(
                layer=layer,
                band=band,
                query_norm=float(measured.query_norms[layer, :, band].mean()),
                key_norm=float(measured.key_norms[layer, :, band].mean()),
                bound=float(measured.bounds[layer, :, band].mean()),
                rms=float(layer_rms[layer, band]),
            )
            for layer in range(subject.num_layers)
            for band in range(subject.num_bands)
        ],
    )


def _summed_logits(turned: Turned) -> Floats:
    """The sum over heads and queries of each band's part of the logits: (bands, length), by distance."""
    length, num_heads, num_bands = turned.q.shape
    group = num_heads // turned.k.shape[1]
    num_sets = turned.turns.shape[1]
    size = 2 * length  # room for every distance, so that the ends do not meet
    crossed = turned.q.new_zeros(num_sets, num_bands, size)
    for head in range(num_heads):
        q = torch.fft.fft(turned.q[:, head].t().contiguous(), size)
        if head % group == 0:
            k = torch.fft.fft(turned.k[:, head // group].t().contiguous(), size).conj()
        crossed[head * num_sets // num_heads] += q * k
    logits = torch.fft.ifft(crossed)[..., :length] * turned.turns.permute(1, 2, 0)
    summed: Tensor = logits.real.sum(0)
    return summed.cpu().numpy()


def variation(curves: Floats) -> Floats:
    """The root mean square over d = 1 ... of a curve less its mean; curves are (..., distances)."""
    spread: Floats = curves[..., 1:].std(axis=-1)
    return spread


def dominant_band(values: Floats, frequencies: Tensor) -> int | None:
    """The band whose contribution, as the mean over layers, varies most with distance; None where no band turns.

    Unless means are subtracted, a band that hardly turns and adds a constant would win. Bands that do not turn at all
    carry only content, whatever its part in the logits at a distance.

    Args:
        values: (layers, bands, distances).
        frequencies: (..., bands).
    """
    turns = (frequencies.reshape(-1, frequencies.shape[-1]) != 0).any(0).cpu().numpy()
    return int(np.argmax(np.where(turns, variation(values.mean(0)), -1.0))) if turns.any() else None


def full_rows(source: Source, length: int, count: int) -> list[Tokens]:
    """The first `length` tokens of the first `count` documents that have that many; of the longest ones if none has."""
    lengths = np.asarray(source.lengths).astype(np.int64)
    chosen = np.flatnonzero(lengths >= length)[:count]
    if not len(chosen):
        chosen = np.argsort(-lengths, kind="stable")[:count]
    return [source.document(int(index), 0, length) for index in chosen]
