"""A preset from runs: what their frequencies have in common, by train length, and what that is worth."""

import math
from dataclasses import dataclass

import numpy as np

from lerope.core.encoding import FROZEN, PRESET, EncodingSpec
from lerope.core.grouping import grouped
from lerope.core.preset import Gain, Preset, Profile
from lerope.core.resample import rope, with_dominant
from lerope.core.run import RESULTS, TOKENIZER, Run, finished_run, read_history
from lerope.core.terminal import listed
from lerope.results import Bands
from lerope.scaling.compare import compare
from lerope.scaling.evaluated import Paths

# A log-scale is learned in float32, and has no more digits than this behind the point.
_DIGITS = 8


@dataclass(frozen=True)
class Made:
    """A preset, and what a reader should know about how it came about."""

    preset: Preset
    notes: list[str]


def make_preset(paths: Paths, name: str, good_for: str | None = None, held_out: Paths = (), version: int = 1) -> Made:
    """A preset of finished runs.

    Args:
        paths: of LeRoPE runs, which make the profiles, one for each train length. Runs of RoPE, and of fixed
            frequencies, with `lerope eval`'s results in all of them, say what it is worth where it was learned.
        name: what to call it.
        good_for: one sentence; by default, from the text's name and the train lengths.
        held_out: runs of the same kinds that say what it is worth elsewhere, and nothing else: other seeds, train
            lengths, head sizes or texts.
        version: of presets of this name.
    """
    runs, others = ([finished_run(path) for path in some] for some in (paths, held_out))
    for run in (*runs, *others):
        if run.recipe.spec.family not in ("lerope", "rope", FROZEN, PRESET):
            raise ValueError(
                "encoding must be lerope, of which a preset is made, or rope, frozen or preset:NAME, by which its gain "
                f"is measured; {run.path} has {run.recipe.encoding!r}."
            )
    learned = [run for run in runs if run.recipe.spec.family == "lerope"]
    if not learned:
        raise ValueError("name at least one finished run of --encoding lerope that is not held out.")
    for run in others:
        if run.digest in {own.digest for own in runs}:
            raise ValueError(f"{run.path} is held out and among the runs of the preset; name it once.")
    _check_alike(runs, learned)
    by_length = grouped(sorted(learned, key=lambda run: run.recipe.row_length), lambda run: run.recipe.row_length)
    profiles = [_profile(some) for some in by_length.values()]
    notes = [
        f"train length {profile.train_length:,}: one run, so nothing is known about the spread between seeds."
        for profile in profiles
        if profile.spread is None
    ]
    notes += [
        f"train length {profile.train_length:,}: no dominant band is known; `lerope analyze` finds it."
        for profile in profiles
        if profile.dominant_wavelength is None
    ]
    gains = [*_gains(runs, name, False, notes), *_gains(others, name, True, notes)]
    if not gains:
        notes.append("its gain is not measured; name evaluated runs of rope and lerope with the same seeds.")
    first, start = learned[0], learned[0].starts[-1]
    text, lengths = listed(start.sources) or "the same text", ", ".join(f"{length:,}" for length in by_length)
    preset = Preset(
        name=name,
        version=version,
        good_for=good_for or f"Models trained from scratch on text like {text}, in rows of about {lengths} tokens.",
        base=_base(first),
        head_dim=first.recipe.model.head_dim,
        text=start.sources,
        data=first.identity.data,
        tokenizer=first.model_sha256.get(TOKENIZER),
        vocab_size=first.recipe.model.vocab_size,
        encoding=first.recipe.encoding,
        profiles=profiles,
        gains=gains,
    )
    return Made(preset, notes)


def _check_alike(runs: list[Run], learned: list[Run]) -> None:
    """Raises unless runs are of one text and head size, and the learned ones of one encoding with one set of bands."""
    first = learned[0]
    if dict(first.recipe.spec.options).keys() & {"sharing", "rotary_dim"}:
        raise ValueError(
            f"encoding must have one set of frequencies for whole heads to make a preset; {first.path} has "
            f"{first.recipe.encoding!r}."
        )
    seen: dict[tuple[str, int, int], Run] = {}
    for run in runs:
        fields = {
            "data": (first.identity.data[:12], run.identity.data[:12]),
            "head_dim": (first.recipe.model.head_dim, run.recipe.model.head_dim),
        }
        if run in learned:
            fields |= {
                "base": (_base(first), _base(run)),
                "encoding": (first.recipe.encoding, run.recipe.encoding),
            }
        for field, (mine, yours) in fields.items():
            if mine != yours:
                raise ValueError(
                    f"{first.path} and {run.path} make no preset together: {field} is {mine} in the first and {yours} "
                    "in the second."
                )
        key = (run.recipe.rung, run.recipe.row_length, run.recipe.seed)
        if run in learned and seen.setdefault(key, run) is not run:
            raise ValueError(
                f"{seen[key].path} and {run.path} are both of rung {key[0]}, row_length {key[1]:,} and seed {key[2]}; "
                "name one of them."
            )


