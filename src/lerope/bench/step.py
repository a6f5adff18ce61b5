"""Whole optimizer steps: RoPE and LeRoPE by the real trainer, nanoGPT by its own recipe, all taking turns.

Steps are launched as in the trainer: the host launches the next one before it waits for the previous one, with no
other waits. A step's time is the device's, from the end of the previous step to its own.
"""

import importlib.util
import io
import math
import random
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from lerope.bench.bench import Bench, share
from lerope.bench.documents import SEED
from lerope.bench.timing import Times, free, quartiles, reason, synchronize
from lerope.core.ladder import ModelConfig, flops_per_token
from lerope.core.recipe import Setup, recipe
from lerope.data.loader import Loader
from lerope.model.accounting import micro_batch_rows
from lerope.model.spec import build_encoding
from lerope.results import StepRatio, StepTime
from lerope.train.engine import Engine, Moment, Started
from lerope.train.parallel import Ranks

ROPE, LEROPE, NANOGPT = "RoPE", "LeRoPE", "nanoGPT"
_ENCODINGS = {ROPE: "rope", LEROPE: "lerope"}
# Compilation and its own measurements happen in the first steps. Memory counts after those, over enough steps for a
# trainer that records once warm: what a recording allocates is not visible during replay.
_WARM_UP_STEPS = 2
_MEMORY_STEPS = 4


class Stepper(Protocol):
    """A model that can be trained step by step."""

    kernels: str
    """The kernels used, as text."""

    def step(self) -> None:
        """Starts a step on the device without waiting for it."""

    def loss(self) -> float:
        """The mean loss of the last step, once the device is done."""

    def close(self) -> None:
        """Ends background work."""


class Ours:
    """A run of `lerope train`, one step at a time; it writes no files."""

    def __init__(self, bench: Bench, rung: str, config: ModelConfig, encoding: str, rows_at_once: int) -> None:
        made = recipe(
            rung,
            encoding,
            SEED,
            "bf16" if bench.device.type == "cuda" else "float32",
            vocab_size=config.vocab_size,
            row_length=bench.sizes.row_length,
            batch_tokens=bench.batch_tokens(config),
        )
        corpus = bench.documents.corpus(config.vocab_size)
        loader = Loader(corpus.train, made.row_length, made.batch_rows, SEED)
        ranks = Ranks(0, 1, 1, bench.device)
        setup = Setup(device=str(bench.device))
        built = build_encoding(encoding, config, made.row_length)
        self._engine = Engine(made, setup, loader, built, ranks, rows_at_once)
        self.kernels = self._engine.kernels()
        self._batches = loader.ahead(0, made.steps)
        self._done = 0
        self._started: Started | None = None

    def step(self) -> None:
        self._started = self._engine.step(self._done, *next(self._batches))
        self._done += 1

    def loss(self) -> float:
        return math.nan if self._started is None else self._started.loss

    def close(self) -> None:
        self._batches.close()


class NanoGPT:
    """nanoGPT's model.py, trained as its train.py does on one GPU: autocast, torch.compile, clipping, its AdamW."""

    kernels = ""

    def __init__(self, bench: Bench, folder: Path, config: ModelConfig, rows_at_once: int) -> None:
        module = _nanogpt(folder)
        length = bench.sizes.row_length
        sizes = {"block_size": length, "vocab_size": config.vocab_size, "dropout": 0.0, "bias": False}
        shape = {"n_layer": config.num_layers, "n_head": config.num_heads, "n_embd": config.width}
        with redirect_stdout(io.StringIO()):
            model = module.GPT(module.GPTConfig(**sizes, **shape)).to(bench.device)
            self._optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), bench.device.type)
        self._parameters = list(model.parameters())
        on_cuda = bench.device.type == "cuda"
        self._model: Any = torch.compile(model) if on_cuda else model
        self._bench, self._on_cuda = bench, on_cuda
        self._num_parts = bench.batch_tokens(config) // length // rows_at_once
        self._shape, self._vocab_size = (rows_at_once, length + 1), config.vocab_size
        self._losses: list[torch.Tensor] = []

    def step(self) -> None:
        self._losses = []
        for _ in range(self._num_parts):
            inputs, targets = self._tokens()
            with self._bench.autocast():
                _, loss = self._model(inputs, targets)
                loss = loss / self._num_parts
            loss.backward()
            self._losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _tokens(self) -> list[torch.Tensor]:
        """Random tokens, moved to the device as in its train.py."""
        tokens = torch.randint(self._vocab_size, self._shape)
        parts = [part.contiguous() for part in (tokens[:, :-1], tokens[:, 1:])]
        if self._on_cuda:
            parts = [part.pin_memory().to(self._bench.device, non_blocking=True) for part in parts]
        return parts

    def loss(self) -> float:
        return sum(float(loss) for loss in self._losses)

    def close(self) -> None:
        pass


def check_nanogpt(folder: Path) -> None:
    """Raises unless the folder is nanoGPT's."""
    if not (folder / "model.py").is_file():
        raise ValueError(f"nanogpt must be a folder with nanoGPT's model.py; got {folder}.")


def _nanogpt(folder: Path) -> Any:
    check_nanogpt(folder)
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(bench: Bench) -> Iterator[tuple[list[StepTime], list[StepRatio]]]:
    """Steps of every rung, and how LeRoPE compares with RoPE and nanoGPT."""
    for name, config in bench.models.items():
        bench.watch.signals.check()
        yield _measured(bench, name, config)
        free(bench.device)


