"""Result files: one typed JSON object per evaluation or study, with the run and the machine it came from. No torch.

Lists in a result hold flat records, so that `pandas.DataFrame(result.by_position)` is a table. What is too long for
JSON, such as the loss of every token, lies beside it in a safetensors file of the same name.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

from lerope.data.files import write_whole

VERSION = 1
STANDS_OUT = 2.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every result has."""

    kind: ClassVar[str]

    settings: dict[str, Any]
    """What was asked for; results are comparable where these are equal."""
    provenance: dict[str, Any]
    """See `lerope.runs.provenance`."""

    def as_dict(self) -> dict[str, Any]:
        """What the file says."""
        return {"kind": self.kind, "version": VERSION, **asdict(self)}

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.as_dict(), indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file back; whatever is wrong with it is one ValueError."""
        again = "make it again with the command that wrote it"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path} does not exist.") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not whole JSON ({error}); {again}.") from None
        found = (content.pop("kind", None), content.pop("version", None)) if isinstance(content, dict) else (None, None)
        if found != (cls.kind, VERSION):
            raise ValueError(f"{path}: kind and version must be {cls.kind}, {VERSION}; got {found[0]}, {found[1]}.")
        for name in sorted({field.name for field in fields(cls)} ^ set(content)):
            raise ValueError(f"{path}: field {name} is {'unknown' if name in content else 'missing'}; {again}.")
        return cls(**content)


def load_result(path: Path) -> Result:
    """A result file of any kind."""
    kinds = {kind.kind: kind for kind in _subclasses(Result) if hasattr(kind, "kind")}
    try:
        name = json.loads(path.read_text(encoding="utf-8"))["kind"]
        return kinds[name].load(path)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result file of this version of lerope ({error}).") from None


def _subclasses(kind: type[Result]) -> list[type[Result]]:
    return [found for inner in kind.__subclasses__() for found in (inner, *_subclasses(inner))]


@dataclass(frozen=True, kw_only=True)
class RunResult(Result):
    """A result about one run, in its folder `results`."""

    run: dict[str, Any]
    """`Run.label`: name, creation time, recipe, fingerprints of data and initial frequencies."""


@dataclass(frozen=True, kw_only=True)
class Training(RunResult):
    """`lerope train`: how a run ended, in results/training.json."""

    kind: ClassVar[str] = "training"

    num_steps: int
    num_tokens: int
    loss: float
    """Of the last step's batch."""
    validation_loss: float | None
    seconds: float
    """Steps alone, over all starts of the run."""
    wait_share: float
    """How much of that the model waited for data."""
    peak_memory_bytes: int | None
    """On a GPU."""


class PositionBin(TypedDict):
    """Tokens whose position in their window is in [start, stop)."""

    start: int
    stop: int
    num_tokens: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(RunResult):
    """`lerope eval`: the loss of a run on documents.

    Beside it in .safetensors: `losses`, one float32 a token in order of documents; `ends`, where each document's losses
    end in it.
    """

    kind: ClassVar[str] = "evaluation"

    num_documents: int
    num_tokens: int
    """Targets: every token but BOS."""
    loss: float
    """Nats per token: the sum over tokens by their number."""
    perplexity: float
    document_mean_loss: float
    """Nats per token, every document counted alike."""
    bits_per_byte: float | None
    """Comparable across tokenizers; None where only some tokens of the text were scored."""
    by_position: list[PositionBin]


class ExtrapolationRow(TypedDict):
    """One way of going beyond the train length, on one selection of documents."""

    selection: str
    """`all`: every document, cut at `to` tokens; `long`: only those longer than that."""
    method: str
    temperature: float
    label: str
    num_documents: int
    num_tokens: int
    num_extrapolated: int
    """Tokens at positions from the train length on."""
    in_distribution_loss: float
    in_distribution_perplexity: float
    extrapolated_loss: float
    extrapolated_perplexity: float
    full_loss: float
    full_perplexity: float


