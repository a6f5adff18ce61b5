"""What the paper claims, beside what archived runs say: every number is computed from result files.

A claim about a number is first whether there is an effect at all, by our 95 % interval; then it agrees if the paper's
lies in that interval, or goes in the same direction. A claim about an order agrees if every seed has it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import ModuleType

import campaign
import numpy as np

from lerope.core.run import RUN
from lerope.launch.progress import difference
from lerope.launch.study import PlannedRun, Study
from lerope.paper import numbers
from lerope.report.collect import RunFiles, read_files
from lerope.report.measured import needle
from lerope.results import Bands, Comparison, Extrapolation, ExtrapolationRow, LearnedFrequencies, MethodEffect
from lerope.scaling.compare import compare
from lerope.scaling.wavelengths import left_out_of_ratio

AGREES, SAME, NOISE, DIFFERS, WAITING = "agrees", "same direction", "not told from noise", "differs", "not measured yet"
LEAST_CORRELATION = 0.9
"""From here on, two seeds' profiles count as the same."""
_FEWEST = 3
"""Lengths that a law is asked of."""
NEAR = 0.1
"""How far a wavelength may be from the paper's multiple of the window, relative to it, and still agree."""


@dataclass(frozen=True)
class Claim:
    """One line of the table."""

    study: str
    paper: str
    measured: str = ""
    verdict: str = WAITING
    note: str = ""


class Archive:
    """The runs of one text, by name, and the module of studies that they belong to; any that cannot be read raises."""

    def __init__(self, folder: Path, studies: ModuleType = campaign) -> None:
        self.folder, self.studies, notes = folder, studies, list[str]()
        found = [read_files(path.parent, notes) for path in sorted(folder.glob(f"*/{RUN}"))]
        if notes:
            raise ValueError(notes[0])
        self.runs = {files.run.name: files for files in found if files is not None}

    def of(self, study: Study) -> list[tuple[PlannedRun, RunFiles]]:
        """The study's runs that are here; raises if one has another recipe than the study says."""
        found = []
        for planned in study.runs:
            if (files := self.runs.get(planned.name)) is not None:
                if (problem := difference(planned, self.folder, files.run, None)) is not None:
                    raise ValueError(problem)
                found.append((planned, files))
        return found

    def files(self, study: Study, *encodings: str) -> list[RunFiles]:
        """The same without the plan, of these encodings or all."""
        return [files for planned, files in self.of(study) if not encodings or planned.encoding in encodings]

    def compared(self, study: Study) -> Comparison | None:
        """The study's evaluated runs against RoPE, those that RoPE has a run for; None without a pair."""
        evaluated = [files for files in self.files(study) if "eval" in files.results]
        of_rope = {_setting(files) for files in evaluated if files.run.recipe.spec.method == "rope"}
        chosen = [files for files in evaluated if _setting(files) in of_rope]
        rungs = {files.run.recipe.rung for files in chosen if files.run.recipe.spec.method != "rope"}
        paths = [files.run.path for files in chosen if files.run.recipe.rung in rungs]
        return compare(paths) if paths else None


def _setting(files: RunFiles) -> tuple[str, int]:
    """What runs of a pair have in common."""
    return files.run.recipe.rung, files.run.recipe.seed


def number_verdict(paper: float, low: float, high: float) -> str:
    """What an interval says about the paper's number."""
    if low <= 0 <= high:
        return NOISE
    if low <= paper <= high:
        return AGREES
    return SAME if (paper < 0) == (high < 0) else DIFFERS


def of_seeds(verdict: str, num_seeds: int) -> str:
    """A verdict that counts seeds; one alone is too few for it to count."""
    return verdict if num_seeds > 1 else f"{verdict}, one seed"


def claims(english: Archive, code: Archive) -> list[Claim]:
    """All of them, in the order of the studies."""
    return [
        *_effect(english),
        *_profile(english),
        *_window(english),
        *_transfer(english),
        *_size(english),
        *_code(english, code),
        *_reach(english),
        *_needle(english),
    ]


