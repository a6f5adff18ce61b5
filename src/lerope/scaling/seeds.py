"""Is a difference between two methods more than noise? Intervals over documents, over seeds and over both.

Two methods were trained with the same seeds and scored on the same documents. For seed s and document d the data are
differences, the sum over the document's tokens of (variant's loss - baseline's loss), and the document's number of
tokens. The effect is the sum of differences over the number of tokens, averaged over seeds, in nats per token.

An interval covers what it is taken over, and no more:

* over documents: what these very runs would differ by on all documents of this kind;
* over seeds: what runs of all seeds would differ by on these very documents;
* over both: what runs of all seeds would differ by on all documents of this kind. This is the one to decide by.

Over seeds a bootstrap does not work. The percentile interval of 3 seeds is the range of the three values, which holds
the truth in 75 % of studies instead of 95 % (84 % with 5 seeds); Student's t holds it in 95 %.

Nor does it over few documents, or over many of which a few are most of the text. Of documents as unequal as those of
books, articles and letters together, a bootstrap over 7, 20, 50, 100 or 200 held the truth in 82, 86, 88, 90 and 92 %.
So the error is the jackknife's, which leaves out one document at a time and sees what a long one alone decides, and the
quantile is Student's for as many documents of equal length as would weigh the same: these held it in 93 to 99 %.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lerope.core.extras import install
from lerope.scaling.multipliers import Floats

LEVEL = 0.95
NUM_RESAMPLES = 10_000
# More documents than this are put into this many groups at random, and groups are resampled: sums of independent
# documents are independent as well, and the interval's width has an error of one part in ninety.
_MAX_GROUPS = 4096
_RESAMPLES_AT_ONCE = 256


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How far a variant's loss is from the baseline's, in nats per token; below zero the variant is better."""

    difference: float
    by_seed: list[float]
    documents: Interval
    seeds: Interval | None
    """None with one seed, which says nothing about others."""
    both: Interval | None

    @property
    def seed_deviation(self) -> float | None:
        """The standard deviation of the paired differences over seeds; None with one."""
        return float(np.std(self.by_seed, ddof=1)) if len(self.by_seed) > 1 else None

    @property
    def decisive(self) -> Interval:
        """The interval to decide by: over both, or over documents where there is one seed."""
        return self.both or self.documents


@dataclass(frozen=True, kw_only=True)
class GainCaptured:
    """(baseline - method) / (baseline - reference), with intervals over documents: 1 is all of the reference's gain."""

    loss: float
    loss_interval: Interval
    perplexity: float
    perplexity_interval: Interval


def effect(differences: Floats, tokens: Floats) -> Effect:
    """The effect with every interval that the data allow.

    Args:
        differences: (seeds, documents), sums over each document's tokens of variant's minus baseline's loss.
        tokens: (documents,), the number of tokens of each.
    """
    _check(differences, tokens)
    by_seed = differences.sum(1) / tokens.sum()
    several = len(differences) > 1
    return Effect(
        difference=float(by_seed.mean()),
        by_seed=by_seed.tolist(),
        documents=over_documents(differences, tokens),
        seeds=over_seeds(differences, tokens) if several else None,
        both=over_both(differences, tokens) if several else None,
    )


def over_documents(differences: Floats, tokens: Floats) -> Interval:
    """The interval over documents, given these seeds: Student's t of the ratio of sums, paired by document."""
    error = math.sqrt(float((_left_out(differences, tokens).mean(0) ** 2).sum()))
    half = _t_quantile(_degrees(tokens)) * error
    middle = float(differences.mean(0).sum() / tokens.sum())
    return Interval(middle - half, middle + half)


def over_seeds(differences: Floats, tokens: Floats) -> Interval:
    """The interval over seeds, given these documents: Student's t of the seeds' paired differences."""
    by_seed = differences.sum(1) / tokens.sum()
    num_seeds = len(by_seed)
    half = _t_quantile(num_seeds - 1) * by_seed.std(ddof=1) / math.sqrt(num_seeds)
    return Interval(float(by_seed.mean() - half), float(by_seed.mean() + half))


def over_both(differences: Floats, tokens: Floats) -> Interval:
    """The interval over seeds and documents, as crossed random effects.

    The variance is that over seeds plus that over documents, less what both contain: the noise of single pairs of seed
    and document. Its quantile is the mean of both Student quantiles, weighted by the two variances (Cochran and Cox),
    because Satterthwaite's degrees of freedom, estimated from 3 seeds, are too many when the seeds happen to agree: in
    simulations its 95 % intervals held the truth in as few as 87, 92 and 94 % of studies with 2, 3 and 5 seeds. And
    the interval is never narrower than seeds alone or documents alone make it, however well the seeds agree.

    Simulated with any shares of the three variances and 2, 3 or 5 seeds, it never held the truth in fewer than 95 % of
    studies with hundreds of documents of a kind, and in fewer than 93 % with any. It held it in 96 % where seeds vary
    as the paper's do over thousands of documents, and in up to 99 % where seeds differ by no more than the noise of
    documents: there it is too wide.
    """
    num_seeds = len(differences)
    by_seed = differences.sum(1) / tokens.sum()
    changes = _left_out(differences, tokens)
    document_means = changes.mean(0)
    seeds = by_seed.var(ddof=1) / num_seeds
    documents = (document_means**2).sum()
    pairs = ((changes - document_means) ** 2).sum() / (num_seeds * (num_seeds - 1))
    beyond_pairs = max(documents - pairs, 0.0)
    for_seeds, for_documents = _t_quantile(num_seeds - 1), _t_quantile(_degrees(tokens))
    half = max(for_seeds * math.sqrt(seeds), for_documents * math.sqrt(documents))
    if seeds > 0:
        half = max(half, (seeds * for_seeds + beyond_pairs * for_documents) / math.sqrt(seeds + beyond_pairs))
    return Interval(float(by_seed.mean() - half), float(by_seed.mean() + half))


