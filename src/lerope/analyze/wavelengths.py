"""Frequencies as wavelengths: against RoPE's, through training, and where they are too slow to matter.

Suppression point: the first band from which every band is slowed to less than half RoPE's frequency *and* has a
wavelength of more than four train lengths, so that it turns by less than a quarter within a row. RoPE itself has none.
"""

import math

import numpy as np
import numpy.typing as npt

from lerope.analyze.targets import Target, wavelength
from lerope.core.run import FREQUENCIES, HISTORY, Run, read_history
from lerope.evaluate.measuring import Measurement
from lerope.results import Arrays, BandFrequency, FrequencySet, LearnedFrequencies
from lerope.rotary.artifact import Frequencies
from lerope.rotary.frequencies import DEAD_TURNS, geometric

Floats = npt.NDArray[np.float64]

FILE = "frequencies.json"
_NUM_RECORDS = 200
_SUPPRESSED_LENGTHS = 4.0
_SUPPRESSED_FACTOR = 2.0


def describe_frequencies(target: Target) -> LearnedFrequencies:
    """Reads the frequencies of a run and their history, and writes `results/frequencies.json`."""
    if target.run is None:
        raise ValueError(f"{target.path} is not a run, so its frequencies have no history; leave the part out.")
    run = target.run
    settings = {"suppressed_lengths": _SUPPRESSED_LENGTHS, "suppressed_factor": _SUPPRESSED_FACTOR}
    measurement = target.measurement(LearnedFrequencies, FILE, settings)

    def describe() -> tuple[LearnedFrequencies, Arrays]:
        run.check_model(FREQUENCIES)
        saved = Frequencies.load(run.model / FREQUENCIES)
        steps, history = through_training(run, saved)
        return _described(measurement, target, saved), {"steps": steps, "frequencies": history}

    return measurement.carry_out(lambda: describe)


def _described(measurement: Measurement[LearnedFrequencies], target: Target, saved: Frequencies) -> LearnedFrequencies:
    theta = np.asarray(saved.frequencies, np.float64)
    num_bands = theta.shape[-1]
    rope = None if saved.base is None else geometric(saved.rotary_dim, saved.base).double().numpy()
    sets, bands = [], []
    for (layer, head), values in zip(_places(saved), theta.reshape(-1, num_bands), strict=True):
        first = suppressed_from(values, rope, target.train_length)
        sets.append(
            FrequencySet(
                layer=layer,
                head=head,
                suppressed_from=first,
                suppressed_rope_wavelength=None if first is None or rope is None else wavelength(float(rope[first])),
                num_aliased=int((abs(values) > math.pi).sum()),
                num_dead=int((abs(values) * target.train_length / (2 * math.pi) < DEAD_TURNS).sum()),
            )
        )
        bands += [_band(layer, head, m, values, rope, target.train_length) for m in range(num_bands)]
    return LearnedFrequencies(
        **measurement.common,
        train_length=target.train_length,
        base=saved.base,
        sharing=saved.sharing,
        sets=sets,
        bands=bands,
    )


def suppressed_from(theta: Floats, rope: Floats | None, train_length: int) -> int | None:
    """The suppression point as defined at the top of this module; None if the slowest band is not suppressed.

    Args:
        theta: (bands,), radians per token.
        rope: what RoPE of the same base has; None without a base, and then nothing is suppressed.
    """
    if rope is None:
        return None
    slow = (abs(theta) * _SUPPRESSED_LENGTHS * train_length < 2 * math.pi) & (abs(theta) * _SUPPRESSED_FACTOR < rope)
    kept = np.flatnonzero(~slow)
    first = int(kept[-1]) + 1 if len(kept) else 0
    return first if first < len(theta) else None


def through_training(run: Run, saved: Frequencies) -> tuple[npt.NDArray[np.int64], Floats]:
    """Steps, (records,), and frequencies at them, (records, ..., bands): at most 200, the first and last among them."""
    rope = None if saved.base is None else geometric(saved.rotary_dim, saved.base).tolist()
    records = [
        (record.step, np.array(values, np.float64))
        for record in read_history(run.path)
        if (values := record.values(rope)) is not None
    ]
    if not records:
        raise ValueError(f"{run.path / HISTORY} has no records; restore it, or leave the part out.")
    chosen = np.unique(np.linspace(0, len(records) - 1, min(len(records), _NUM_RECORDS)).round().astype(int))
    steps = np.array([records[index][0] for index in chosen], np.int64)
    return steps, np.stack([records[index][1] for index in chosen])


def _places(saved: Frequencies) -> list[tuple[int | None, int | None]]:
    """The (layer, head) of each set of frequencies, None where they are shared."""
    sizes = np.asarray(saved.frequencies).shape[:-1]
    names = {"shared": (), "layer": ("layer",), "head": ("head",), "layer_head": ("layer", "head")}[saved.sharing]
    found: list[tuple[int | None, int | None]] = []
    for index in np.ndindex(*sizes):
        at = dict(zip(names, map(int, index), strict=True))
        found.append((at.get("layer"), at.get("head")))
    return found


def _band(
    layer: int | None, head: int | None, band: int, theta: Floats, rope: Floats | None, train_length: int
) -> BandFrequency:
    value = float(theta[band])
    ratio = 0.0 if rope is None else value / float(rope[band])
    turns = abs(value) * train_length / (2 * math.pi)
    return BandFrequency(
        layer=layer,
        head=head,
        band=band,
        frequency=value,
        wavelength=wavelength(value),
        rope_wavelength=None if rope is None else wavelength(float(rope[band])),
        log_scale=math.log(ratio) if ratio > 0 else None,
        turns=turns,
        aliased=abs(value) > math.pi,
        dead=turns < DEAD_TURNS,
    )