class ExtrapolationBin(PositionBin):
    """The same by position."""

    selection: str
    method: str
    temperature: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Extrapolation(RunResult):
    """`lerope extrapolate`: loss within and beyond the train length.

    Beside it in .safetensors: `SELECTION.WAY.sums` and `.counts`, the sum of losses and their number at every position,
    for the WAY-th of the ways.
    """

    kind: ClassVar[str] = "extrapolation"

    ways: list[ExtrapolationRow]
    by_position: list[ExtrapolationBin]


class Trial(TypedDict):
    """One run of a sweep."""

    encoding: str
    index: int
    learning_rate: float
    loss: float | None
    """Final validation loss; None if the run diverged."""
    run: str
    """Its folder, within the sweep's."""


class LearningRateOptimum(TypedDict):
    """The best learning rate of an encoding, between worse ones."""

    encoding: str
    index: int
    learning_rate: float
    loss: float
    loss_at_larger_rate: float | None
    """At index - 1; None if that run diverged."""
    loss_at_smaller_rate: float | None
    num_runs: int


class LearningRatePrediction(TypedDict):
    """The index to expect at another rung."""

    encoding: str
    rung: str
    index: int
    learning_rate: float
    slope: float
    """s in learning rate ~ N^s, as fitted."""


@dataclass(frozen=True, kw_only=True)
class Sweep(Result):
    """`lerope sweep`: the search for a rung's learning rate, of each encoding on its own."""

    kind: ClassVar[str] = "sweep"

    trials: list[Trial]
    """In the order they were made."""
    optima: list[LearningRateOptimum]
    """Of encodings whose search has ended."""
    predictions: list[LearningRatePrediction]


class RunLoss(TypedDict):
    """The loss of one run among those that are compared."""

    rung: str
    method: str
    seed: int
    run: str
    loss: float


class MethodEffect(TypedDict):
    """How far a method's loss is from the baseline's over the seeds that both have, in nats per token.

    Below zero the method is better. Each interval is of 95 %; those over seeds are None with one seed.
    """

    rung: str
    method: str
    num_seeds: int
    num_documents: int
    num_tokens: int
    loss: float
    baseline_loss: float
    difference: float
    documents_low: float
    documents_high: float
    seeds_low: float | None
    seeds_high: float | None
    both_low: float | None
    both_high: float | None
    beyond_noise: bool | None
    """None where one seed alone differs by more than documents explain."""
    verdict: str


class CapturedGain(TypedDict):
    """The share of the reference's gain over the baseline that a method has, with 95 % intervals over documents."""

    rung: str
    method: str
    num_seeds: int
    loss: float
    loss_low: float
    loss_high: float
    perplexity: float
    perplexity_low: float
    perplexity_high: float


class PositionGap(TypedDict):
    """A method's loss less the baseline's over tokens whose position in their window is in [start, stop)."""

    rung: str
    method: str
    start: int
    stop: int
    num_tokens: int
    difference: float
    standard_error: float | None
    """Clustered by document, given these seeds; None with one document."""


class Multiplier(TypedDict):
    """How much more compute the baseline needs for a method's loss."""

    rung: str | None
    compute: float
    method: str
    estimator: str
    multiplier: float | None
    """None for a loss that the fitted baseline never reaches."""


class LadderLoss(TypedDict):
    """A method's loss at one compute."""

    rung: str | None
    compute: float
    method: str
    loss: float


class FitParameter(TypedDict):
    """One number of a fit to the baseline's losses."""

    estimator: str
    parameter: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """`lerope compare`: methods against a baseline, paired by seed and document, one comparison a rung."""

    kind: ClassVar[str] = "comparison"

    baseline: str
    reference: str | None
    """The method whose gain counts as all of it; None with fewer than three methods."""
    losses: list[RunLoss]
    effects: list[MethodEffect]
    gains: list[CapturedGain]
    by_position: list[PositionGap]
    multipliers: list[Multiplier]
    """Of methods that are at every one of two rungs or more."""
    notes: list[str]
    """What was left out, and why."""


@dataclass(frozen=True, kw_only=True)
class Multipliers(Result):
    """`lerope multipliers`: what methods save in compute, by every estimator that the number of rungs allows."""

    kind: ClassVar[str] = "multipliers"

    baseline: str
    losses: list[LadderLoss]
    multipliers: list[Multiplier]
    fits: list[FitParameter]
    notes: list[str]
    """What was left out, and why."""


