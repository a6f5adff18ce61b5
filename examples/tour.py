"""A guided tour of the library in about a minute on a laptop CPU; `python examples/tour.py --help`."""

import argparse
import io
import math
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional

import lerope

# A row is NUM_LETTERS letters and as many questions; a question is a number, "which letter stood n positions back?".
# With a base chosen for long contexts and rows this short, most of RoPE's bands hardly turn: there is room to learn.
ALPHABET, NUM_LETTERS = 26, 96
ROW_LENGTH = 2 * NUM_LETTERS
WIDTH, NUM_LAYERS, NUM_HEADS, HEAD_DIM, BASE = 64, 1, 4, 16, 500_000.0
BATCH_ROWS, LEARNING_RATE, WARMUP_STEPS = 16, 1e-2, 20
# Held-out batches are numbered from MAX_STEPS on, beyond any training step.
MAX_STEPS, EVALUATION_BATCHES = 100_000, 16
COLUMNS = 80

FIVE_LINES = """\
  encoding = lerope.LeRoPE(head_dim=64)
  q, k = encoding(q, k, positions)
  optimizer = AdamW(lerope.param_groups(model, lr=3e-4, weight_decay=0.1))
  lerope.clip_grad_norm_(model, max_norm=1.0)
  encoding.save("frequencies.json")"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query_norm, self.key_norm = nn.RMSNorm(HEAD_DIM), nn.RMSNorm(HEAD_DIM)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, rotation: lerope.Rotation) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, NUM_HEADS, HEAD_DIM)).unbind(-3)
        q, k = rotation(self.query_norm(q), self.key_norm(k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).flatten(-2))
        mixed: Tensor = x + self.mlp(self.mlp_norm(x))
        return mixed


class Transformer(nn.Module):
    def __init__(self, encoding: lerope.Encoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.embedding = nn.Embedding(ALPHABET + ROW_LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, ALPHABET, bias=False)

    def rotation(self, positions: Tensor) -> lerope.Rotation:
        # The row's centre as origin gives the frequencies the same gradient with the least rounding noise.
        return self.encoding.rotation(positions, origin=len(positions) // 2)

    def forward(self, tokens: Tensor) -> Tensor:
        rotation = self.rotation(torch.arange(tokens.shape[-1]))
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rotation)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Detached(Transformer):
    """The usual mistake: tables made from the values of the frequencies, so that no gradient comes back."""

    def rotation(self, positions: Tensor) -> lerope.Rotation:
        return lerope.Rotation(positions, self.encoding.frequencies().detach())


class Run(NamedTuple):
    name: str
    model: Transformer
    losses: list[float]
    loss: float
    accuracy: float


def make_batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens and the letter that answers each question; depends on seed and step alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
    letters = torch.randint(ALPHABET, (BATCH_ROWS, NUM_LETTERS), generator=generator)
    asked = torch.randint(NUM_LETTERS, (BATCH_ROWS, NUM_LETTERS), generator=generator)
    distances = torch.arange(NUM_LETTERS, ROW_LENGTH) - asked
    return torch.cat((letters, ALPHABET + distances), dim=1), letters.gather(1, asked).flatten()


def answers(model: Transformer, tokens: Tensor) -> Tensor:
    """Logits at the questions."""
    logits: Tensor = model(tokens)
    return logits[:, NUM_LETTERS:].flatten(0, 1)


def training(model: Transformer, seed: int, num_steps: int) -> Iterator[float]:
    """Trains the model; yields the loss of every step."""
    optimizer = torch.optim.AdamW(lerope.param_groups(model, LEARNING_RATE, weight_decay=0.1), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP_STEPS) * (1 - 0.9 * step / num_steps)
    )
    for step in range(num_steps):
        tokens, targets = make_batch(seed, step)
        loss = functional.cross_entropy(answers(model, tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        lerope.clip_grad_norm_(model, max_norm=1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


@torch.no_grad()
def evaluate(model: Transformer, seed: int) -> tuple[float, float]:
    """Loss and accuracy on rows that training never saw."""
    batches = [make_batch(seed, MAX_STEPS + number) for number in range(EVALUATION_BATCHES)]
    logits = torch.cat([answers(model, tokens) for tokens, _ in batches])
    targets = torch.cat([targets for _, targets in batches])
    return functional.cross_entropy(logits, targets).item(), (logits.argmax(-1) == targets).float().mean().item()


def train(encoding: lerope.Encoding, seed: int, num_steps: int, console: Console) -> Run:
    """One run. The seed fixes initial weights and batches, whatever the encoding."""
    torch.manual_seed(seed)
    model, losses = Transformer(encoding), list[float]()
    name = type(encoding).__name__
    live = console.is_terminal and not console.is_dumb_terminal
    columns = TextColumn("  {task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not live) as progress:
        task = progress.add_task(name, total=num_steps)
        for step, loss in enumerate(training(model, seed, num_steps), start=1):
            losses.append(loss)
            progress.update(task, advance=1, description=f"{name:6}  loss {loss:.3f}")
            # A log gets a line now and then instead of a moving bar.
            if not live and step % max(1, num_steps // 4) == 0:
                print(f"  {name:6}  step {step:,} of {num_steps:,}: loss {loss:.3f}", flush=True)
    return Run(name, model, losses, *evaluate(model, seed))


def angle_error(cos: Tensor, sin: Tensor, phases: Tensor) -> float:
    """The largest angle between what a table turns by and the exact phases, at most pi."""
    difference = torch.atan2(sin.double(), cos.double()) - phases
    return torch.atan2(difference.sin(), difference.cos()).abs().max().item()


def show_precision(seed: int) -> None:
    print(FIVE_LINES)
    torch.manual_seed(seed)
    rope, encoding = lerope.RoPE(head_dim=64), lerope.LeRoPE(head_dim=64)
    q, k, positions = torch.randn(2, 128, 8, 64), torch.randn(2, 128, 2, 64), torch.arange(128)
    pairs = zip(encoding(q, k, positions), rope(q, k, positions), strict=True)
    same = all(torch.equal(learned, fixed) for learned, fixed in pairs)
    say(f"{encoding}: q and k come out {'bit for bit' if same else 'NOT'} as from RoPE.")

    nn.init.normal_(encoding.alpha, std=0.3)  # as if it had learned
    position, theta = 131_072, 10_000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    exact = position * encoding.alpha.detach().double().exp() * theta
    naive = position * (encoding.alpha.detach().bfloat16().exp() * theta.bfloat16())
    encoding.to(torch.bfloat16)
    table = encoding.rotation(torch.tensor([position]))
    say(f"After .to(torch.bfloat16) its alpha is {str(encoding.alpha.dtype).removeprefix('torch.')}.")
    say(f"Largest phase error of {len(exact)} bands at position {position:,}, against float64:")
    print(f"  lerope            {angle_error(table.cos, table.sin, exact):.4f} rad")
    print(f"  all in bfloat16   {angle_error(naive.cos(), naive.sin(), exact):.4f} rad, where pi is the most")


def compare(seed: int, num_steps: int, console: Console) -> tuple[Run, Run]:
    say(
        f"A row is {NUM_LETTERS} letters, then {NUM_LETTERS} questions: which letter stood n positions back? A model "
        f"with {NUM_LAYERS} layer, {NUM_HEADS} heads and {HEAD_DIM} dimensions a head learns to answer, once with each "
        f"encoding at base {BASE:,.0f}, from the same weights (seed {seed}) on the same {num_steps:,} batches."
    )
    rope = train(lerope.RoPE(HEAD_DIM, BASE), seed, num_steps, console)
    learned = train(lerope.LeRoPE(HEAD_DIM, BASE), seed, num_steps, console)
    print("\n            parameters   loss at step 1   held-out loss   answers right")
    for run in (rope, learned):
        size = sum(p.numel() for p in run.model.parameters())
        print(f"  {run.name:8}  {size:10,}   {run.losses[0]:14.4f}   {run.loss:13.4f}   {run.accuracy:13.1%}")
    print()
    losses = f"{learned.loss:.4f} against {rope.loss:.4f}"
    if learned.loss < rope.loss:
        outcome = f"LeRoPE ended at a lower held-out loss than RoPE, {losses}"
    else:
        outcome = f"LeRoPE did not win: its held-out loss is not below RoPE's, {losses}"
    say(
        f"{outcome}, on this one seed. A run this small shows the mechanism (frequencies learn from a real gradient), "
        "not the gain; try another --seed before you believe a difference."
    )
    return rope, learned


def plot_frequencies(encoding: lerope.LeRoPE) -> None:
    """One row a band: its wavelength on a log scale that is centred on where the band started."""
    # All bands on one axis of five decades would hide moves of this size, so the rows share a scale, not an origin.
    half, alphas = 20, encoding.alpha.tolist()
    reach = max(0.1, *(abs(alpha) for alpha in alphas))
    start, now = 2 * math.pi / encoding.theta, encoding.wavelengths().detach()
    print(f"band  alpha     wavelength in tokens  {'shorter':<{half - 2}}start{'longer':>{half - 2}}")
    for band, alpha in enumerate(alphas):
        moved = round(-alpha / reach * half)
        cells = ["─" if min(moved, 0) <= cell <= max(moved, 0) else " " for cell in range(-half, half + 1)]
        cells[half] = "│"
        cells[half + moved] = "●"
        print(f"{band:4}  {alpha:+.2f}  {start[band]:9,.1f} → {now[band]:9,.1f}  {''.join(cells).rstrip()}")
    ends = f"x{math.exp(-reach):.2f}", f"x{math.exp(reach):.2f}"
    print(f"{'':36}{ends[0]:<{half - 1}}x 1{ends[1]:>{half - 1}}")


def show_effect(run: Run, encoding: lerope.LeRoPE, seed: int) -> None:
    """Names the bands whose moves mean nothing, and takes the learned frequencies away from the model."""
    dead = encoding.diagnostics(ROW_LENGTH).dead.nonzero().flatten().tolist()
    if dead:
        say(f"Dead bands turn by less than 1 % of a turn in a row, so their moves mean nothing: {dead}.")
    learned = encoding.alpha.detach().clone()
    encoding.reset_parameters()
    loss, accuracy = evaluate(run.model, seed)
    with torch.no_grad():
        encoding.alpha.copy_(learned)
    say(
        "With RoPE's frequencies put back, the model that learned others answers "
        f"{accuracy:.1%} right instead of {run.accuracy:.1%} (loss {loss:.4f} instead of {run.loss:.4f})."
    )


def plot_losses(*runs: Run) -> None:
    """A sparkline a run, both on one log scale."""
    bars, width = "▁▂▃▄▅▆▇█", min(COLUMNS - 20, len(runs[0].losses))
    curves = []
    for run in runs:
        edges = pairwise(len(run.losses) * i // width for i in range(width + 1))
        curves.append([math.log(max(sum(run.losses[a:b]) / (b - a), 1e-9)) for a, b in edges])
    low, high = min(map(min, curves)), max(map(max, curves))
    print(f"training loss, log scale, {math.exp(high):.3g} (full) to {math.exp(low):.3g} (flat)")
    for run, curve in zip(runs, curves, strict=True):
        line = "".join(bars[round((len(bars) - 1) * (y - low) / (high - low or 1.0))] for y in curve)
        print(f"{run.name:8}{line}  {math.exp(curve[-1]):.3f}")


def show_guards(model: Transformer, seed: int) -> None:
    tokens, _ = make_batch(seed, 0)
    for name, norm in lerope.check_gradients(model, tokens).items():
        say(f"check_gradients(model) passes: the gradient of {name} (norm {norm:.3g}) agrees with a finite difference.")
    say("On a model whose rotation detaches the frequencies, which PyTorch trains without a word, it says:")
    try:
        lerope.check_gradients(Detached(lerope.LeRoPE(HEAD_DIM, BASE)), tokens)
        say("nothing, and that is a BUG.", indent="  ")
    except ValueError as error:
        say(str(error), indent="  ")


def show_file(encoding: lerope.LeRoPE, path: Path) -> None:
    encoding.save(path, train_length=ROW_LENGTH)
    frozen = lerope.FrozenRoPE.load(path)
    same = torch.equal(frozen.frequencies(), encoding.frequencies())
    print(f"encoding.save wrote {path} ({path.stat().st_size:,} bytes).")
    say(f"FrozenRoPE.load gives {'the same' if same else 'OTHER'} frequencies back. Their diagnostics({ROW_LENGTH}):")
    print(textwrap.indent(str(frozen.diagnostics(ROW_LENGTH)), "  "))

    length = 4 * ROW_LENGTH
    print(f"\nlerope.extend to 4 times the length, {length:,} tokens: wavelengths of four bands")
    print("  method        " + "".join(f"{f'band {band}':>12}" for band in range(4)) + "   logits times")
    for method in ("none", "pi", "yarn"):
        extension = lerope.extend(frozen.frequencies(), train_length=ROW_LENGTH, length=length, method=method)
        slowed = (2 * math.pi / extension.frequencies)[:4].tolist()
        print(f"  {method:14}" + "".join(f"{value:12,.1f}" for value in slowed) + f"{extension.logit_scale:15.3f}")


def say(text: str, indent: str = "") -> None:
    print(textwrap.fill(text, COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False))


def fail(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message[:1].upper()}{message[1:]}; see --help.")


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__, epilog="example: python examples/tour.py --seed 1 --steps 300")
    parser.add_argument("--seed", type=int, default=42, help="of weights and batches (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="training steps of each run (%(default)s)")
    default = Path(tempfile.gettempdir()) / "tour"
    parser.add_argument("--out", type=Path, default=default, help="folder for frequencies.json (%(default)s)")
    args = parser.parse_args()
    if not 0 <= args.seed < 2**32:
        fail(f"--seed must be 0 to {2**32 - 1}; got {args.seed}.")
    if not 1 <= args.steps <= MAX_STEPS:
        fail(f"--steps must be 1 to {MAX_STEPS}; got {args.steps}.")
    try:
        # Better found out now than after the training.
        args.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.out).close()
    except OSError as error:
        fail(f"--out {args.out} cannot be written ({error.strerror}); name another folder.")
    return args


def tour(seed: int, num_steps: int, out: Path) -> None:
    console, started = Console(highlight=False), time.perf_counter()
    console.print("\n[bold]1. Five lines: starts as RoPE, stays precise[/]")
    show_precision(seed)
    console.print("\n[bold]2. Training with fixed and with learned frequencies[/]")
    rope, learned = compare(seed, num_steps, console)
    encoding = learned.model.encoding
    assert isinstance(encoding, lerope.LeRoPE)
    console.print("\n[bold]3. How the frequencies moved[/]")
    plot_frequencies(encoding)
    show_effect(learned, encoding, seed)
    print()
    plot_losses(rope, learned)
    console.print("\n[bold]4. Proof that the gradient arrives[/]")
    show_guards(learned.model, seed)
    console.print("\n[bold]5. The file that travels, and longer contexts[/]")
    show_file(encoding, out / "frequencies.json")
    print(f"\nThe tour took {time.perf_counter() - started:.0f} s.")


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the plot characters shows "?"
    args = parse()
    try:
        tour(args.seed, args.steps, args.out)
    except KeyboardInterrupt:
        print("\nStopped before the end of the tour.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has left (`| head`); the flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, ValueError) as error:
        fail(f"The tour stopped: {error}")


if __name__ == "__main__":
    main()
