"""The training loop: batches in, steps, and hooks for everything that happens alongside."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from lerope.core.ladder import flops_per_token
from lerope.core.run import FrequencyRecord, StepRecord, ValidationRecord
from lerope.core.signals import Signals
from lerope.train.engine import Engine, Moment, Started

Record = StepRecord | ValidationRecord | FrequencyRecord


class Diverged(ValueError):  # noqa: N818 (what happened, like Stopped)
    """A loss or gradient is not finite."""


@dataclass
class Loop:
    """The state of training. One object for all that changes between steps; hooks read it, and may ask to stop."""

    engine: Engine
    hooks: Sequence["Hook"]
    step: int
    """Steps finished."""
    stopping: bool = False
    """Whether this is the last step, by request; the same on every rank."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each hook, by name."""
    clock: Moment = field(init=False)
    """Where the step at hand began."""
    first_step_time: float | None = None
    """When the first step's numbers arrived, in `time.monotonic`."""

    @property
    def is_last(self) -> bool:
        """Whether the run's last step is done."""
        return self.step >= self.engine.recipe.steps

    def publish(self, record: Record) -> None:
        """Gives a record to every hook."""
        for hook in self.hooks:
            hook.take(self, record)

    def sync(self) -> None:
        """Returns when everything hooks have written has reached the disk."""
        for hook in self.hooks:
            hook.sync()

    def timed(self, hook: "Hook", act: Callable[["Loop"], None]) -> None:
        """Calls one of a hook's methods and counts its time."""
        begun = time.monotonic()
        try:
            act(self)
        finally:
            if hook.name:
                self.seconds[hook.name] = self.seconds.get(hook.name, 0.0) + time.monotonic() - begun


class Hook:
    """Something that happens alongside the steps. Every rank has the same hooks, in the same order."""

    name = ""
    """The name its time is recorded under."""

    def begin(self, loop: Loop) -> None:
        """Before the first step of this start."""

    def take(self, loop: Loop, record: Record) -> None:
        """A record: one per step, once its numbers have arrived from the device, and whatever hooks publish."""

    def is_due(self, loop: Loop) -> bool:
        """Whether to call `act` after this step. The host then waits for the device."""
        return False

    def act(self, loop: Loop) -> None:
        """What to do when due."""

    def sync(self) -> None:
        """Returns when everything it has written has reached the disk."""

    def end(self, loop: Loop) -> None:
        """After the last step of this start, however it ended."""


def run(loop: Loop, signals: Signals, peak_flops: float | None) -> None:
    """Trains from the loop's step to the end of the recipe, or until asked to stop.

    Args:
        signals: one on any rank stops the run on all, after the current step.
        peak_flops: this device's peak, if known.
    """
    engine, device = loop.engine, loop.engine.ranks.device
    batches = engine.loader.ahead(loop.step, engine.recipe.steps)
    pending: tuple[Started, float] | None = None
    with ExitStack() as ended:
        ended.callback(batches.close)
        for hook in loop.hooks:
            ended.callback(loop.timed, hook, hook.end)
            hook.begin(loop)
        loop.clock = Moment(device)
        while not loop.is_last and not loop.stopping:
            asked = time.perf_counter()
            batch, num_targets = next(batches)
            wait_s = time.perf_counter() - asked
            started = engine.step(loop.step, batch, num_targets, lambda: signals.received is not None)
            loop.step = started.step
            # A GPU works on this step while the host reads the numbers of the previous one.
            if pending is not None:
                _report(loop, *pending, peak_flops)
            pending = (started, wait_s)
            if device.type == "cpu" or loop.stopping or any(hook.is_due(loop) for hook in loop.hooks):
                _report(loop, *pending, peak_flops)
                pending = None
            for hook in loop.hooks:
                if hook.is_due(loop):
                    loop.timed(hook, hook.act)
                    loop.clock = Moment(device)


def _report(loop: Loop, started: Started, wait_s: float, peak_flops: float | None) -> None:
    """Publishes a step's numbers, and stops the loop if any rank was asked to stop."""
    started.end.wait()
    _, stops, norm, frequency_norm = started.numbers.tolist()
    if loop.first_step_time is None:
        loop.first_step_time = time.monotonic()
    engine, recipe, loss = loop.engine, loop.engine.recipe, started.loss
    seconds, loop.clock = started.end.seconds_since(loop.clock), started.end
    flops = flops_per_token(recipe.model, recipe.row_length) * recipe.batch_tokens / seconds
    if not all(map(math.isfinite, (loss, norm, frequency_norm))):
        raise Diverged(
            f"loss is {loss}, gradient norm {norm} and frequency gradient norm {frequency_norm} at step "
            f"{started.step:,}: training has diverged; lower learning_rate in a new run (the last checkpoint is "
            "intact)."
        )
    loop.stopping |= stops > 0
    loop.publish(
        StepRecord(
            step=started.step,
            tokens=started.step * recipe.batch_tokens,
            loss=loss,
            learning_rate=started.learning_rate,
            gradient_norm=norm,
            frequency_gradient_norm=frequency_norm if engine.learns else None,
            seconds=seconds,
            wait_seconds=wait_s,
            tokens_per_second=recipe.batch_tokens / seconds,
            share_of_peak=None if peak_flops is None else flops / (peak_flops * engine.ranks.num_ranks),
        )
    )