class NeedleCell(TypedDict):
    """Prompts of one kind: a length, a number of distractors and a depth of the gold needle, or all depths."""

    length: int
    """Tokens of prompt and answer."""
    num_distractors: int
    depth: float | None
    """0 is the prompt's start, 1 its end; None for all depths together."""
    num_samples: int
    num_correct: int
    rate: float
    """Exact match: the greedy answer is the gold value."""
    low: float
    high: float
    """Wilson's 95 % interval of the rate."""
    distractor_rate: float
    """The greedy answer is a distractor's value."""
    other_rate: float
    """The greedy answer is anything else; the three rates add up to 1."""
    gold_log_probability: float
    """Nats per token of the gold value, given the prompt and its tokens before."""
    margin: float
    """Log-odds of gold against another value at the first token where they part, mean over values; 0 is chance."""
    margin_error: float | None
    """Standard error of the margin; None for one prompt."""
    worst_margin: float
    """The same against the value that comes out best; chance lies below 0 and falls with the number of values."""


class NeedleLeftOut(TypedDict):
    """What was asked for and does not fit."""

    length: int
    num_distractors: int


@dataclass(frozen=True, kw_only=True)
class Needle(RunResult):
    """`lerope needle`: values that a run finds among distractors, or far away.

    Beside it in .safetensors, one entry a prompt: `length`, `num_distractors`, `depth`, `sample`, `outcome` (0 other,
    1 gold, 2 a distractor), `gold_log_probability`, `margin`, `worst_margin`. Where settings are equal the prompts are
    the same.
    """

    kind: ClassVar[str] = "needle"

    cells: list[NeedleCell]
    totals: list[NeedleCell]
    """The same over all depths."""
    left_out: list[NeedleLeftOut]


class FrequencySet(TypedDict):
    """Frequencies that go together: all of a model's, or those of a layer or head that has its own."""

    layer: int | None
    head: int | None
    suppressed_from: int | None
    """The first band from which on all are suppressed, by the two limits in the settings; None if there is none."""
    suppressed_rope_wavelength: float | None
    """RoPE's wavelength at that band, in tokens."""
    num_aliased: int
    num_dead: int


class BandFrequency(TypedDict):
    """How one band turns."""

    layer: int | None
    head: int | None
    band: int
    frequency: float
    """Radians per token."""
    wavelength: float | None
    """Tokens per full turn; None for a band that does not turn."""
    rope_wavelength: float | None
    """RoPE's at the same base; None without a base."""
    log_scale: float | None
    """ln(frequency / RoPE's); None where that is no number."""
    turns: float
    """Full turns over the train length."""
    aliased: bool
    """It turns by more than pi per token and looks like a slower one."""
    dead: bool
    """It turns by less than 1 % of a turn over the train length."""


@dataclass(frozen=True, kw_only=True)
class LearnedFrequencies(RunResult):
    """`lerope analyze`: a run's frequencies as wavelengths.

    Beside it in .safetensors: `steps` and `frequencies`, (records, ..., bands), through training.
    """

    kind: ClassVar[str] = "frequencies"

    train_length: int
    base: float | None
    sharing: str
    sets: list[FrequencySet]
    bands: list[BandFrequency]


class BandContribution(TypedDict):
    """What one band adds to the logits, c_m(d), as the mean over layers."""

    band: int
    wavelength: float | None
    rms: float
    """Root mean square over distances from 1 on of c_m(d) less its mean: how much it says about position."""
    mean: float
    """Mean over distances from 1 on."""
    layer_spread: float
    """Root mean square over distances of the standard deviation between layers."""


class LayerBand(TypedDict):
    """One band in one layer, as the mean over heads."""

    layer: int
    band: int
    query_norm: float
    """Mean length of the band's part of a query."""
    key_norm: float
    bound: float
    """Mean over pairs of |q| |k| / sqrt(head_dim), what the band can add to a logit at most."""
    rms: float
    """As in BandContribution, of this layer's c_m(d)."""