def _measured(bench: Bench, rung: str, config: ModelConfig) -> tuple[list[StepTime], list[StepRatio]]:
    rows_at_once = _rows_at_once(bench, config)
    makers: dict[str, Callable[[], Stepper]] = {
        name: partial(Ours, bench, rung, config, encoding, rows_at_once) for name, encoding in _ENCODINGS.items()
    }
    if bench.nanogpt is not None:
        makers[NANOGPT] = partial(NanoGPT, bench, bench.nanogpt, config, rows_at_once)
    found, losses, kernels = _timed(bench, rung, makers)
    tokens, length = bench.batch_tokens(config), bench.sizes.row_length
    flops = flops_per_token(config, length) * tokens
    rows: list[StepTime] = []
    for name, times in found.items():
        rows.append(
            {
                "rung": rung,
                "name": name,
                "batch_tokens": tokens,
                "row_length": length,
                "micro_batch_rows": rows_at_once,
                "tokens_per_second": None if times.median is None else tokens / times.median,
                "share_of_matmul": share(flops, times.median, bench.matmul_rate),
                "peak_bytes": times.peak_bytes,
                "loss": losses.get(name),
                "kernels": kernels.get(name, ""),
                **times.timing,
            }
        )
    return rows, _ratios(rung, found)


def _rows_at_once(bench: Bench, config: ModelConfig) -> int:
    """As many as fit while all models are in memory."""
    length = bench.sizes.row_length
    num_rows = bench.batch_tokens(config) // length
    if bench.device.type == "cpu":
        return num_rows
    memory = torch.cuda.get_device_properties(bench.device).total_memory
    alive = len(_ENCODINGS) + (bench.nanogpt is not None)
    try:
        return micro_batch_rows(config, length, num_rows, memory // alive)
    except ValueError:  # by the estimate, not even one; trying will tell
        return 1


def _timed(
    bench: Bench, rung: str, makers: dict[str, Callable[[], Stepper]]
) -> tuple[dict[str, Times], dict[str, float], dict[str, str]]:
    """Times, last losses and kernels by name. All models stay alive and take turns, in a new order each round."""
    notes: dict[str, str] = {}
    kernels: dict[str, str] = {}
    peaks: dict[str, int | None] = {}
    alive: dict[str, Stepper] = {}
    samples: dict[str, list[float]] = {name: [] for name in makers}
    losses: dict[str, float] = {}
    watch = bench.watch
    try:
        for name, make in makers.items():
            watch.signals.check()
            watch.display.show(f"steps of {rung}: {name}, warming up")
            try:
                alive[name], peaks[name] = _warmed_up(bench, make)
                kernels[name] = alive[name].kernels
            except Exception as error:  # a peer may fail in any way
                notes[name] = reason(error)
        order = random.Random(0)
        before: Moment | None = None
        pending: list[tuple[str, Moment, Moment]] = []
        for _ in watch.each_round(f"steps of {rung}"):
            for name in order.sample(list(alive), len(alive)):
                start = Moment(bench.device)
                try:
                    alive[name].step()
                except Exception as error:
                    notes[name] = reason(error)
                    alive.pop(name).close()
                    continue
                end = Moment(bench.device)
                pending.append((name, start, end))
                # The device works on this step while the host waits for the previous one.
                if before is not None:
                    before.wait()
                before = end
        synchronize(bench.device)
        for name, start, end in pending:
            if name in alive:
                samples[name].append(end.seconds_since(start))
        losses = {name: stepper.loss() for name, stepper in alive.items()}
    finally:
        for stepper in alive.values():
            stepper.close()
    found = {name: Times(tuple(samples[name]), peaks.get(name), notes.get(name, "")) for name in makers}
    return found, losses, kernels


def _warmed_up(bench: Bench, make: Callable[[], Stepper]) -> tuple[Stepper, int | None]:
    """A stepper that has compiled and allocated everything, and its own peak memory."""
    on_cuda = bench.device.type == "cuda"
    base = 0
    if on_cuda:
        synchronize(bench.device)
        torch._C._cuda_clearCublasWorkspaces()  # else the first to multiply would be charged for all
        base = torch.cuda.memory_allocated(bench.device)
    stepper = make()
    try:
        for _ in range(_WARM_UP_STEPS):
            stepper.step()
        if not on_cuda:
            return stepper, None
        synchronize(bench.device)
        torch.cuda.reset_peak_memory_stats(bench.device)
        for _ in range(_MEMORY_STEPS):
            stepper.step()
        synchronize(bench.device)
    except BaseException:
        stepper.close()
        raise
    return stepper, int(torch.cuda.max_memory_allocated(bench.device)) - base


def _ratios(rung: str, found: dict[str, Times]) -> list[StepRatio]:
    pairs = {f"time, {LEROPE} by {ROPE}": (LEROPE, ROPE), f"tokens/s, {LEROPE} by {NANOGPT}": (NANOGPT, LEROPE)}
    rows: list[StepRatio] = []
    for what, names in pairs.items():
        first, second = (found.get(name, Times()) for name in names)
        ratios = [a / b for a, b in zip(first.samples, second.samples, strict=False)]
        if not ratios:
            continue
        q1, median, q3 = quartiles(ratios)
        ours, other = (found[name].peak_bytes for name in (LEROPE, ROPE if ROPE in names else NANOGPT))
        memory = ours / other if ours and other else None
        rows.append(
            {
                "rung": rung,
                "what": what,
                "median": median,
                "q1": q1,
                "q3": q3,
                "num_pairs": len(ratios),
                "memory": memory,
            }
        )
    return rows
