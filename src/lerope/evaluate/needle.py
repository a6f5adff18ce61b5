"""The needle test of a run: many keys within the train length, or one needle far beyond it."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lerope.core.checks import check_choice, check_count, check_number
from lerope.core.recipe import Precision
from lerope.core.run import Run, finished_run
from lerope.evaluate.answers import DISTRACTOR, GOLD, OTHER, Place, ask_all
from lerope.evaluate.documents import run_tokenizer
from lerope.evaluate.filler import load_filler
from lerope.evaluate.haystack import Haystacks, Prompt
from lerope.evaluate.measuring import Measurement, file_name
from lerope.evaluate.scorer import Scorer, Stretch
from lerope.evaluate.work import Floats
from lerope.model.saved import load_model
from lerope.results import Arrays, Needle, NeedleCell, NeedleLeftOut
from lerope.rotary.extension import WITH_TEMPERATURE, Method
from lerope.train.parallel import start_ranks

DISTRACTORS = (1, 3, 7, 15, 31)
DEPTHS = tuple(tenth / 10 for tenth in range(11))

_LONGEST = 32_768
_NORMAL_95 = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class NeedleRequest:
    """Which prompts to ask a run, and how; all but the device and the batch are part of the result."""

    samples: int = 100
    """Prompts for each number of distractors and depth."""
    distractors: tuple[int, ...] | None = None
    """Numbers of other needles in a prompt; 1 3 7 15 31, and with --to none (0), unless given."""
    depths: tuple[float, ...] = DEPTHS
    """Where the needle asked for lies, from 0, the start, to 1, the end."""
    to: int | None = None
    """Test lengths beyond training instead: the train length, doubled again and again up to this many tokens."""
    method: Method | None = None
    """How frequencies adapt to these lengths; yarn unless given."""
    temperature: float = 0.1
    """For yarn, slow_bands, dominant_band, logits: logits grow with (temperature ln(length / train length) + 1)^2."""
    dominant_band: int | None = None
    """The band that method dominant_band slows."""
    filler: str | None = None
    """A file, folder or dataset of prose to hide needles in; Python's documentation unless given."""
    seed: int = 0
    """A different one makes different prompts."""
    precision: Precision = "float32"
    """float32 is the reference; bf16 is faster on a GPU and rounds."""
    device: str = "auto"
    """cuda, cuda:1 or cpu; auto takes a GPU if there is one."""
    batch_tokens: int | None = None
    """Tokens that go through the model at once, on each rank; as many as are useful unless given."""

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        for field in ("to", "batch_tokens"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        for name, values in (("distractors", self.num_distractors), ("depths", self.depths)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be one or more distinct numbers; got {list(values)}.")
        if min(self.num_distractors) < 0:
            raise ValueError(f"distractors must be 0 or more; got {min(self.num_distractors)}.")
        for depth in self.depths:
            if not 0 <= check_number("depths", depth) <= 1:
                raise ValueError(f"depths must be 0 to 1; got {depth}.")
        if self.method is not None:
            check_choice("method", self.method, Method)
            if self.to is None:
                raise ValueError(f"method {self.method} acts beyond the train length; say how far with --to.")
        if (self.dominant_band is None) == (self.method == "dominant_band"):
            raise ValueError("dominant_band and method dominant_band belong together; give both or neither.")
        if check_number("temperature", self.temperature) < 0:
            raise ValueError(f"temperature must be 0 or more; got {self.temperature}.")

    @property
    def num_distractors(self) -> tuple[int, ...]:
        """The numbers of distractors, as given or usual."""
        if self.distractors is None:
            return DISTRACTORS if self.to is None else (0,)
        return self.distractors

    def lengths(self, train_length: int) -> list[int]:
        """Tokens of prompt and answer."""
        if self.to is None:
            return [train_length]
        if self.to < train_length:
            raise ValueError(f"to must be at least the train length of {train_length:,}; got {self.to:,}.")
        found = [train_length]
        while found[-1] < self.to:
            found.append(min(2 * found[-1], self.to))
        return found


@dataclass(frozen=True)
class Plan:
    """The prompts of a request to a run."""

    haystacks: Haystacks
    places: list[Place]
    left_out: list[NeedleLeftOut]

    def prompt(self, place: Place) -> Prompt:
        """The prompt at these coordinates."""
        return self.haystacks.prompt(*place)

    def fingerprint(self) -> str:
        """A hash of the first prompt of each kind: if it is equal, so are all prompts."""
        digest = hashlib.sha256()
        for place in self.places:
            if place.sample == 0:
                prompt = self.prompt(place)
                digest.update(np.concatenate([prompt.tokens, prompt.gold]).astype("<u4").tobytes())
        return digest.hexdigest()


def plan(run: Run, request: NeedleRequest) -> Plan:
    """Finds out which prompts there are; kinds whose needles do not fit are left out."""
    haystacks = Haystacks(run_tokenizer(run), load_filler(request.filler), request.seed)
    places: list[Place] = []
    left_out: list[NeedleLeftOut] = []
    lengths = request.lengths(run.recipe.row_length)
    for length in lengths:
        for number in request.num_distractors:
            if not haystacks.fits(length, number):
                left_out.append({"length": length, "num_distractors": number})
                continue
            places += [Place(length, number, depth, i) for depth in request.depths for i in range(request.samples)]
    if not places:
        fewest = min(request.num_distractors)
        raise ValueError(
            f"{fewest} distractors do not fit in {lengths[-1]:,} tokens, the rows of {run.path}; name fewer with "
            "--distractors, or train longer rows."
        )
    return Plan(haystacks, places, left_out)


def needle(path: Path, request: NeedleRequest | None = None) -> Needle:
    """Tests a finished run and writes `results/needle.json`, with `to` `needle-long.json`, and each prompt's outcome.

    The same request again returns what is there. A filler or method other than the usual is part of the file's name.
    """
    request = request or NeedleRequest()
    ranks = start_ranks(request.device)
    run = ranks.together(lambda: finished_run(path))
    planned = ranks.together(lambda: plan(run, request))
    settings = _settings(run, request, planned)
    measurement = Measurement(Needle, run.results / _name(request, planned), run.label, settings, ranks)

    def measure() -> Callable[[], tuple[Needle, Arrays]]:
        scorer = Scorer(
            ranks.together(lambda: load_model(run.path)),
            train_length=run.recipe.row_length,
            device=ranks.device,
            precision=request.precision,
            stretch=_stretch(request),
        )
        work = measurement.work(f"{run.name}, needles", batch_tokens=request.batch_tokens)
        records = ask_all(work, scorer, planned.prompt, planned.places)
        return lambda: _summarise(measurement, planned, records)

    return measurement.carry_out(measure)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate of `count` in `total`."""
    z2 = _NORMAL_95**2
    middle = (count + z2 / 2) / (total + z2)
    half = _NORMAL_95 / (total + z2) * math.sqrt(count * (total - count) / total + z2 / 4)
    return (0.0 if count == 0 else middle - half), (1.0 if count == total else middle + half)


def _settings(run: Run, request: NeedleRequest, planned: Plan) -> dict[str, Any]:
    beyond: dict[str, Any] = {}
    if (stretch := _stretch(request)) is not None:
        beyond = {"to": request.to, **vars(stretch)}
    return {
        "train_length": run.recipe.row_length,
        "samples": request.samples,
        "distractors": list(request.num_distractors),
        "depths": list(request.depths),
        **beyond,
        "filler": planned.haystacks.filler.name,
        "filler_fingerprint": planned.haystacks.filler.fingerprint,
        "num_filler_tokens": planned.haystacks.num_filler_tokens,
        "tokenizer_sha256": planned.haystacks.tokenizer.sha256,
        "seed": request.seed,
        "prompts": planned.fingerprint(),
        "precision": request.precision,
    }


def _stretch(request: NeedleRequest) -> Stretch | None:
    if request.to is None:
        return None
    method = request.method or "yarn"
    temperature = request.temperature if method in WITH_TEMPERATURE else 0.0
    return Stretch(method=method, temperature=temperature, dominant_band=request.dominant_band)


def _name(request: NeedleRequest, planned: Plan) -> str:
    usual = NeedleRequest(to=request.to)
    words = [] if request.to is None else ["long"]
    words += [str(request.to)] * (request.to is not None and request.to != _LONGEST)
    words += [str(request.method)] * (request.method not in (None, "yarn"))
    if request.filler is not None:
        words += [planned.haystacks.filler.name, planned.haystacks.filler.fingerprint[:8]]
    for field in ("samples", "distractors", "depths", "temperature", "dominant_band", "seed", "precision"):
        value = getattr(request, field)
        if value != getattr(usual, field):
            words.append(f"{field}-{' '.join(map(str, value)) if isinstance(value, tuple) else value}")
    return file_name("needle", *words)


def _summarise(measurement: Measurement[Needle], planned: Plan, records: Floats) -> tuple[Needle, Arrays]:
    """What prompts come to, and the outcome of each."""
    columns: dict[str, npt.NDArray[Any]] = {
        "length": np.array([place.length for place in planned.places], np.int32),
        "num_distractors": np.array([place.num_distractors for place in planned.places], np.int32),
        "depth": np.array([place.depth for place in planned.places], np.float64),
        "sample": np.array([place.sample for place in planned.places], np.int32),
        "outcome": records[:, 0].astype(np.uint8),
        "gold_log_probability": np.ascontiguousarray(records[:, 1]),
        "margin": np.ascontiguousarray(records[:, 2]),
        "worst_margin": np.ascontiguousarray(records[:, 3]),
    }
    groups: dict[tuple[int, int, float | None], list[int]] = {}
    for index, place in enumerate(planned.places):
        for depth in (place.depth, None):
            groups.setdefault((place.length, place.num_distractors, depth), []).append(index)
    cells = [_cell(*key, records[chosen]) for key, chosen in groups.items()]
    result = Needle(
        **measurement.common,
        cells=[cell for cell in cells if cell["depth"] is not None],
        totals=[cell for cell in cells if cell["depth"] is None],
        left_out=planned.left_out,
    )
    return result, columns


def _cell(length: int, num_distractors: int, depth: float | None, records: Floats) -> NeedleCell:
    number = len(records)
    counts = [int((records[:, 0] == outcome).sum()) for outcome in (OTHER, GOLD, DISTRACTOR)]
    low, high = wilson(counts[GOLD], number)
    margins = records[:, 2].astype(np.float64)
    return {
        "length": length,
        "num_distractors": num_distractors,
        "depth": depth,
        "num_samples": number,
        "num_correct": counts[GOLD],
        "rate": counts[GOLD] / number,
        "low": low,
        "high": high,
        "distractor_rate": counts[DISTRACTOR] / number,
        "other_rate": counts[OTHER] / number,
        "gold_log_probability": float(records[:, 1].mean(dtype=np.float64)),
        "margin": float(margins.mean()),
        "margin_error": float(margins.std(ddof=1) / math.sqrt(number)) if number > 1 else None,
        "worst_margin": float(records[:, 3].mean(dtype=np.float64)),
    }