def printed_difference(method: str, rung: str = "52M") -> float:
    """The paper's difference of losses from RoPE, from its perplexities."""
    at = numbers.RUNGS.index(rung)
    return math.log(numbers.PERPLEXITY[method][at] / numbers.PERPLEXITY["rope"][at])


def interval(effect: MethodEffect) -> tuple[float, float, str]:
    """The 95 % interval over all that was varied, and over what in words."""
    documents = f"{effect['num_documents']:,} documents"
    if effect["both_low"] is not None and effect["both_high"] is not None:
        return effect["both_low"], effect["both_high"], f"{effect['num_seeds']} seeds and {documents}"
    return effect["documents_low"], effect["documents_high"], f"{documents} alone, one seed"


def _against_rope(comparison: Comparison | None, method: str, rung: str = "52M") -> MethodEffect | None:
    rows = comparison.effects if comparison is not None else []
    return next((row for row in rows if (row["method"], row["rung"].partition(",")[0]) == (method, rung)), None)


def _difference_claim(study: str, paper: str, value: float, effect: MethodEffect | None, note: str = "") -> Claim:
    if effect is None:
        return Claim(study, paper)
    low, high, over = interval(effect)
    return Claim(
        study,
        paper,
        f"{effect['difference']:+.4f} nats ({low:+.4f} to {high:+.4f}; {over})",
        of_seeds(number_verdict(value, low, high), effect["num_seeds"]),
        note,
    )


def laptop_claims(laptop: Archive) -> list[Claim]:
    """What can be asked of a small model too; the paper's numbers are of larger ones."""
    return [
        _ahead(laptop),
        _every_seed(laptop),
        *_profile(laptop),
        *_window(laptop),
        _frozen(laptop),
        *_reach(laptop),
    ]


def _effect(text: Archive) -> list[Claim]:
    found, made = text.compared(text.studies.effect()), []
    for method, name in (("lerope", "LeRoPE"), ("prope", "p-RoPE")):
        value = printed_difference(method)
        made.append(
            _difference_claim(
                "effect", f"{name} against RoPE at 52M: {value:+.4f} nats", value, _against_rope(found, method)
            )
        )
    return [*made, _every_seed(text)]


def _ahead(text: Archive) -> Claim:
    """A gain of any size."""
    claim = Claim("effect", "LeRoPE is ahead of RoPE")
    effect = _against_rope(text.compared(text.studies.effect()), "lerope", "demo")
    if effect is None:
        return claim
    low, high, over = interval(effect)
    measured = f"{effect['difference']:+.4f} nats ({low:+.4f} to {high:+.4f}; {over})"
    verdict = AGREES if high < 0 else DIFFERS if low > 0 else NOISE
    return replace(claim, measured=measured, verdict=of_seeds(verdict, effect["num_seeds"]))


def _every_seed(text: Archive) -> Claim:
    claim = Claim("effect", "LeRoPE is ahead of RoPE with every seed")
    found = text.compared(text.studies.effect())
    by_seed: dict[str, dict[int, float]] = {}
    for row in found.losses if found is not None else []:
        by_seed.setdefault(row["method"], {})[row["seed"]] = row["loss"]
    seeds = sorted(by_seed.get("rope", {}).keys() & by_seed.get("lerope", {}).keys())
    if len(seeds) < 2:
        return claim  # one seed is every seed, whatever it says
    ahead = sum(by_seed["lerope"][seed] < by_seed["rope"][seed] for seed in seeds)
    return replace(
        claim,
        measured=f"{ahead} of {len(seeds)} seeds",
        verdict=AGREES if ahead == len(seeds) else DIFFERS,
    )


