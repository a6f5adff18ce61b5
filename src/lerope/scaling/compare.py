"""Methods against a baseline: effects paired by seed and document, gain captured, gap by position, multipliers."""

from lerope.core.run import provenance
from lerope.results import Comparison, Multiplier
from lerope.scaling.evaluated import Paths, as_method, check_baseline, default_baseline, read_study
from lerope.scaling.multipliers import PIECEWISE, compute_multipliers, finite
from lerope.scaling.rung import Rung
from lerope.scaling.seeds import NUM_RESAMPLES


def compare(
    paths: Paths,
    baseline: str | None = None,
    reference: str | None = None,
    evaluation: str = "eval",
    num_resamples: int = NUM_RESAMPLES,
) -> Comparison:
    """Compares evaluated runs, each rung on its own.

    Args:
        paths: finished and evaluated run directories.
        baseline: the method that others are compared with; rope, or the first, unless given.
        reference: the method whose gain counts as all of it; lerope where it was run, unless given.
        evaluation: which file of `results` to compare.
        num_resamples: of the bootstrap over documents, which shares of a gain have.
    """
    study = read_study(paths, evaluation)
    baseline = as_method(baseline or default_baseline(study))
    check_baseline(study, baseline)
    methods = list(dict.fromkeys(method for rung in study.values() for method in rung if method != baseline))
    reference = _reference(methods, baseline, reference)
    some = next(iter(next(iter(study.values()))[baseline].values()))
    rungs = [Rung(name, runs, baseline, num_resamples) for name, runs in study.items()]
    notes = [note for rung in rungs for note in rung.notes]
    if reference is None and len(methods) > 1:
        notes.append(
            "There are no shares of a gain without lerope; name the method whose gain is all with --reference."
        )
    gains = [gain for rung in rungs for gain in rung.gains(reference, notes)] if reference is not None else []
    return Comparison(
        settings={
            "evaluation": evaluation,
            "num_resamples": num_resamples,
            "data": some.run.identity.data,
            **some.evaluation.settings,
        },
        provenance=provenance(),
        baseline=baseline,
        reference=reference,
        losses=[loss for rung in rungs for loss in rung.losses()],
        effects=[found for rung in rungs for found in rung.effects()],
        gains=gains,
        by_position=[gap for rung in rungs for gap in rung.by_position()],
        multipliers=_multipliers(rungs, methods, notes),
        notes=notes,
    )


def _reference(methods: list[str], baseline: str, asked: str | None) -> str | None:
    """The method whose gain others have a share of; None without others, or where nobody asked and lerope is none."""
    found = as_method(asked or "lerope")
    if asked is not None and found not in methods:
        raise ValueError(f"reference must be one of {', '.join(methods)}; got {asked!r}, with {baseline} as baseline.")
    return found if found in methods and len(methods) > 1 else None


def _multipliers(rungs: list[Rung], methods: list[str], notes: list[str]) -> list[Multiplier]:
    """Piecewise multipliers of methods that are at every rung, where there are two or more."""
    found: list[Multiplier] = []
    if len(rungs) < 2:
        return found
    compute = [rung.compute for rung in rungs]
    for method in methods:
        absent = [rung.name for rung in rungs if method not in rung.pairs]
        if absent:
            notes.append(f"{method} has no multipliers, because it has no run at {', '.join(absent)}.")
            continue
        pairs = [rung.pairs[method] for rung in rungs]
        try:
            values = compute_multipliers(compute, [p.baseline_loss for p in pairs], [p.loss for p in pairs])
        except ValueError as error:
            notes.append(f"{method} has no multipliers: {error}")
            continue
        for rung, value in zip(rungs, values, strict=True):
            found.append(
                {
                    "rung": rung.name,
                    "compute": rung.compute,
                    "method": method,
                    "estimator": PIECEWISE,
                    "multiplier": finite(float(value)),
                }
            )
    return found
