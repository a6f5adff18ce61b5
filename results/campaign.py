"""The runs behind docs/results.md: seven questions about one text, with LeRoPE's effect at 52M as the first.

    lerope data prepare english-*.jsonl.xz --validation english-validation.jsonl.xz --out data/english
    lerope ladder results/campaign.py:effect --data data/english --out runs/english
    lerope archive runs/english/52M-* --out results/english

Studies share runs, so all of one text go to one folder. A run of 52M takes about five minutes on one H200, and a minute
to measure. Results are archived as they come: `make results` writes the page from whatever is there.
"""

from lerope.core.encoding import FROZEN
from lerope.launch.recipes import PROFILE
from lerope.launch.study import Command, PlannedRun, Study, grid, measured

STEPS = 4_000
SHORT = 2_000
"""Steps of runs that are compared only with each other."""
SIZE_STEPS = 1_600
"""What lets a pair of 217M fit into half an hour."""
LENGTHS = (512, 1_024, 2_048, 4_096, 8_192)
REACH: tuple[Command, ...] = (("extrapolate", "--to", "8192"), ("needle",))
REMOVALS: Command = ("analyze", "--parts", "ablation", "slowest", "phasors")
FALL: Command = ("analyze", "--parts", "beyond", "--max-tokens", "400000")
"""Which learned frequency makes a run fall off beyond its window."""


def effect() -> Study:
    """The main pair with three seeds, measured in every way: also the source of the profile and of the reach.

    Pair by pair, so that what is there when time runs out can be compared.
    """
    runs = [run for seed in (42, 43, 44) for run in grid(["52M"], ["rope", "lerope"], (seed,), steps=STEPS)]
    runs += grid(["52M"], ["prope"], (42, 43, 44), steps=STEPS)
    runs = measured(runs, PROFILE, *REACH, REMOVALS)
    return Study(name="effect", sentence="Is LeRoPE better than RoPE?", runs=_with_fall(runs))


def window() -> Study:
    """The same number of tokens in rows of five lengths."""
    runs = [run for length in LENGTHS for run in grid(["52M"], ["lerope"], suffix=f"length{length}", row_length=length,
                                                      steps=SHORT)]  # fmt: skip
    return Study(
        name="window", sentence="Does the dominant wavelength follow the window?", runs=measured(runs, PROFILE)
    )


def transfer() -> Study:
    """Where the gain is: learned frequencies frozen, other bases, other ways to learn, no positions at all."""
    others = ["rope,base=2048", "rope,base=500000", "lerope,parametrization=linear", "lerope,parametrization=direct"]
    others += ["lerope,sharing=layer_head", "nope"]
    runs = [
        *grid(["52M"], ["rope", "lerope"], (42, 43), steps=STEPS),
        PlannedRun(rung="52M", encoding=FROZEN, after="52M-lerope-43", changes={"steps": STEPS}),
        *grid(["52M"], others, steps=STEPS),
    ]
    return Study(
        name="transfer", sentence="Is the gain in the frequencies, or in learning them?", runs=measured(runs, PROFILE)
    )


def size() -> Study:
    """Pairs of three sizes, all on the same number of tokens."""
    runs = grid(["19M", "52M", "217M"], ["rope", "lerope"], suffix=f"steps{SIZE_STEPS}", steps=SIZE_STEPS)
    return Study(name="size", sentence="Is there a gain at every size?", runs=measured(runs, PROFILE))


def code() -> Study:
    """Python sources, with a tokenizer of their own."""
    runs = grid(["52M"], ["rope", "lerope"], (42, 43), steps=STEPS)
    return Study(
        name="code", sentence="Does code gain more than English?", runs=measured(runs, PROFILE), source="python:"
    )


def preset() -> Study:
    """Frequencies learned once, for a seed, a head size and a length that are not in them, and as a start.

    Needs the preset `english`: `lerope presets make` from the runs of `effect` and `window`, without the length that
    is tried here.
    """
    encodings = ["rope", "lerope", "preset:english"]
    runs = grid(["52M"], [*encodings, "lerope,init=preset:english"], (45,), steps=STEPS)
    runs += grid(["52M"], encodings, suffix="heads128", head_dim=128, steps=STEPS)
    runs += grid(["52M"], encodings, suffix="length4096", row_length=4_096, steps=SHORT)
    return Study(name="preset", sentence="How much of the gain does a preset keep?", runs=measured(runs, PROFILE))


def horizon() -> Study:
    """What may keep learned frequencies from falling off: positions that skip while training, and constraints."""
    encodings = ["rope", "lerope", "rope,horizon=8192", "lerope,horizon=8192", "lerope,horizon=8192,horizon_from=0.9"]
    encodings += [f"results.candidates:{name}" for name in ("Gap", "WholeTurns", "WholeTokens")]
    runs = _with_fall(measured(grid(["52M"], encodings, steps=STEPS), PROFILE, *REACH))
    return Study(name="horizon", sentence="Can learned frequencies reach beyond the window?", runs=runs)


def _with_fall(runs: list[PlannedRun]) -> list[PlannedRun]:
    return [run if not run.encoding.startswith("lerope") else measured([run], FALL)[0] for run in runs]