def _profile(text: Archive) -> list[Claim]:
    learned = [files for files in text.files(text.studies.effect(), "lerope") if files.result(LearnedFrequencies)]
    same = Claim("profile", "seeds learn the same profile")
    profiles = [_log_scales(files) for files in learned]
    if len(profiles) > 1:
        least = min(float(np.corrcoef(one, other)[0, 1]) for one, other in combinations(profiles, 2))
        same = Claim(
            same.study,
            same.paper,
            f"correlation of log-scales between seeds at least {least:.3f}",
            AGREES if least >= LEAST_CORRELATION else DIFFERS,
            f"agrees from {LEAST_CORRELATION} on; {len(profiles)} seeds",
        )
    ratio = float(numbers.WAVELENGTH_BY_LENGTH)
    dominant = Claim("profile", f"one band dominates, with a wavelength of {ratio:.1f} windows")
    bands = [(files, found) for files in learned if (found := files.result(Bands)) is not None]
    if bands:
        standing = [found.dominant_wavelength / found.train_length for _, found in bands
                    if found.stands_out and found.dominant_wavelength]  # fmt: skip
        words = ", ".join(f"{value:.2f}" for value in standing)
        near = len(standing) == len(bands) and all(abs(value / ratio - 1) <= NEAR for value in standing)
        verdict = AGREES if near else SAME if len(standing) == len(bands) else DIFFERS
        dominant = Claim(
            dominant.study,
            dominant.paper,
            f"a band stands out in {len(standing)} of {len(bands)} run{'s' * (len(bands) > 1)}"
            + f"; wavelength / window {words}" * bool(words),
            of_seeds(verdict, len(bands)),
            f"stands out: twice the next; agrees within {NEAR:.0%}",
        )
    slow = Claim("profile", "slow bands are suppressed")
    if learned:
        sets = [files.result(LearnedFrequencies) for files in learned]
        first = [found.sets[0]["suppressed_from"] for found in sets if found is not None]
        some = [str(band) for band in first if band is not None]
        words = f"from band {', '.join(some)} on, of {len(profiles[0])}" if some else f"in no run of {len(first)}"
        if some and len(some) < len(first):
            words += f"; in {len(some)} of {len(first)} runs"
        slow = Claim(
            slow.study,
            slow.paper,
            words,
            of_seeds(AGREES if None not in first else DIFFERS, len(first)),
            f"{len(first)} seeds" * (len(first) > 1),
        )
    return [same, dominant, slow]


def _log_scales(files: RunFiles) -> list[float]:
    found = files.result(LearnedFrequencies)
    assert found is not None
    return [math.nan if band["log_scale"] is None else band["log_scale"] for band in found.bands]


