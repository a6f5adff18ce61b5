"""What happens alongside the steps of a run: validation, frequencies, checkpoints, the display, a profiler."""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerope.core.run import FrequencyRecord, StepRecord, ValidationRecord
from lerope.core.terminal import Display, duration, readable
from lerope.data.loader import assemble, validation_batches
from lerope.data.shards import Split
from lerope.train.checkpoint import Store
from lerope.train.trainer import Hook, Loop, Record

# Steps that a profile skips, while things are compiled and recorded, and those it shows.
_PROFILE_SKIPS, _PROFILE_STEPS = 8, 4


class Frequencies(Hook):
    """Publishes the frequencies during training, at most `most` times; once if they are fixed."""

    name = "frequencies"

    def __init__(self, most: int) -> None:
        self._most = most

    def begin(self, loop: Loop) -> None:
        if loop.step == 0:
            self.act(loop)

    def is_due(self, loop: Loop) -> bool:
        every = math.ceil(loop.engine.recipe.steps / self._most)
        return loop.engine.learns and (loop.step % every == 0 or loop.is_last)

    def act(self, loop: Loop) -> None:
        artifact = loop.engine.model.encoding.artifact()  # FSDP2 gathers, so every rank takes part
        # Log-scales suffice if they are what is learned; other frequencies may cross zero, where they are undefined.
        frequencies = None if artifact.parametrization == "log" else artifact.frequencies
        loop.publish(FrequencyRecord(step=loop.step, log_scales=artifact.log_scales, frequencies=frequencies))


class Validation(Hook):
    """Publishes the loss on a split's documents, packed, every `every` steps and at the end."""

    name = "validation"

    def __init__(self, split: Split, every: int, display: Display) -> None:
        self._split, self._every, self._display = split, every, display

    def begin(self, loop: Loop) -> None:
        recipe, ranks = loop.engine.recipe, loop.engine.ranks
        limits = (recipe.row_length, loop.engine.micro_batch_rows, recipe.validation_tokens)
        self._batches = validation_batches(self._split, *limits, ranks.rank, ranks.num_ranks)

    def is_due(self, loop: Loop) -> bool:
        return loop.step % self._every == 0 or loop.is_last

    def act(self, loop: Loop) -> None:
        engine = loop.engine
        sums = torch.zeros(2, dtype=torch.float64, device=engine.ranks.device)
        begun = time.monotonic()
        if loop.is_last:
            self._display.say(f"step {loop.step:,} was the last; validation, {len(self._batches):,} batches")
        for number, rows in enumerate(self._batches):
            if number:
                left = (time.monotonic() - begun) / number * (len(self._batches) - number)
                part = f"batch {number + 1:,} of {len(self._batches):,}  {duration(left)} left"
                self._display.show(f"step {loop.step:,}, validation  {part}")
            batch = assemble(self._split, rows, engine.recipe.row_length)
            sums[0] += engine.summed_loss(batch)
            sums[1] += batch.num_targets
        total, count = engine.ranks.sum(sums).tolist()
        loop.publish(ValidationRecord(step=loop.step, validation_loss=total / count, validation_tokens=int(count)))


class Checkpoints(Hook):
    """Saves every `every` steps, at the end, and when the run is asked to stop.

    A single process continues while a copy of its state is written; several ranks wait for each other.
    """

    name = "checkpoints"

    def __init__(self, store: Store, every: int) -> None:
        self._store, self._every = store, every
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def is_due(self, loop: Loop) -> bool:
        return loop.step % self._every == 0 or loop.is_last or loop.stopping

    def act(self, loop: Loop) -> None:
        self._wait()
        loop.sync()
        state = loop.engine.state()
        if self._store.ranks.num_ranks > 1:
            self._store.save(loop.step, state)
            return
        copy = copied(state)
        self._writing = self._writer.submit(self._store.save, loop.step, copy)

    def end(self, loop: Loop) -> None:
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


class Progress(Hook):
    """Shows the progress of training.

    Args:
        validation_tokens: what a validation reads.
        every: steps between validations.
    """

    def __init__(self, display: Display, validation_tokens: int, every: int) -> None:
        self._display, self._validation_tokens, self._every = display, validation_tokens, every
        self._rate = self._loss = 0.0

    def take(self, loop: Loop, record: Record) -> None:
        steps = loop.engine.recipe.steps
        if isinstance(record, StepRecord):
            now = record.tokens_per_second
            # A moving average, so that the time left does not jump.
            self._rate, self._loss = (0.9 * self._rate + 0.1 * now if self._rate else now), record.loss
            tokens = (steps - record.step) * loop.engine.recipe.batch_tokens
            validations = math.ceil(steps / self._every) - (record.step - 1) // self._every
            # A token takes a third as long where nothing is learned from it.
            left = (tokens + validations * self._validation_tokens / 3) / self._rate
            self._display.show(line(record, steps, self._rate, left))
        elif isinstance(record, ValidationRecord):
            losses = f"loss {self._loss:.4f}  validation loss {record.validation_loss:.4f}"
            self._display.say(f"step {record.step:,}/{steps:,}  {losses}")


def line(record: StepRecord, steps: int, tokens_per_second: float, seconds_left: float) -> str:
    """A step's metrics as text."""
    parts = [
        f"step {record.step:,}/{steps:,}",
        f"loss {record.loss:.4f}",
        f"lr {record.learning_rate:.2e}",
        f"norm {record.gradient_norm:.2f}",
    ]
    if record.frequency_gradient_norm is not None:
        parts.append(f"frequency norm {record.frequency_gradient_norm:.3f}")
    parts.append(f"{readable(tokens_per_second)} tok/s")
    if record.share_of_peak is not None:
        parts.append(f"{record.share_of_peak:.0%} of peak")
    parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU; what comes from a GPU arrives in pinned memory, at the full speed of the bus."""

    def copy(tensor: Tensor) -> Tensor:
        room = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return room.copy_(tensor.detach(), non_blocking=True)

    found = {name: copy(tensor) for name, tensor in state.items()}
    if any(tensor.is_cuda for tensor in state.values()):
        torch.cuda.synchronize()
    return found


class Profile(Hook):
    """Records a few steps of this rank with torch's profiler, as a trace for its viewer or Perfetto."""

    name = "profile"

    def __init__(self, file: Path) -> None:
        self.file = file
        self._profiler: Any = None
        self._first = 0

    def begin(self, loop: Loop) -> None:
        self._first = loop.step + _PROFILE_SKIPS

    def is_due(self, loop: Loop) -> bool:
        return loop.step in (self._first, self._first + _PROFILE_STEPS)

    def act(self, loop: Loop) -> None:
        if self._profiler is None:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if loop.engine.ranks.device.type == "cuda":
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=kinds)
            self._profiler.start()
        else:
            self.end(loop)

    def end(self, loop: Loop) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.file))
