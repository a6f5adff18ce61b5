"""lerope train RUNG --data DIR ...: starts or resumes one run."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lerope.cli.options import AsOptions, Folder, Number, Whole
from lerope.cli.stopping import leave
from lerope.core.ladder import Activation
from lerope.core.ladder import rung as rung_of
from lerope.core.recipe import Learn, Precision, Schedule, Setup, recipe


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Fields of the recipe that differ from the paper's."""

    steps: Whole = None
    """Steps; by default, 20 tokens per parameter."""
    row_length: Whole = None
    """Tokens per row; by default 2,048."""
    batch_tokens: Whole = None
    """Tokens per step, over all ranks; by default 131,072."""
    learning_rate: Number = None
    """Peak learning rate; by default, the rung's."""
    frequency_learning_rate: Number = None
    """Peak learning rate of learned frequencies; by default, the model's."""
    schedule: Annotated[Schedule | None, arg(help_behavior_hint="")] = None
    """How the learning rate falls after warm-up; by default cosine."""
    warmup_steps: Whole = None
    """Warm-up steps; by default 1,000, but at most a seventh of the run."""
    weight_decay: Number = None
    """Independent weight decay over the whole run; by default 8, but at most a tenth of the steps."""
    max_norm: Number = None
    """Norm that gradients are clipped to; by default 1."""
    frequency_max_norm: Number = None
    """Norm that the frequencies' gradients are separately clipped to; by default 1."""
    z_loss: Number = None
    """Weight of the squared logsumexp of a token's logits, added to the training loss; by default 0."""
    precision: Annotated[Precision | None, arg(help_behavior_hint="")] = None
    """bf16 with float32 weights and optimizer, or float32; by default bf16 on a GPU and float32 on a CPU."""
    validation_tokens: Whole = None
    """Tokens of validation documents to read; by default about a million."""
    vocab_size: Whole = None
    """Vocabulary size; by default, the data's."""
    activation: Annotated[Activation | None, arg(help_behavior_hint="")] = None
    """gelu as in the paper, or relu2, which serving engines can run; by default gelu."""
    head_dim: Whole = None
    """Dimensions of a head, in a model of the rung's width; by default 64."""
    start_from: Annotated[str | None, arg(metavar="RUN", help_behavior_hint="")] = None
    """A finished run to start from: its weights, and where frequencies are learned its frequencies."""
    learn: Annotated[Learn | None, arg(help_behavior_hint="")] = None
    """With --start-from, rotation changes frequencies and the gains of QK-norm alone; by default everything learns."""

    def given(self, precision: Precision, data: Path) -> dict[str, Any]:
        """Those that were given; otherwise this precision, and the data's vocabulary."""
        from lerope.data.shards import Manifest

        usual = {"precision": precision, "vocab_size": Manifest.load(data).vocab_size}
        return {**usual, **{name: value for name, value in vars(self).items() if value is not None}}


def train(
    rung: Annotated[Positional[str], arg(metavar="RUNG")],
    *,
    data: Path,
    encoding: str = "lerope",
    seed: int = 42,
    out: Folder = None,
    changes: AsOptions[Changes] = Changes(),  # noqa: B008
    setup: AsOptions[Setup] = Setup(),  # noqa: B008
) -> None:
    """Train a model of the ladder, or resume a stopped run: the same command does both.

    Example: lerope train 52M --encoding lerope --data data/my-text --seed 42

    On all GPUs of a machine: torchrun --nproc-per-node=8 -m lerope train 217M --data data/my-text

    For longer texts, 32 frequencies and gains learn on, and nothing else: lerope train 52M --data data/my-text
    --start-from runs/52M-lerope-42 --learn rotation --row-length 8192 --steps 200

    Args:
        rung: demo, 19M, 52M, 217M, 608M, 1.34B or 2.52B.
        data: a folder that `lerope data prepare` wrote.
        encoding: nope, rope, prope or lerope, with options as in rope,base=500000 or lerope,sharing=layer; a
            frequencies.json, whose frequencies stay fixed; preset:NAME or preset:FILE.json, the same from a preset, and
            lerope,init=preset:NAME to learn from there; or your own module:name. With horizon=N any of them is trained
            on positions that skip, up to N.
        seed: sets initial weights and the orders of documents and rows, which are shuffled separately.
        out: the run directory; by default runs/RUNG-ENCODING-SEED.
    """
    from lerope.train.job import train as carry_out
    from lerope.train.parallel import usual_precision

    sys.path.append(os.getcwd())  # so that your own encoding can be in this folder
    rung_of(rung)  # so that a wrong one is said before anything about the data
    chosen = recipe(rung, encoding, seed, **changes.given(usual_precision(setup.device), data))
    outcome = carry_out(chosen, data, out, setup)
    leave(0 if outcome.stopped_by is None else 128 + outcome.stopped_by)


COMMAND = train