def _window(text: Archive) -> list[Claim]:
    ratio = float(numbers.WAVELENGTH_BY_LENGTH)
    claim = Claim("window", f"the dominant wavelength grows with the window L as {ratio} L")
    found = [bands for files in text.files(text.studies.window(), "lerope")
             if (bands := files.result(Bands)) is not None]  # fmt: skip
    whole = [bands for bands in found if left_out_of_ratio(bands) is None]
    points = [(bands.train_length, bands.dominant_wavelength) for bands in whole if bands.dominant_wavelength]
    if len(found) < _FEWEST:
        return [claim]
    count = f"{len(points)} of {len(found)} runs have a band that stands out"
    if len(points) < _FEWEST:
        return [replace(claim, measured=count, verdict=of_seeds(DIFFERS, 1))]
    x, y = np.log(np.array(points, np.float64)).T
    slope, error = _slope(x, y)
    words = ", ".join(f"{wavelength / length:.2f} at {length:,}" for length, wavelength in points)
    grows_so = abs(slope - 1) <= max(2 * error, NEAR)
    is_near = all(abs(wavelength / length / ratio - 1) <= 2 * NEAR for length, wavelength in points)
    verdict = AGREES if grows_so and is_near else SAME if slope > 0.5 else DIFFERS
    return [
        Claim(
            claim.study,
            claim.paper,
            f"L to the power {slope:.2f} ± {error:.2f}; wavelength / window {words}",
            of_seeds(verdict, 1),
            f"{count}; agrees within {2 * NEAR:.0%}",
        )
    ]


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Of a least-squares line, with its standard error."""
    centred = x - x.mean()
    slope = float((centred * y).sum() / (centred**2).sum())
    residuals = y - y.mean() - slope * centred
    return slope, math.sqrt(float((residuals**2).sum()) / (len(x) - 2) / float((centred**2).sum()))


def _frozen(text: Archive) -> Claim:
    found = text.compared(text.studies.transfer())
    share = float(numbers.GAIN_CAPTURED["Fixed LeRoPE"][0]) / 100
    claim = Claim("transfer", f"frequencies of another seed, frozen, keep {share:.1%} of the gain (217M)")
    gain = next((row for row in (found.gains if found is not None else []) if row["method"] == "frozen"), None)
    if gain is None:
        return claim
    low, high = gain["perplexity_low"], gain["perplexity_high"]
    return replace(
        claim,
        measured=f"{gain['perplexity']:.0%} ({low:.0%} to {high:.0%} over documents)",
        verdict=of_seeds(number_verdict(share, low, high), 1),
    )


def _transfer(text: Archive) -> list[Claim]:
    found = text.compared(text.studies.transfer())
    made = [_frozen(text)]
    names = ("b = 2048", "b = 500k", "LeRoPE, linear", "LeRoPE, direct", "LeRoPE, per layer and head")
    for name in names:
        value = float(numbers.ABLATIONS[name][1])
        made.append(
            _difference_claim(
                "transfer",
                f"{name} against RoPE: {value:+.4f} nats (217M)",
                value,
                _against_rope(found, numbers.METHODS[name]),
            )
        )
    nope = _against_rope(found, "nope")
    claim = Claim("transfer", "without positions (NoPE): not in the paper")
    if nope is not None:
        low, high, over = interval(nope)
        claim = Claim(
            claim.study, claim.paper, f"{nope['difference']:+.4f} nats ({low:+.4f} to {high:+.4f}; {over})", ""
        )
    return [*made, claim]


def _size(text: Archive) -> list[Claim]:
    claim = Claim("size", "LeRoPE is ahead of RoPE at every size")
    found = text.compared(campaign.size())
    rows = [row for row in (found.effects if found is not None else []) if row["method"] == "lerope"]
    if not rows:
        return [claim]
    parts = [(row["rung"].partition(",")[0], row["difference"], *interval(row)[:2]) for row in rows]
    ahead = [high < 0 for *_, high in parts]
    words = "; ".join(f"{rung} {value:+.4f} ({low:+.4f} to {high:+.4f})" for rung, value, low, high in parts)
    behind = any(low > 0 for _, _, low, _ in parts)
    sizes = len({run.rung for run in campaign.size().runs})
    verdict = AGREES if all(ahead) else DIFFERS if behind else NOISE
    if len(parts) < sizes:
        verdict += f", {len(parts)} of {sizes} sizes"
    note = f"{campaign.SIZE_STEPS:,} steps at each size"
    return [Claim(claim.study, claim.paper, words, of_seeds(verdict, 1), note)]


def _code(english: Archive, code: Archive) -> list[Claim]:
    value = float(numbers.CODE["LeRoPE"][1])
    effect = _against_rope(code.compared(campaign.code()), "lerope")
    first = _difference_claim("code", f"LeRoPE against RoPE on Python: {value:+.4f} nats (217M)", value, effect)
    larger = Claim("code", "code gains more than English")
    other = _against_rope(english.compared(english.studies.effect()), "lerope")
    if effect is not None and other is not None:
        more = other["difference"] - effect["difference"]
        # Two texts are independent, so that halves of intervals add as standard errors do.
        error = math.hypot(*((high - low) / 2 for low, high, _ in (interval(effect), interval(other))))
        verdict = NOISE if abs(more) <= error else AGREES if more > 0 else DIFFERS
        words = f"code {effect['difference']:+.4f}, English {other['difference']:+.4f} nats: "
        words += f"code gains {more:+.4f} ± {error:.4f} more"
        verdict = of_seeds(verdict, min(effect["num_seeds"], other["num_seeds"]))
        larger = replace(larger, measured=words, verdict=verdict)
    return [first, larger]


def _reach(text: Archive) -> list[Claim]:
    def perplexity(method: str) -> Callable[[RunFiles], float | None]:
        return lambda files: next(
            (row["extrapolated_perplexity"] for row in _ways(files) if row["method"] == method and _usual(row)), None
        )

    scored = [found for files in text.files(text.studies.effect()) if (found := files.result(Extrapolation))]
    ends = sorted({f"{found.settings['to'] / found.settings['train_length']:g}" for found in scored})
    what = f"perplexity of tokens from 1 window to {' or '.join(ends)}"
    return [
        _paired(text, "reach", "beyond the window LeRoPE, not extended, loses more than RoPE", perplexity("none"), 1,
                what),
        _paired(text, "reach", "with YaRN LeRoPE leads beyond the window", perplexity("yarn"), -1,
                f"{what}, c = 0.1"),
    ]  # fmt: skip


def _ways(files: RunFiles) -> list[ExtrapolationRow]:
    found = files.result(Extrapolation)
    rows = found.ways if found is not None else []
    return [row for row in rows if row["selection"] == "long"] or rows


def _usual(row: ExtrapolationRow) -> bool:
    """With YaRN's own temperature, where there is one to choose."""
    return row["method"] != "yarn" or math.isclose(row["temperature"], 0.1)


