"""lerope demo: the researcher's journey in minutes, on the Python sources that every machine has."""

import math
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lerope.cli.stopping import stoppable

VOCAB_SIZE = 2_048
# What two cores do in a few minutes. For so few steps, small batches, a low learning rate and little decay are best.
STEPS = 300
RECIPE = {"row_length": 256, "batch_tokens": 2_048, "learning_rate": 2**-8, "weight_decay": 1.0}
BARS = " ▁▂▃▄▅▆▇█"


def demo(out: Path = Path("runs/demo"), seed: int = 42, steps: int = STEPS) -> None:
    """Prepare the interpreter's own sources, train RoPE and LeRoPE from the same start on the same batches, compare.

    Example: lerope demo

    Args:
        out: where data and runs go; a second call goes on with what is there.
        seed: decides initial weights and the order of documents, for both runs.
        steps: steps of each run.
    """
    from lerope.data.prepare import prepare
    from lerope.train.config import Setup, recipe
    from lerope.train.job import train

    if steps < 1:
        raise ValueError(f"steps must be a positive whole number; got {steps}.")
    say = Console(highlight=False).print
    say("\n[bold]1. Data[/bold]: the Python sources of this interpreter")
    with stoppable():
        manifest = prepare(["python:"], out / "data", vocab_size=VOCAB_SIZE, validation_fraction=0.05)
    setup = Setup(checkpoint_steps=50, validation_steps=steps)
    losses = {}
    for number, encoding in enumerate(("rope", "lerope"), start=2):
        say(f"\n[bold]{number}. {encoding}[/bold]: same initial weights, same batches")
        chosen = recipe("demo", encoding, seed, "float32", steps=steps, validation_tokens=1 << 30, **RECIPE)
        outcome = train(chosen, out / "data", out / chosen.name, setup)
        if outcome.stopped_by is not None:
            sys.exit(128 + outcome.stopped_by)
        assert outcome.validation_loss is not None
        losses[encoding] = outcome.validation_loss
    say("\n[bold]4. What came of it[/bold]")
    say(_loss_table(losses, manifest.splits["validation"].unigram_entropy))
    say(_frequencies(out / chosen.name))
    say(_verdict(losses, seed))


def _loss_table(losses: dict[str, float], unigram_entropy: float) -> Table:
    table = Table(title="Validation", title_justify="left")
    for column in ("", "nats per token", "perplexity"):
        table.add_column(column, justify="right" if column else "left")
    for name, loss in {"token frequencies alone": unigram_entropy, **losses}.items():
        table.add_row(name, f"{loss:.4f}", f"{math.exp(loss):,.2f}")
    return table


def _frequencies(run: Path) -> str:
    """How the log-scales moved, as bars over bands and as the bands that moved most."""
    from lerope.rotary.artifact import Frequencies

    saved = Frequencies.load(run / "model" / "frequencies.json")
    scales, learned = saved.log_scales or [], saved.frequencies
    reach = max(map(abs, scales)) or 1.0
    lines = [
        f"Learned frequencies of {len(scales)} bands, fast to slow; a full bar is a factor of {math.exp(reach):.3f}."
    ]
    for name, sign in (("faster", 1), ("slower", -1)):
        bars = (BARS[round(max(0.0, sign * scale) / reach * (len(BARS) - 1))] for scale in scales)
        lines.append(f"  {name} |{''.join(bars)}|")
    for band in sorted(range(len(scales)), key=lambda m: -abs(scales[m]))[:5]:
        length = 2 * math.pi / learned[band]
        before = length * math.exp(scales[band])
        change = f"frequency {math.expm1(scales[band]):+.1%}"
        lines.append(f"  band {band:2d}: wavelength {before:,.1f} -> {length:,.1f} tokens ({change})")
    return "\n".join(lines)


def _verdict(losses: dict[str, float], seed: int) -> str:
    gain = losses["rope"] - losses["lerope"]
    which = "below" if gain > 0 else "above"
    return (
        f"\nLeRoPE ended {abs(gain):.4f} nats {which} RoPE. That both learn far more than token frequencies is "
        f"certain; which encoding is better is not: this is one seed ({seed}), a tiny model and a minute of training, "
        "and the paper's differences of a few thousandths of a nat show in longer runs over several seeds."
    )


COMMAND = demo
