"""The methods of one rung against a baseline, paired by seed and document."""

from dataclasses import dataclass

import numpy as np

from lerope.core.encoding import EncodingSpec
from lerope.results import CapturedGain, MethodEffect, PositionGap, RunLoss
from lerope.results.token_losses import position_edges
from lerope.scaling.evaluated import Evaluated
from lerope.scaling.multipliers import Floats
from lerope.scaling.seeds import Effect, effect, gain_captured, gap_by_position
from lerope.scaling.token_losses import read_counts, read_sums


def verdict(method: str, baseline: str, measured: Effect, num_seeds: int, num_documents: int) -> str:
    """What a difference and its interval say, in a sentence."""
    interval = measured.decisive
    side = "below" if measured.difference < 0 else "above"
    sign = -1 if measured.difference < 0 else 1
    low, high = sorted((sign * interval.low, sign * interval.high))
    over = f"{num_documents:,} documents" if num_seeds == 1 else f"{num_seeds} seeds and {num_documents:,} documents"
    claim = f"{method} is {abs(measured.difference):.4f} nats {side} {baseline}"
    if not interval.excludes_zero:
        other = "above" if side == "below" else "below"
        claim += f", which cannot be told from noise: the 95 % interval over {over} goes from {-low:.4f} {other} "
        claim += f"to {high:.4f} {side}"
        return f"{claim}, and one seed says nothing about others." if num_seeds == 1 else f"{claim}."
    claim += f" (95 % interval {low:.4f} to {high:.4f} over {over}"
    if num_seeds == 1:
        return f"{claim} alone): more than these documents explain, but one seed says nothing about others."
    return f"{claim}): more than noise explains."


def _label(method: str) -> str:
    return EncodingSpec.parse(method).label


def _beyond_noise(measured: Effect) -> bool | None:
    if not measured.decisive.excludes_zero:
        return False
    return None if measured.both is None else True


@dataclass(frozen=True)
class _Pairs:
    """A method and the baseline over the seeds that both have."""

    seeds: list[int]
    effect: Effect
    loss: float
    baseline_loss: float
    by_position: tuple[Floats, Floats]


