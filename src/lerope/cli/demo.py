"""lerope demo: a researcher's workflow in minutes, on the Python sources that every machine has."""

import math
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lerope.cli.options import Whole
from lerope.cli.report import report
from lerope.cli.stopping import stoppable
from lerope.cli.tables import new_table
from lerope.launch.small import CUDA_RECIPE, CUDA_STEPS, RECIPE, STEPS, VOCAB_SIZE

# Documents to measure bands and phasors on.
_NUM_ROWS, _NUM_PHASOR_ROWS = 16, 2
BARS = " ▁▂▃▄▅▆▇█"


def demo(
    out: Path = Path("runs/demo"),
    seed: int = 42,
    steps: Whole = None,
    device: str = "auto",
) -> None:
    """Prepare the interpreter's own sources, train RoPE and LeRoPE as a pair, evaluate, analyze, and write a page.

    Example: lerope demo

    Args:
        out: where data, runs and the page go; a second call resumes from what is there.
        seed: sets initial weights and the order of documents, for both runs.
        steps: Steps of each run; by default 300, or 600 of a larger model on a GPU.
        device: cuda or cpu; auto uses a GPU if there is one.
    """
    import torch

    if steps is not None and steps < 1:
        raise ValueError(f"steps must be a positive whole number; got {steps}.")
    on_cuda = device != "cpu" and torch.cuda.is_available()
    say = Console(highlight=False).print
    say("\n[bold]1. Data[/bold]: the Python sources of this interpreter")
    from lerope.data.prepare import prepare

    with stoppable():
        manifest = prepare(["python:"], out / "data", vocab_size=VOCAB_SIZE, validation_fraction=0.05)
    runs: dict[str, Path] = {}
    for number, encoding in enumerate(("rope", "lerope"), start=2):
        say(f"\n[bold]{number}. {encoding}[/bold]: same initial weights, same batches")
        runs[encoding] = _train(encoding, out, seed, steps, device, on_cuda)
    say("\n[bold]4. Losses over whole documents, and what each band does[/bold]")
    with stoppable():
        losses = _measure(runs, device)
    say("\n[bold]5. The page[/bold], with figures and tables next to it")
    report(tuple(runs.values()), out=out / "report")
    say("\n[bold]6. Results[/bold]")
    entropy = manifest.splits["validation"].unigram_entropy
    say(_loss_table(losses, entropy))
    say(_frequencies(runs["lerope"]))
    say(_verdict(runs, seed, sum(loss < entropy for loss in losses.values())))


def _train(encoding: str, out: Path, seed: int, steps: int | None, device: str, on_cuda: bool) -> Path:
    from lerope.core.recipe import Setup, recipe
    from lerope.train.job import train

    count = steps or (CUDA_STEPS if on_cuda else STEPS)
    fields = {**(CUDA_RECIPE if on_cuda else RECIPE), "steps": count, "validation_tokens": 1 << 30}
    name, precision = ("19M", "bf16") if on_cuda else ("demo", "float32")
    # A short run can take at most a tenth of its steps in decay.
    fields["weight_decay"] = min(fields["weight_decay"], count / 10)
    chosen = recipe(name, encoding, seed, precision, **fields)  # type: ignore[arg-type]
    setup = Setup(device=device, checkpoint_steps=50, validation_steps=count)
    outcome = train(chosen, out / "data", out / chosen.name, setup)
    if outcome.stopped_by is not None:
        sys.exit(128 + outcome.stopped_by)
    return outcome.path


def _measure(runs: dict[str, Path], device: str) -> dict[str, float]:
    from lerope.analyze.bands import measure_bands
    from lerope.analyze.phasors import measure_phasors
    from lerope.analyze.targets import open_target
    from lerope.analyze.wavelengths import describe_frequencies
    from lerope.evaluate.perplexity import EvalRequest, evaluate
    from lerope.train.parallel import start_ranks

    request = EvalRequest(device=device)
    where = start_ranks(device).device
    losses = {}
    for encoding, run in runs.items():
        losses[encoding] = evaluate(run, request).loss
        target = open_target(run, request)
        describe_frequencies(target)
        measure_bands(target, _NUM_ROWS, where)
        measure_phasors(target, _NUM_PHASOR_ROWS, None, where)
    return losses


def _loss_table(losses: dict[str, float], unigram_entropy: float) -> Table:
    table = new_table("", "nats per token", "perplexity", title="Validation")
    for name, loss in {"token frequencies alone": unigram_entropy, **losses}.items():
        table.add_row(name, f"{loss:.4f}", f"{math.exp(loss):,.2f}")
    return table


def _frequencies(run: Path) -> str:
    """How the log-scales moved, as bars over bands and a list of the bands that moved most."""
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


def _verdict(runs: dict[str, Path], seed: int, num_learned: int) -> str:
    from lerope.scaling.compare import compare

    (effect,) = compare(list(runs.values()), baseline="rope").effects
    learned = (
        "So few steps taught neither more than token frequencies",
        "Only one of them learned more than token frequencies",
        "Both learned more than token frequencies",
    )
    return (
        f"\n{effect['verdict']}\n{learned[num_learned]}; which encoding is better is not certain: this is one "
        f"seed ({seed}), a tiny model and a minute of training, and the paper's differences of a few thousandths of a "
        "nat show in longer runs over several seeds."
    )


COMMAND = demo
