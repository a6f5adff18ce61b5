"""Result files: one typed JSON object per evaluation or study, with the run and the machine it came from. No torch.

One module per command. Lists in a result hold flat records, so that `pandas.DataFrame(result.by_position)` is a table.
What is too long for JSON, such as the loss of every token, lies beside it in a safetensors file of the same name.
"""

from pathlib import Path

from lerope.core.files import parse_object, read_bytes
from lerope.results.analysis import (
    STANDS_OUT,
    Ablation,
    BandContribution,
    BandFrequency,
    BandRemoval,
    Bands,
    BandSetBack,
    Beyond,
    FrequencySet,
    LayerBand,
    LearnedFrequencies,
    PhasorBand,
    Phasors,
    SlowestRemoval,
    SlowestRemovals,
)
from lerope.results.base import Arrays, Result, RunResult, arrays_of
from lerope.results.benchmark import (
    AttentionTime,
    Benchmark,
    Ceiling,
    HeadTime,
    LayoutTime,
    RotaryTime,
    StepRatio,
    StepTime,
    Timing,
)
from lerope.results.comparison import (
    CapturedGain,
    Comparison,
    FitParameter,
    LadderLoss,
    MethodEffect,
    Multiplier,
    Multipliers,
    PositionGap,
    RunLoss,
)
from lerope.results.diagnosis import Diagnosis, Finding
from lerope.results.evaluation import Evaluation, Extrapolation, ExtrapolationBin, ExtrapolationRow, PositionBin
from lerope.results.needle import FLOOR, Needle, NeedleCell, NeedleLeftOut
from lerope.results.sweep import LearningRateOptimum, LearningRatePrediction, Sweep, Trial
from lerope.results.training import Timeline, Training
from lerope.results.verification import EngineRun, EngineTable, Verification

__all__ = [
    "FLOOR",
    "STANDS_OUT",
    "Ablation",
    "Arrays",
    "AttentionTime",
    "BandContribution",
    "BandFrequency",
    "BandRemoval",
    "BandSetBack",
    "Bands",
    "Benchmark",
    "Beyond",
    "CapturedGain",
    "Ceiling",
    "Comparison",
    "Diagnosis",
    "EngineRun",
    "EngineTable",
    "Evaluation",
    "Extrapolation",
    "ExtrapolationBin",
    "ExtrapolationRow",
    "Finding",
    "FitParameter",
    "FrequencySet",
    "HeadTime",
    "LadderLoss",
    "LayerBand",
    "LayoutTime",
    "LearnedFrequencies",
    "LearningRateOptimum",
    "LearningRatePrediction",
    "MethodEffect",
    "Multiplier",
    "Multipliers",
    "Needle",
    "NeedleCell",
    "NeedleLeftOut",
    "PhasorBand",
    "Phasors",
    "PositionBin",
    "PositionGap",
    "Result",
    "RotaryTime",
    "RunLoss",
    "RunResult",
    "SlowestRemoval",
    "SlowestRemovals",
    "StepRatio",
    "StepTime",
    "Sweep",
    "Timeline",
    "Timing",
    "Training",
    "Trial",
    "Verification",
    "arrays_of",
    "load_result",
]

_KINDS: dict[str, type[Result]] = {
    kind.kind: kind
    for kind in (
        Training,
        Evaluation,
        Extrapolation,
        Sweep,
        Comparison,
        Multipliers,
        Needle,
        LearnedFrequencies,
        Bands,
        Ablation,
        Phasors,
        SlowestRemovals,
        Beyond,
        Verification,
        Benchmark,
        Diagnosis,
    )
}


def load_result(path: Path) -> Result:
    """A result file of any kind."""
    name = (parse_object(read_bytes(path, "remove it")) or {}).get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{path} is not a result file of this version of lerope (its kind is {name!r}).")
    return kind.load(path)