class Rung:
    """The comparison of one rung's methods."""

    def __init__(self, name: str, runs: dict[str, dict[int, Evaluated]], baseline: str, num_resamples: int) -> None:
        self.name, self.baseline, self.notes = name, baseline, list[str]()
        self._runs, self._num_resamples = runs, num_resamples
        for method in runs:
            self._check_seeds(method)
        items = [item for seeds in runs.values() for item in seeds.values()]
        self.compute = items[0].recipe.compute
        tokens = read_counts(items)
        length = int(items[0].evaluation.settings["length"])
        self._some = tokens.sum(1) > 0
        self._edges, self._binned = position_edges(length), tokens[self._some]
        self.tokens = self._binned.sum(1)
        self._sums: dict[str, dict[int, Floats]] = {method: {} for method in runs}
        gaps = self._read(tokens)
        self.pairs = {method: self._pair(method, gap) for method, gap in gaps.items()}

    def _check_seeds(self, method: str) -> None:
        """Raises if a method has no pair with the baseline, and notes runs that have none."""
        seeds = self._paired_seeds(method)
        if not seeds:
            raise ValueError(
                f"{method} and {self.baseline} have no seed in common at {self.name}; train both with the same seeds."
            )
        for name, other in ((method, self.baseline), (self.baseline, method)):
            alone = [str(seed) for seed in sorted(self._runs[name]) if seed not in seeds]
            if alone:
                text = f"seed {alone[0]}" if len(alone) == 1 else f"seeds {', '.join(alone)}"
                self.notes.append(f"{self.name}: {text} of {name} left out, because {other} has no such run.")

    def _read(self, counts: Floats) -> dict[str, Floats]:
        """Reads every file of losses once: sums of documents are kept, sums of bins only as mean gaps."""
        gaps = {method: np.zeros_like(self._binned) for method in self._runs if method != self.baseline}
        for seed in sorted({seed for seeds in self._runs.values() for seed in seeds}):
            at_baseline: Floats | None = None
            for method in (self.baseline, *gaps):
                if seed not in self._runs[method]:
                    continue
                sums = read_sums(self._runs[method][seed], counts)[self._some]
                self._sums[method][seed] = sums.sum(1)
                if method == self.baseline:
                    at_baseline = sums
                elif at_baseline is not None:
                    gaps[method] += (sums - at_baseline) / len(self._paired_seeds(method))
        return gaps

    def _paired_seeds(self, *methods: str) -> list[int]:
        return sorted(set(self._runs[self.baseline]).intersection(*(self._runs[method] for method in methods)))

    def _pair(self, method: str, gap: Floats) -> _Pairs:
        seeds = self._paired_seeds(method)
        one, other = self._stacked(method, seeds), self._stacked(self.baseline, seeds)
        total = float(self.tokens.sum())
        return _Pairs(
            seeds=seeds,
            effect=effect(one - other, self.tokens),
            loss=float(one.sum(1).mean()) / total,
            baseline_loss=float(other.sum(1).mean()) / total,
            by_position=gap_by_position(gap, self._binned),
        )

    def _stacked(self, method: str, seeds: list[int]) -> Floats:
        return np.stack([self._sums[method][seed] for seed in seeds])

    def losses(self) -> list[RunLoss]:
        """Every run's loss."""
        total = float(self.tokens.sum())
        return [
            {
                "rung": self.name,
                "method": method,
                "seed": seed,
                "run": self._runs[method][seed].run.name,
                "loss": float(sums.sum()) / total,
            }
            for method, seeds in self._sums.items()
            for seed, sums in seeds.items()
        ]

    def effects(self) -> list[MethodEffect]:
        """Every method's difference from the baseline."""
        found: list[MethodEffect] = []
        for method, pairs in self.pairs.items():
            measured = pairs.effect
            seeds, both = measured.seeds, measured.both
            found.append(
                {
                    "rung": self.name,
                    "method": method,
                    "num_seeds": len(pairs.seeds),
                    "num_documents": len(self.tokens),
                    "num_tokens": int(self.tokens.sum()),
                    "loss": pairs.loss,
                    "baseline_loss": pairs.baseline_loss,
                    "difference": measured.difference,
                    "seed_deviation": measured.seed_deviation,
                    "documents_low": measured.documents.low,
                    "documents_high": measured.documents.high,
                    "seeds_low": seeds.low if seeds else None,
                    "seeds_high": seeds.high if seeds else None,
                    "both_low": both.low if both else None,
                    "both_high": both.high if both else None,
                    "beyond_noise": _beyond_noise(measured),
                    "verdict": verdict(
                        _label(method), _label(self.baseline), measured, len(pairs.seeds), len(self.tokens)
                    ),
                }
            )
        return found

    def gains(self, reference: str, notes: list[str]) -> list[CapturedGain]:
        """Every other method's share of the reference's gain, over the seeds that all three have."""
        if reference not in self.pairs or len(self.pairs) < 2:
            return []
        whole = self.pairs[reference].effect
        if whole.difference == 0:
            notes.append(f"{self.name}: {reference} has {self.baseline}'s loss, so there is no gain to share.")
            return []
        if not whole.decisive.excludes_zero:
            notes.append(
                f"{self.name}: the gain of {reference} cannot be told from noise, so shares of it mean little."
            )
        found: list[CapturedGain] = []
        for method in self.pairs:
            seeds = self._paired_seeds(method, reference)
            if method == reference or not seeds:
                continue
            base, own, most = (self._stacked(name, seeds).mean(0) for name in (self.baseline, method, reference))
            share = gain_captured(base, own, most, self.tokens, self._num_resamples)
            base_loss, own_loss, most_loss = (float(sums.sum() / self.tokens.sum()) for sums in (base, own, most))
            found.append(
                {
                    "rung": self.name,
                    "method": method,
                    "num_seeds": len(seeds),
                    "method_loss": own_loss,
                    "baseline_loss": base_loss,
                    "reference_loss": most_loss,
                    "loss": share.loss,
                    "loss_low": share.loss_interval.low,
                    "loss_high": share.loss_interval.high,
                    "perplexity": share.perplexity,
                    "perplexity_low": share.perplexity_interval.low,
                    "perplexity_high": share.perplexity_interval.high,
                }
            )
        return found

    def by_position(self) -> list[PositionGap]:
        """Every method's difference from the baseline, by position in the window."""
        counts = self._binned.sum(0)
        return [
            {
                "rung": self.name,
                "method": method,
                "start": int(self._edges[index]),
                "stop": int(self._edges[index + 1]),
                "num_tokens": int(counts[index]),
                "difference": float(pairs.by_position[0][index]),
                "standard_error": float(error) if np.isfinite(error) else None,
            }
            for method, pairs in self.pairs.items()
            for index, error in enumerate(pairs.by_position[1])
            if counts[index]
        ]
