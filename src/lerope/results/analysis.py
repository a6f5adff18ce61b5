"""What a run learned, band by band."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from lerope.results.base import Count, RunResult

STANDS_OUT = 2.0


class FrequencySet(TypedDict):
    """Frequencies that go together: all of a model's, or those of a layer or head that has its own."""

    layer: int | None
    head: int | None
    suppressed_from: int | None
    """The first band from which all are suppressed, by the two limits in the settings; None if there is none."""
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
    """ln(frequency / RoPE's); None where that is not a number."""
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
    """Mean over pairs of `|q| |k| / sqrt(head_dim)`, the most the band can add to a logit."""
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
    """Its rms relative to the next largest."""
    bands: list[BandContribution]
    layers: list[LayerBand]

    @property
    def stands_out(self) -> bool:
        """Whether the dominant band deserves the name: its rms is at least twice the next largest."""
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


class SlowestRemoval(TypedDict):
    """The loss without the slowest bands less the loss of the whole model, in nats per token."""

    meaning: str
    """As in BandRemoval."""
    num_bands: int
    """How many of the slowest."""
    band: int
    """The fastest of them."""
    wavelength: float | None
    """Of that one."""
    increase: float
    standard_error: float | None


@dataclass(frozen=True, kw_only=True)
class SlowestRemovals(RunResult):
    """`lerope analyze`: what is left without the slowest bands, for every number of them.

    Beside it in .safetensors as for Ablation: `whole`, `without` (meanings, numbers, documents) and `counts`.
    """

    kind: ClassVar[str] = "slowest"

    num_documents: int
    num_tokens: int
    loss: float
    """Of the whole model, nats per token."""
    removals: list[SlowestRemoval]

    def rows(self, meaning: str) -> list[SlowestRemoval]:
        """Those of one meaning, fewest bands first."""
        return sorted((row for row in self.removals if row["meaning"] == meaning), key=lambda row: row["num_bands"])

    def most(self, meaning: str, nats: float) -> int:
        """How many of the slowest bands cost no more than this, together and each fewer."""
        rows = self.rows(meaning)
        return next((row["num_bands"] - 1 for row in rows if row["increase"] > nats), len(rows))


class BandSetBack(TypedDict):
    """How the loss changes if one learned frequency is RoPE's again, in nats per token, with standard errors.

    Errors are over documents, paired; None with one document.
    """

    band: int | None
    """None for all bands at once."""
    wavelength: float | None
    """As learned."""
    rope_wavelength: float | None
    within: float
    """At positions within the train length."""
    within_error: float | None
    beyond: float
    beyond_error: float | None


@dataclass(frozen=True, kw_only=True)
class Beyond(RunResult):
    """`lerope analyze`: documents longer than the train length with single frequencies set back to RoPE's.

    Beside it in .safetensors: `sums` of losses by position, (as learned, all set back, then each of the other rows of
    `bands`; bins between `edges`), and `counts`, the tokens in each bin.
    """

    kind: ClassVar[str] = "beyond"
    settings_read: ClassVar[dict[str, Any]] = {"train_length": Count, "to": Count}

    num_documents: int
    num_tokens: int
    """Beyond the train length."""
    within_loss: float
    """As learned, nats per token."""
    beyond_loss: float
    bands: list[BandSetBack]
    """All at once first."""


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
    """`|sum of G| / sum of |G|`: 0 if distances cancel, 1 if all pull the same way."""
    objective_scale: float
    """Mean over distances of `|C|` relative to its largest."""
    gradient_scale: float
    """Mean over distances of `d |C|` relative to its largest."""


@dataclass(frozen=True, kw_only=True)
class Phasors(RunResult):
    """`lerope analyze`: the gradient of the frequencies by distance.

    Beside it in .safetensors, where sets of frequencies are (layers or 1, heads or 1): `phasors_real` and
    `phasors_imag`, C as (sets, bands, distances) with `distances`; `objective` and `derivative`, P and P' as (sets,
    bands, points) at the frequencies `grid`; `objective_histogram` and `gradient_histogram`, how many distances have
    `|C|` and `d |C|` between `edges` of their band's largest.
    """

    kind: ClassVar[str] = "phasors"

    layers: list[int]
    loss: float
    relative_error: float
    """Of the phasors' gradient against autograd's: the worst layer's, by the norm over its bands."""
    covariance_relative_error: float
    bands: list[PhasorBand]
