"""What bands of runs do: their wavelengths through training and at its end, the dominant one, phasors."""

import math

import numpy as np
import numpy.typing as npt

from lerope.core.encoding import BASE
from lerope.report.collect import Bundle, RunFiles
from lerope.report.curves import Floats
from lerope.report.groups import main_study, matched
from lerope.results import Bands, LearnedFrequencies, Phasors

Complexes = npt.NDArray[np.complex128]


def frequency_history(files: RunFiles) -> tuple[npt.NDArray[np.int64], Floats] | None:
    """Steps and the frequencies at them, (records, sets, bands); layers or heads with their own have a set each."""
    steps, rows = [], []
    for record in files.frequencies:
        scales = record.log_scales if record.frequencies is None else record.frequencies
        num_bands = np.shape(scales)[-1] if scales else 0
        values = record.values(rope_frequencies(files, num_bands)) if num_bands else None
        if values is not None:
            steps.append(record.step)
            rows.append(np.array(values, np.float64).reshape(-1, num_bands))
    same = [at for at, row in enumerate(rows) if row.shape == rows[-1].shape]
    return (np.array([steps[at] for at in same]), np.stack([rows[at] for at in same])) if rows else None


def rope_frequencies(files: RunFiles, num_bands: int) -> list[float]:
    """RoPE's with this many bands, at the base of the run's encoding; at the usual one where it has none."""
    base = files.run.recipe.spec.base or BASE
    return [base ** (-band / num_bands) for band in range(num_bands)]


def turns(frequencies: Floats) -> Floats:
    """Tokens per full turn; infinite for a band that does not turn."""
    with np.errstate(divide="ignore"):
        found: Floats = 2 * math.pi / abs(frequencies)
    return found


def mean_wavelengths(frequencies: Floats) -> Floats:
    """Wavelengths by band, the geometric mean over sets: (..., sets, bands) to (..., bands)."""
    means: Floats = np.exp(np.log(turns(frequencies)).mean(-2))
    return means


def wavelengths(files: RunFiles) -> tuple[Floats, Floats] | None:
    """RoPE's wavelengths and the run's own, band by band, in tokens; infinite for a band that does not turn.

    The geometric mean where layers or heads have their own frequencies. Without the analysis' file, what training
    recorded last.
    """
    found = files.result(LearnedFrequencies)
    if found is not None and found.base is not None:
        num_bands = 1 + max(band["band"] for band in found.bands)
        own = np.array([band["frequency"] for band in found.bands]).reshape(-1, num_bands)
        rope = found.base ** (-np.arange(num_bands) / num_bands)
        return turns(rope), mean_wavelengths(own)
    history = frequency_history(files)
    if history is None:
        return None
    last = history[1][-1]
    return turns(np.array(rope_frequencies(files, last.shape[-1]))), mean_wavelengths(last)


def dominant_band(files: RunFiles) -> int | None:
    """The dominant band, where bands were measured and one stands out."""
    bands = files.result(Bands)
    return None if bands is None or not bands.stands_out else bands.dominant_band


def num_suppressed(files: RunFiles) -> int | None:
    """How many of the slowest bands a run has suppressed by itself; None where it has not, or not in one set."""
    found = files.result(LearnedFrequencies)
    if found is None or len(found.sets) > 1 or found.sets[0]["suppressed_from"] is None:
        return None
    return len(found.bands) - found.sets[0]["suppressed_from"]


def num_pairs(length: int) -> Floats:
    """How many pairs of tokens a row of this length has at each distance from 0 on."""
    return np.arange(length, 0, -1).astype(np.float64)


def phasor_pair(bundle: Bundle) -> list[RunFiles]:
    """The largest RoPE run and the largest LeRoPE run whose phasors were measured, or whichever there is."""
    measured = [files for files in main_study(bundle) if gradient_phasors(files) is not None]
    return matched(measured, ("rope", "lerope"))


def gradient_phasors(files: RunFiles) -> tuple[Floats, Complexes, Floats] | None:
    """Distances, phasors G(d) = i d C(d) e^{i d theta} as (bands, distances), and frequencies as (sets, bands).

    Phasors of sets that belong to layers or heads are added up.
    """
    arrays = files.arrays(Phasors)
    if not {"phasors_real", "phasors_imag", "distances", "frequencies"} <= arrays.keys():
        return None
    distances = arrays["distances"].astype(np.float64)
    phasors = arrays["phasors_real"] + 1j * arrays["phasors_imag"]
    turned = 1j * distances * phasors * np.exp(1j * distances * arrays["frequencies"][..., None])
    theta = arrays["frequencies"].reshape(-1, turned.shape[-2])
    return distances, turned.reshape(-1, *turned.shape[-2:]).sum(0), theta