def _base(run: Run) -> float:
    base = run.recipe.spec.base
    assert base is not None  # LeRoPE has one
    return base


def _profile(runs: list[Run]) -> Profile:
    """The mean of runs at one train length."""
    scales = np.array([_log_scales(run) for run in runs])
    found = [wavelength for run in runs if (wavelength := _dominant_wavelength(run)) is not None]
    dominant = math.exp(float(np.log(found).mean())) if found else None
    base = np.array(rope(scales.shape[1], _base(runs[0])))
    # Where runs disagree about the number of the dominant band, its mean over runs would be nobody's.
    mean = with_dominant(
        (scales.mean(0) + base).tolist(), None if dominant is None else math.log(2 * math.pi / dominant)
    )
    recipes = [run.recipe for run in runs]
    return Profile(
        train_length=recipes[0].row_length,
        log_scales=[round(value, _DIGITS) for value in (np.array(mean) - base).tolist()],
        spread=[round(value, _DIGITS) for value in scales.std(0, ddof=1).tolist()] if len(runs) > 1 else None,
        dominant_wavelength=None if dominant is None else round(dominant, 2),
        rungs=list(dict.fromkeys(recipe.rung for recipe in recipes)),
        seeds=sorted({recipe.seed for recipe in recipes}),
        steps=sorted({recipe.steps for recipe in recipes}),
        runs=[run.name for run in runs],
    )


def _log_scales(run: Run) -> list[float]:
    """What a run learned, as training recorded it at the last step."""
    records = read_history(run.path)
    num_bands = run.recipe.model.head_dim // 2
    if not records or records[-1].step != run.recipe.steps or records[-1].log_scales is None:
        raise ValueError(f"{run.path} has no record of its last frequencies; train it again.")
    scales = records[-1].log_scales
    if len(scales) != num_bands or not all(isinstance(scale, int | float) for scale in scales):
        raise ValueError(
            f"{run.path} must have learned {num_bands} positive frequencies; got log-scales {str(scales)[:60]}."
        )
    return scales


def _dominant_wavelength(run: Run) -> float | None:
    """The wavelength of a run's dominant band, where `lerope analyze` found one that stands out."""
    file = run.path / RESULTS / "bands.json"
    if not file.is_file():
        return None
    bands = Bands.load(file)
    if bands.run.get("created") != run.created:
        raise ValueError(f"{file} was made from an earlier training in this folder; remove it and analyze the run.")
    return bands.dominant_wavelength if bands.stands_out else None


def _gains(runs: list[Run], name: str, held_out: bool, notes: list[str]) -> list[Gain]:
    """What LeRoPE gains over RoPE, setting by setting, and what fixed frequencies keep of it."""

    def setting(run: Run) -> tuple[str, int, int, str]:
        return run.identity.data, run.recipe.row_length, run.recipe.model.head_dim, run.recipe.rung

    evaluated = [run for run in runs if (run.path / RESULTS / "eval.json").is_file()]
    found: list[Gain] = []
    for (_, length, head_dim, rung), some in grouped(evaluated, setting).items():
        try:
            gain = _gain(some, name, held_out)
        except ValueError as error:
            notes.append(f"{rung}, train length {length:,}, head_dim {head_dim}: no gain, because {error}")
        else:
            found += [] if gain is None else [gain]
    return found


def _gain(runs: list[Run], name: str, held_out: bool) -> Gain | None:
    """The gain in one setting; None without runs of RoPE and LeRoPE."""
    methods = grouped(runs, lambda run: run.recipe.spec.method)
    seeds = {method: {run.recipe.seed for run in some} for method, some in methods.items()}
    first = next((run for run in runs if run.recipe.spec.family == "lerope"), None)
    if first is None:
        return None
    learned, rope = first.recipe.spec.method, EncodingSpec.parse(f"rope,base={_base(first)}").method
    fixed = next((method for method in (f"{PRESET}:{name}", FROZEN) if method in seeds), None)
    if rope not in seeds:
        return None
    counted = [run.path for run in runs if run.recipe.spec.method in (rope, learned, fixed)]
    compared = compare(counted, rope, learned)
    share = next((gain for gain in compared.gains if gain["method"] == fixed), None)
    effect = next(effect for effect in compared.effects if effect["method"] == learned)
    common = seeds[rope] & seeds[learned] & (seeds[fixed] if share and fixed else seeds[rope])
    return Gain(
        text=first.starts[-1].sources,
        train_length=first.recipe.row_length,
        head_dim=first.recipe.model.head_dim,
        rung=first.recipe.rung,
        seeds=sorted(common),
        held_out=held_out,
        gain=share["baseline_loss"] - share["reference_loss"] if share else -effect["difference"],
        method=fixed if share else None,
        captured=share["loss"] if share else None,
    )