@dataclass(frozen=True, kw_only=True)
class Bands(RunResult):
    """`lerope analyze`: what bands add to the logits, and how large their queries and keys are.

    Beside it in .safetensors: `contributions`, c_m(d) as (layers, bands, distances); `mean` and `std`, the same over
    layers; `query_norms`, `key_norms` and `bounds`, (layers, heads, bands).
    """

    kind: ClassVar[str] = "bands"

    train_length: int
    dominant_band: int | None
    """The band with the largest rms; None where no band turns."""
    dominant_wavelength: float | None
    dominance: float | None
    """Its rms by the next largest."""
    bands: list[BandContribution]
    layers: list[LayerBand]

    @property
    def stands_out(self) -> bool:
        """Whether the dominant band is one that deserves the name: its rms is at least twice the next largest."""
        return self.dominant_wavelength is not None and (self.dominance or 0.0) >= STANDS_OUT


class BandRemoval(TypedDict):
    """The loss without one band less the loss of the whole model, in nats per token."""

    meaning: str
    """`contribution`: its term of the logits is gone; `frequency`: it does not turn."""
    band: int
    wavelength: float | None
    increase: float
    standard_error: float | None
    """Over documents, paired; None with one document."""


@dataclass(frozen=True, kw_only=True)
class Ablation(RunResult):
    """`lerope analyze`: leave-one-out bands.

    Beside it in .safetensors: sums of losses by document, `whole` and `without` (meanings, bands, documents), and
    `counts`, the tokens of each document.
    """

    kind: ClassVar[str] = "ablation"

    num_documents: int
    num_tokens: int
    loss: float
    """Of the whole model, nats per token."""
    removals: list[BandRemoval]


class PhasorBand(TypedDict):
    """Where the gradient of one frequency comes from; see `lerope.analyze.phasors` for C, P and G."""

    layer: int | None
    """None where several layers share the frequency."""
    head: int | None
    band: int
    frequency: float
    wavelength: float | None
    objective: float
    """P at this frequency."""
    gradient: float
    """dL/dtheta from the phasors, P' at this frequency."""
    autograd_gradient: float
    covariance_gradient: float
    log_scale_gradient: float
    """dL/dalpha = theta dL/dtheta."""
    direction: float
    """The angle of the sum of all G, in radians."""
    coherence: float
    """|sum of G| / sum of |G|: 0 if distances cancel, 1 if all pull the same way."""
    objective_scale: float
    """Mean over distances of |C| by its largest."""
    gradient_scale: float
    """Mean over distances of d |C| by its largest."""


@dataclass(frozen=True, kw_only=True)
class Phasors(RunResult):
    """`lerope analyze`: the gradient of the frequencies by distance.

    Beside it in .safetensors, where sets of frequencies are (layers or 1, heads or 1): `phasors_real` and
    `phasors_imag`, C as (sets, bands, distances) with `distances`; `objective` and `derivative`, P and P' as (sets,
    bands, points) at the frequencies `grid`; `objective_histogram` and `gradient_histogram`, how many distances have
    |C| and d |C| between `edges` of their band's largest.
    """

    kind: ClassVar[str] = "phasors"

    layers: list[int]
    loss: float
    relative_error: float
    """Of the phasors' gradient against autograd's: the worst layer's, by the norm over its bands."""
    covariance_relative_error: float
    bands: list[PhasorBand]


class EngineTable(TypedDict):
    """An engine's frequencies, rebuilt from exported files by its own formula, against ours."""

    engine: str
    error: float | None
    """The largest difference relative to our frequency; None if the engine would not find them."""
    attention_factor: float | None
    """What the engine would multiply cosines and sines by."""
    agrees: bool
    note: str


class EngineRun(TypedDict):
    """An engine that was really run on a prompt, against ours."""

    engine: str
    version: str | None
    logit_error: float | None
    """The largest difference of logits relative to the largest logit; None for an engine that gives none."""
    num_same_tokens: int | None
    """How many tokens of its greedy continuation are ours, from the first on."""
    num_tokens: int
    agrees: bool | None
    """None if it was not run."""
    note: str


@dataclass(frozen=True, kw_only=True)
class Verification(Result):
    """`lerope verify`: whether engines compute what the exported model is."""

    kind: ClassVar[str] = "verification"

    reference: str
    """What engines are compared with."""
    tables: list[EngineTable]
    runs: list[EngineRun]


