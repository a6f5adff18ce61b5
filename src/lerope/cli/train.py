"""lerope train RUNG --data DIR ...: one run, started or gone on with."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lerope.cli.stopping import leave
from lerope.core.ladder import Activation
from lerope.core.recipe import Precision, Schedule, Setup, recipe

Whole = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Number = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Fields of the recipe that differ from the paper's."""

    steps: Whole = None
    """Steps; 20 tokens a parameter unless given."""
    row_length: Whole = None
    """Tokens in a row; 2,048 unless given."""
    batch_tokens: Whole = None
    """Tokens in a step, over all ranks; 131,072 unless given."""
    learning_rate: Number = None
    """Peak learning rate; the rung's unless given."""
    frequency_learning_rate: Number = None
    """Peak learning rate of learned frequencies; the model's unless given."""
    schedule: Annotated[Schedule | None, tyro.conf.arg(help_behavior_hint="")] = None
    """How the learning rate falls after the warm-up; cosine unless given."""
    warmup_steps: Whole = None
    """Steps of warm-up; 1,000 and at most a seventh of the run unless given."""
    weight_decay: Number = None
    """Independent weight decay over the whole run; 8, and at most a tenth of the steps, unless given."""
    max_norm: Number = None
    """Norm to which gradients are clipped; 1 unless given."""
    frequency_max_norm: Number = None
    """Norm to which the gradients of frequencies are clipped on their own; 1 unless given."""
    z_loss: Number = None
    """Times the squared logsumexp of a token's logits, what training adds to its loss; 0 unless given."""
    precision: Annotated[Precision | None, tyro.conf.arg(help_behavior_hint="")] = None
    """bf16 with float32 weights and optimizer, or float32; bf16 on a GPU and float32 on a CPU unless given."""
    validation_tokens: Whole = None
    """Tokens of validation documents to read; about a million unless given."""
    vocab_size: Whole = None
    """Vocabulary, if the data has another than the rung."""
    activation: Annotated[Activation | None, tyro.conf.arg(help_behavior_hint="")] = None
    """gelu as in the paper, or relu2, which serving engines can run; gelu unless given."""

    def given(self, device: str) -> dict[str, Any]:
        """Those that were given, and the precision that is usual on this device."""
        from lerope.train.parallel import usual_precision

        given = {name: value for name, value in vars(self).items() if value is not None}
        return {"precision": usual_precision(device), **given}


def train(
    rung: tyro.conf.Positional[str],
    *,
    data: Path,
    encoding: str = "lerope",
    seed: int = 42,
    out: Path | None = None,
    changes: Annotated[Changes, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")] = Changes(),  # noqa: B008
    setup: Annotated[Setup, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")] = Setup(),  # noqa: B008
) -> None:
    """Train a model of the ladder, or go on with a run that was stopped: the same command does both.

    Example: lerope train 52M --encoding lerope --data data/my-text --seed 42

    On the GPUs of a machine: torchrun --nproc-per-node=8 -m lerope train 217M --data data/my-text

    Args:
        rung: demo, 19M, 52M, 217M, 608M, 1.34B or 2.52B.
        data: a folder that `lerope data prepare` wrote.
        encoding: nope, rope, prope or lerope, with options as in rope,base=500000 or lerope,sharing=layer; a
            frequencies.json, whose frequencies stay fixed; or module:name of your own.
        seed: decides initial weights and the order of documents.
        out: the run directory; runs/RUNG-ENCODING-SEED unless given.
    """
    from lerope.train.job import train as carry_out

    sys.path.append(os.getcwd())  # so that an encoding of one's own can lie beside the data
    outcome = carry_out(recipe(rung, encoding, seed, **changes.given(setup.device)), data, out, setup)
    leave(0 if outcome.stopped_by is None else 128 + outcome.stopped_by)


COMMAND = train
