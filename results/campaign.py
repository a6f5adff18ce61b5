"""The runs behind docs/results.md: seven questions about one text, with LeRoPE's effect at 52M as the first.

    lerope data prepare english-*.jsonl.xz --validation english-validation.jsonl.xz --out data/english
    lerope ladder results/campaign.py:effect --data data/english --out runs/english --archive results/english

Studies share runs, so all of one text go to one folder. A run of 52M takes about five minutes on one H200, and a minute
to measure. Each run is archived when it is measured: `make results` writes the page from whatever is there.
"""

from collections.abc import Sequence
from typing import Any

from lerope.core.encoding import FROZEN
from lerope.core.ladder import LEARNING_RATE_INDEX
from lerope.launch.recipes import PROFILE
from lerope.launch.study import Command, PlannedRun, Study, grid, measured
from lerope.scaling.lr_search import learning_rate

SLOWER = 2
"""Learning rates are this many indices below the paper's, so half of them: at 52M 2^-7.5, the best of 2^-6.5, 2^-7 and
2^-7.5 for RoPE in 800 steps on the English text (`lerope sweep 52M --steps 800`)."""
STEPS = 4_000
SHORT = 2_000
"""Steps of runs that are compared only with each other."""
SIZE_STEPS = 1_600
"""What lets a pair of 217M fit into half an hour."""
LENGTHS = (512, 1_024, 2_048, 4_096, 8_192)
REACH: tuple[Command, ...] = (
    ("extrapolate", "--to", "8192", "--precision", "bf16"),
    ("needle", "--precision", "bf16"),
)
"""In bf16, nine times as fast: what is compared here differs by per cents, where `eval` in float32 looks at the fourth
digit. The first pair was measured in float32, which took as long as its training."""
REMOVALS: Command = ("analyze", "--parts", "ablation", "slowest", "phasors")
FALL: Command = ("analyze", "--parts", "beyond", "--max-tokens", "100000")
"""Which learned frequency makes a run fall off beyond its window."""


def effect() -> Study:
    """The main pair with three seeds, measured in every way: also the source of the profile and of the reach.

    Pair by pair, so that what is there when time runs out can be compared.
    """
    runs = [run for seed in (42, 43, 44) for run in _runs(["rope", "lerope"], (seed,))]
    runs += _runs(["prope"], (42, 43, 44))
    runs = measured(runs, PROFILE, *REACH, REMOVALS)
    return Study(name="effect", sentence="Is LeRoPE better than RoPE?", runs=_with_fall(runs))


def window() -> Study:
    """The same number of tokens in rows of five lengths."""
    runs = [
        run for length in LENGTHS for run in _runs(["lerope"], suffix=f"length{length}", steps=SHORT, row_length=length)
    ]
    return Study(
        name="window", sentence="Does the dominant wavelength follow the window?", runs=measured(runs, PROFILE)
    )


def transfer() -> Study:
    """Where the gain is: learned frequencies frozen, other bases, other ways to learn, no positions at all."""
    others = ["rope,base=2048", "rope,base=500000", "lerope,parametrization=linear", "lerope,parametrization=direct"]
    others += ["lerope,sharing=layer_head", "nope"]
    runs = [
        *_runs(["rope", "lerope"], (42, 43)),
        PlannedRun(rung="52M", encoding=FROZEN, after="52M-lerope-43", changes=_changes("52M", STEPS)),
        *_runs(others),
    ]
    return Study(
        name="transfer", sentence="Is the gain in the frequencies, or in learning them?", runs=measured(runs, PROFILE)
    )


def size() -> Study:
    """Pairs of three sizes, all on the same number of tokens."""
    runs = [
        run
        for rung in ("19M", "52M", "217M")
        for run in grid([rung], ["rope", "lerope"], suffix=f"steps{SIZE_STEPS}", **_changes(rung, SIZE_STEPS))
    ]
    return Study(name="size", sentence="Is there a gain at every size?", runs=measured(runs, PROFILE))


def code() -> Study:
    """Python sources, with a tokenizer of their own."""
    runs = _runs(["rope", "lerope"], (42, 43))
    return Study(
        name="code", sentence="Does code gain more than English?", runs=measured(runs, PROFILE), source="python:"
    )


def preset() -> Study:
    """Frequencies learned once, for a seed, a head size and a length that are not in them, and as a start.

    Needs the preset `english`: `lerope presets make` from the runs of `effect` and `window`, without the length that
    is tried here.
    """
    encodings = ["rope", "lerope", "preset:english"]
    runs = _runs([*encodings, "lerope,init=preset:english"], (45,))
    runs += _runs(encodings, suffix="heads128", head_dim=128)
    runs += _runs(encodings, suffix="length4096", steps=SHORT, row_length=4_096)
    return Study(name="preset", sentence="How much of the gain does a preset keep?", runs=measured(runs, PROFILE))


def horizon() -> Study:
    """What may keep learned frequencies from falling off: positions that skip while training, and constraints."""
    encodings = ["rope", "lerope", "rope,horizon=8192", "lerope,horizon=8192"]
    encodings += [f"lerope,horizon=8192,horizon_from={begin}" for begin in (0.9, 0.8)]
    encodings += [f"results.candidates:{name}" for name in ("Gap", "Slowed", "WholeTurns", "WholeTokens")]
    runs = _with_fall(measured(_runs(encodings), PROFILE, *REACH))
    runs += [_learned_on(run) for run in runs[:2]]
    return Study(name="horizon", sentence="Can learned frequencies reach beyond the window?", runs=runs)


def winner() -> Study:
    """What was best on the laptop, with three seeds; measure `horizon` first."""
    encodings = ["rope", "lerope", "lerope,horizon=8192,horizon_from=0.8"]
    runs = [run for seed in (42, 43, 44) for run in _runs(encodings, (seed,))]
    return Study(name="winner", sentence="Does it hold for other seeds?", runs=measured(runs, PROFILE, *REACH))


def _learned_on(run: PlannedRun) -> PlannedRun:
    """The same run with its rotation learned on in rows of four windows: an extension that is learned.

    Needs that run's weights, so it is trained on the same machine.
    """
    changes = {"row_length": 8_192, "steps": 200, "learn": "rotation"}
    changes |= {"learning_rate": 0.01, "frequency_learning_rate": 0.04}
    measure = (("eval", "--truncate"), ("eval", "--length", "2048"))
    return PlannedRun(rung="52M", encoding="lerope", after=run.name, changes=changes, measure=measure)


def _runs(
    encodings: list[str], seeds: Sequence[int] = (42,), suffix: str = "", steps: int = STEPS, **changes: int
) -> list[PlannedRun]:
    """Of 52M."""
    return grid(["52M"], encodings, seeds, suffix, **_changes("52M", steps), **changes)


def _changes(rung: str, steps: int) -> dict[str, Any]:
    return {"steps": steps, "learning_rate": learning_rate(LEARNING_RATE_INDEX[rung] + SLOWER)}


def _with_fall(runs: list[PlannedRun]) -> list[PlannedRun]:
    return [run if not run.encoding.startswith("lerope") else measured([run], FALL)[0] for run in runs]