class Timing(TypedDict):
    """How long something took: median and quartiles over rounds, in milliseconds; None where it could not run."""

    median_ms: float | None
    q1_ms: float | None
    q3_ms: float | None
    note: str
    """Why it could not run."""


class Ceiling(Timing):
    """What the device can do at most."""

    name: str
    """`matmul` or `copy`."""
    what: str
    work: float
    """FLOPs, or bytes read and written."""
    rate: float | None
    unit: str
    """Of the rate: FLOP/s or B/s."""


class RotaryTime(Timing):
    """One way to rotate, forward or backward alone."""

    tensors: str
    """`x`, one tensor, or `q and k`."""
    num_tokens: int
    num_heads: int
    """Of each tensor."""
    head_dim: int
    name: str
    part: str
    """`forward` or `backward`."""
    learned: bool
    """Whether the frequencies get a gradient."""
    num_bytes: int
    """What must move at least: every input read once, every output written once."""
    share_of_copy: float | None
    """These bytes by the time, as a share of the copy's rate."""


class LayoutTime(Timing):
    """Our rotation of queries and keys with learned frequencies in one of its layouts."""

    layout: str
    norm: bool
    """Whether a norm of queries and keys is part of it."""
    num_tokens: int
    q_heads: int
    k_heads: int
    head_dim: int
    dtype: str
    part: str
    num_bytes: int
    share_of_copy: float | None


class AttentionTime(Timing):
    """One way to attend in one layer."""

    rung: str
    num_rows: int
    row_length: int
    num_heads: int
    num_documents: int
    """In all rows, counted in each row anew."""
    name: str
    masked: bool
    """Whether documents do not see each other."""
    chosen: bool
    """Whether `auto` takes it here."""
    part: str
    """`forward`, or `forward + backward`."""
    flops: float
    """Of whole rows, causal, which is half of the square, whatever documents there are."""
    flops_per_second: float | None
    over_cudnn: float | None
    """Its time by that of cuDNN's causal attention, which ignores documents."""


class HeadTime(Timing):
    """Head and cross-entropy, forward and backward."""

    rung: str
    num_tokens: int
    width: int
    vocab_size: int
    name: str
    flops: float
    share_of_matmul: float | None
    peak_bytes: int | None
    """Device memory beyond inputs and weights, gradients included; None on a CPU."""


class StepTime(Timing):
    """Whole optimizer steps."""

    rung: str
    name: str
    batch_tokens: int
    row_length: int
    micro_batch_rows: int
    tokens_per_second: float | None
    share_of_matmul: float | None
    peak_bytes: int | None
    """Device memory of this model alone, measured before the others take turns with it; None on a CPU."""
    loss: float | None
    """Of the last step, nats per token: that it trains."""
    kernels: str
    """What computed our steps; empty for others' models."""


class StepRatio(TypedDict):
    """How two trainers compare, over pairs of steps of one round."""

    rung: str
    what: str
    median: float
    q1: float
    q3: float
    num_pairs: int
    memory: float | None
    """Peak memory of the first by that of the second."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(Result):
    """`lerope bench`: how fast this machine trains, every figure beside the ceilings of the same run."""

    kind: ClassVar[str] = "benchmark"

    stopped: bool
    """Whether it was stopped before its end; what is here was measured by then."""
    ceilings: list[Ceiling]
    rotary: list[RotaryTime]
    layouts: list[LayoutTime]
    attention: list[AttentionTime]
    head: list[HeadTime]
    steps: list[StepTime]
    step_ratios: list[StepRatio]


class Finding(TypedDict):
    """What `lerope doctor` found out about one thing."""

    name: str
    status: str
    """`ok`, `missing` (what need not be there) or `broken` (there, and it fails or is wrong)."""
    note: str
    fix: str
    """What to do about it, where there is something."""
    error: float | None
    """Of the try that is worst by its tolerance, relative; None without one, and where it is no number."""
    tolerance: float | None
    """What rounding explains."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Result):
    """`lerope doctor`: whether everything that could run on this machine runs, and right."""

    kind: ClassVar[str] = "diagnosis"

    findings: list[Finding]