def _left_out(differences: Floats, tokens: Floats) -> Floats:
    """What leaving out each document changes, of each seed: (seeds, documents); squares add up to the variance."""
    shares = tokens / tokens.sum()
    by_seed = differences.sum(1) / tokens.sum()
    found: Floats = (differences / tokens.sum() - by_seed[:, None] * shares) / (1 - shares)
    return found * math.sqrt((len(tokens) - 1) / len(tokens))


def _degrees(tokens: Floats) -> float:
    """Degrees of freedom over documents: as many of equal length as weigh the same, less one, but at least one."""
    return max(float(tokens.sum() ** 2 / (tokens**2).sum()) - 1, 1.0)


def gain_captured(
    baseline: Floats,
    method: Floats,
    reference: Floats,
    tokens: Floats,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> GainCaptured:
    """The share of a reference's gain that a method has, in loss and in perplexity.

    Args:
        baseline, method, reference: (documents,), sums of token losses, averaged over the same seeds.
        tokens: (documents,), the number of tokens of each.
        num_resamples, seed: of the bootstrap over documents.
    """
    columns = np.stack([baseline, method, reference, tokens], axis=1)
    totals = np.concatenate([columns.sum(0)[None], resampled(columns, num_resamples, seed)])
    losses = totals[:, :3] / totals[:, 3:]
    in_loss, in_perplexity = _share(losses), _share(np.exp(losses))
    return GainCaptured(
        loss=float(in_loss[0]),
        loss_interval=_percentiles(in_loss[1:]),
        perplexity=float(in_perplexity[0]),
        perplexity_interval=_percentiles(in_perplexity[1:]),
    )


def gap_by_position(differences: Floats, tokens: Floats) -> tuple[Floats, Floats]:
    """The mean difference in each bin of positions and its standard error, NaN where there is too little data.

    Tokens of a document are not independent, so errors are clustered by document.

    Args:
        differences: (documents, bins), sums over tokens, averaged over seeds.
        tokens: (documents, bins), numbers of tokens.
    """
    totals = tokens.sum(0)
    num_documents = (tokens > 0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Floats = differences.sum(0) / totals
        squares = ((differences - means * tokens) ** 2).sum(0) * num_documents / (num_documents - 1)
        errors: Floats = np.sqrt(squares) / totals
    return means, errors


def resampled(columns: Floats, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Floats:
    """Sums of columns over documents drawn with replacement: (documents, columns) to (resamples, columns)."""
    generator = np.random.default_rng(seed)
    if len(columns) > _MAX_GROUPS:
        columns = _grouped(columns, generator.permutation(len(columns)) % _MAX_GROUPS)
    return np.concatenate([counts @ columns for counts in _counts(len(columns), num_resamples, generator)])


def _grouped(columns: Floats, groups: Any) -> Floats:
    sums = [np.bincount(groups, weights=column, minlength=_MAX_GROUPS) for column in columns.T]
    return np.stack(sums, axis=1)


def _counts(size: int, num_resamples: int, generator: np.random.Generator) -> Iterator[Floats]:
    """How often each of `size` things is drawn, some resamples at a time, which bounds memory."""
    for start in range(0, num_resamples, _RESAMPLES_AT_ONCE):
        rows = min(_RESAMPLES_AT_ONCE, num_resamples - start)
        drawn = generator.integers(0, size, (rows, size)) + size * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)


def _share(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Floats = (values[:, 0] - values[:, 1]) / (values[:, 0] - values[:, 2])
    return share


def _percentiles(values: Floats) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def _check(differences: Floats, tokens: Floats) -> None:
    if differences.ndim != 2 or not len(differences) or differences.shape[1:] != tokens.shape:
        raise ValueError(
            f"differences must be (seeds, documents) for {tokens.size} documents; got shape {differences.shape}."
        )
    if len(tokens) < 2:
        raise ValueError(f"tokens must cover two documents or more, or nothing can be said; got {len(tokens)}.")
    if not np.isfinite(differences).all() or not (np.isfinite(tokens) & (tokens > 0)).all():
        raise ValueError("differences must be finite, and every document must have tokens.")


def _t_quantile(degrees: float) -> float:
    try:
        from scipy import special
    except ImportError:
        raise ValueError(f"intervals need the package scipy; install it with `{install('scaling')}`.") from None
    return float(special.stdtrit(degrees, (1 + LEVEL) / 2))