def _needle(text: Archive) -> list[Claim]:
    def rate(files: RunFiles) -> float | None:
        found = needle(files, long=False)
        if found is None:
            return None
        return sum(cell["num_correct"] for cell in found.totals) / sum(cell["num_samples"] for cell in found.totals)

    cells = [cell for files in text.files(text.studies.effect(), "rope", "lerope")
             if (found := needle(files, long=False)) is not None for cell in found.totals]  # fmt: skip
    guessed = sum(cell["num_samples"] / (1 + cell["num_distractors"]) for cell in cells)
    note = (
        f"who picks one of a prompt's values finds {guessed / sum(cell['num_samples'] for cell in cells):.4g}"
        if cells
        else ""
    )
    return [_paired(text, "needle", "LeRoPE finds more values among distractors than RoPE (2.52B)", rate, 1,
                    "share of values found", note)]  # fmt: skip


def _paired(
    text: Archive,
    study: str,
    paper: str,
    value: Callable[[RunFiles], float | None],
    sign: int,
    what: str,
    note: str = "",
) -> Claim:
    """A claim that LeRoPE's value is above (sign 1) or below RoPE's, seed by seed."""
    by_method: dict[str, dict[int, float]] = {"rope": {}, "lerope": {}}
    for planned, files in text.of(text.studies.effect()):
        if planned.encoding in by_method and (found := value(files)) is not None:
            by_method[planned.encoding][planned.seed] = found
    seeds = sorted(by_method["rope"].keys() & by_method["lerope"].keys())
    if not seeds:
        return Claim(study, paper)
    pairs = [(by_method["rope"][seed], by_method["lerope"][seed]) for seed in seeds]
    right = sum(sign * (lerope - rope) > 0 for rope, lerope in pairs)
    words = "; ".join(f"RoPE {rope:.4g}, LeRoPE {lerope:.4g}" for rope, lerope in pairs)
    verdict = AGREES if right == len(pairs) else DIFFERS if right == 0 else NOISE
    notes = [f"{right} of {len(seeds)} seeds"] * (len(seeds) > 1) + [note] * bool(note)
    return Claim(study, paper, f"{what}: {words}", of_seeds(verdict, len(seeds)), "; ".join(notes))
