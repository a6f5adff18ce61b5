"""The training loop: batches in, records and checkpoints out, a stop at any step and an exact way on."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lerope.data.display import Display
from lerope.data.loader import Batch, Loader, assemble, validation_batches
from lerope.data.shards import Corpus
from lerope.data.signals import Signals
from lerope.model import products
from lerope.model.accounting import flops_per_token
from lerope.model.attention import Backend, DocumentMask
from lerope.model.fastest import fastest
from lerope.rotary.encodings import Encoding
from lerope.rotary.kernels import choose
from lerope.rotary.optim import check_gradients, clip_grad_norm_, frequency_parameters, param_groups
from lerope.runs import METRICS, read_records
from lerope.train import checkpoint
from lerope.train.captured import Captured
from lerope.train.config import Recipe, Setup
from lerope.train.metrics import Records, line
from lerope.train.mover import Mover
from lerope.train.parallel import Ranks, build, captures
from lerope.train.rundir import RunDirectory
from lerope.train.schedule import factor

# Steps without a recording, in which everything is compiled.
_WARM_STEPS = 3


@dataclass(frozen=True)
class Started:
    """A step whose numbers may still be on their way from the device."""

    step: int
    """Steps finished once this one is."""
    numbers: Tensor
    """On the CPU once `end` is past: loss of all targets, ranks asked to stop, norms of model and of frequencies."""
    end: "Moment"
    num_targets: int
    learning_rate: float
    wait_s: float


class Moment:
    """A point in a device's work: a GPU gets there later than the host."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()
        self._time = time.perf_counter()

    def wait(self) -> None:
        """Returns when the device is there."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, other: "Moment") -> float:
        """The device's time between two moments that are past."""
        if self._event is not None and other._event is not None:
            return float(other._event.elapsed_time(self._event)) / 1000
        return self._time - other._time


class Trainer:
    """One run on this rank."""

    def __init__(
        self,
        recipe: Recipe,
        setup: Setup,
        corpus: Corpus,
        loader: Loader,
        encoding: Encoding,
        run: RunDirectory,
        ranks: Ranks,
        micro_batch_rows: int,
        peak_flops: float | None = None,
    ) -> None:
        """Builds the model and its optimizer.

        Args:
            micro_batch_rows: rows that go through the model at once.
            peak_flops: what this kind of device can do at most, if that is known.
        """
        self.recipe, self.setup, self.corpus, self.loader = recipe, setup, corpus, loader
        self.run, self.ranks, self.micro_batch_rows, self.peak_flops = run, ranks, micro_batch_rows, peak_flops
        self.rotary = choose(setup.kernel, frequencies=encoding.theta.to(ranks.device))
        self.attention = ranks.first(self._attention)
        self.replica = build(recipe.model, encoding, recipe.seed, setup, ranks)
        self.model = self.replica.model
        self.model.use_kernel(setup.kernel)
        self.model.z_weight = recipe.z_loss
        # What an encoding of one's own does in Python would be recorded once and never done again.
        own = type(encoding).__module__.partition(".")[0] != "lerope"
        self.captures = captures(setup, ranks) and not (own and setup.graph == "auto")
        self._captured: Captured | None = None
        self._num_warm_steps = 0
        self._num_documents = 0
        self._mover = Mover(ranks.device) if ranks.device.type == "cuda" else None
        self.learns = bool(frequency_parameters(self.model))
        rates = (recipe.learning_rate, recipe.torch_weight_decay, recipe.frequency_learning_rate)
        groups = [{**group, "peak": group["lr"]} for group in param_groups(self.model, *rates)]
        self.optimizer = torch.optim.AdamW(groups, betas=recipe.betas, eps=recipe.eps, fused=True)
        checkpoint.prepare_moments(self.optimizer, 0)
        limits = (recipe.row_length, micro_batch_rows, recipe.validation_tokens)
        self.validation = validation_batches(corpus.validation, *limits, ranks.rank, ranks.num_ranks)

    def resume(self) -> tuple[int, list[str]]:
        """Goes to the newest whole checkpoint: the steps it has, 0 without one, and a word on each damaged one."""
        found, complaints = checkpoint.newest(self.run.checkpoints, self.ranks)
        step = 0 if found is None else found.step
        if found is not None:
            checkpoint.prepare_moments(self.optimizer, step)
            checkpoint.load(found, checkpoint.training_state(self.model, self.optimizer))
        if self.ranks.is_main:
            self.run.rewind(-1 if found is None else step)
        return step, complaints

    def train(self, start: int, signals: Signals, records: Records | None, display: Display | None) -> int:
        """Trains from step `start` until the end of the recipe, or until asked to stop; the steps done by then.

        Args:
            start: what `resume` returned.
            signals: one on any rank stops the run on all, after the step at hand and a checkpoint.
            records, display: the main rank's; None elsewhere.
        """
        self.signals, self.records, self.display = signals, records, display
        recipe, setup = self.recipe, self.setup
        if start == 0:
            self._record_frequencies(0)
        frequency_steps = math.ceil(recipe.steps / setup.frequency_records)
        pending: Started | None = None
        stopping = False
        self._clock = Moment(self.ranks.device)
        self._rate = 0.0
        batches = self.loader.ahead(start, recipe.steps)
        step = start
        while step < recipe.steps and not stopping:
            pending, before = self._step(step, batches), pending
            step = pending.step
            # A GPU works on this step while the host reads the numbers of the one before.
            stopping = self._report(before)
            validate = step % setup.validation_steps == 0 or step == recipe.steps
            record = self.learns and (step % frequency_steps == 0 or step == recipe.steps)
            save = step % setup.checkpoint_steps == 0 or step == recipe.steps or stopping
            if validate or record or save or self.ranks.device.type == "cpu":
                stopping |= self._report(pending)
                pending = None
            if record:
                self._record_frequencies(step)
            if validate:
                self._validate(step)
            if save or stopping:
                self._save(step)
        batches.close()
        return step

    def kernels(self) -> str:
        """What computes rotations, matrix products and attention, for people."""
        if self.ranks.device.type == "cpu":
            return f"rotary {self.rotary}, attention {self.attention}"
        example = torch.empty(0, dtype=self._compute_dtype, device=self.ranks.device)
        reason = "asked for" if self.setup.kernel == "reference" else products.obstacle(example)
        chosen = "quack" if reason is None else f"torch ({reason})"
        return f"rotary {self.rotary}, products {chosen}, attention {self.attention}"

    def weights(self) -> dict[str, Tensor]:
        """The whole weights on the CPU, by name, on the main rank; nothing elsewhere. Every rank calls this."""
        found: dict[str, Tensor] = {}
        for name, value in self.model.state_dict().items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            if self.ranks.is_main:
                found[name] = whole.detach().cpu()
        return found

    def _step(self, step: int, batches: Any) -> Started:
        recipe, ranks = self.recipe, self.ranks
        asked = time.perf_counter()
        batch, num_targets = next(batches)
        wait_s = time.perf_counter() - asked
        gamma = factor(recipe.schedule, step, recipe.steps, recipe.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * gamma
        inputs = self._moved(batch)
        scale = ranks.num_ranks / max(num_targets, 1)
        inputs["scale"] = torch.full((), scale, dtype=torch.float64, device=ranks.device)
        self._count_documents(batch)
        accumulate = self._warm_accumulate()
        sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
        starts = range(0, len(batch.tokens), self.micro_batch_rows)
        for first in starts:
            rows = slice(first, first + self.micro_batch_rows)
            part = {name: tensor if tensor.ndim == 0 else tensor[rows] for name, tensor in inputs.items()}
            with self.replica.sync(first == starts[-1]):
                sums[0] += accumulate(part, first == 0)
        if step == 0 and self.learns and recipe.row_length > 1:
            check_gradients(self.model)
        norms = clip_grad_norm_(self.model, recipe.max_norm, recipe.frequency_max_norm)
        self.optimizer.step()
        sums[1].fill_(float(self.signals.received is not None))  # an assignment would wait for the device
        numbers = torch.stack([*ranks.sum(sums).unbind(), *(norm.to(sums) for norm in norms)])
        if ranks.device.type == "cuda":
            # Only a copy into pinned memory lets the host go on.
            numbers = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
        return Started(step + 1, numbers, Moment(ranks.device), num_targets, recipe.learning_rate * gamma, wait_s)

    @property
    def _compute_dtype(self) -> torch.dtype:
        return torch.float32 if self.recipe.precision == "float32" else torch.bfloat16

    def _attention(self) -> Backend:
        """How to attend: as asked, or the fastest for documents that lie as in the first micro-batch."""
        setup, recipe, device = self.setup, self.recipe, self.ranks.device
        if setup.attention != "auto":
            return setup.attention
        if device.type == "cpu":
            return "sdpa"
        batch, _ = self.loader.load(0)
        ids = torch.from_numpy(batch.document_ids[: self.micro_batch_rows])
        return fastest(ids, recipe.model.num_heads, recipe.model.head_dim, self._compute_dtype, device)

    def _moved(self, batch: Batch) -> dict[str, Tensor]:
        """A batch on the device; a GPU copies it while it still works on the step before."""
        fields = ("tokens", "targets", "positions", "document_ids", "centres")
        arrays = [getattr(batch, field) for field in fields]
        if self._mover is None:
            return {field: torch.from_numpy(array) for field, array in zip(fields, arrays, strict=True)}
        return dict(zip(fields, self._mover.move(arrays).unbind(), strict=True))

    def _count_documents(self, batch: Batch) -> None:
        """Makes room for the documents of a micro-batch; a recording with less room is made again."""
        if self.attention not in ("varlen", "flash4"):
            return  # the others have no list of documents
        ids = batch.document_ids
        ends = 1 + np.count_nonzero(ids[:, 1:] != ids[:, :-1], axis=1)
        most = max(
            int(ends[first : first + self.micro_batch_rows].sum())
            for first in range(0, len(ends), self.micro_batch_rows)
        )
        if most > self._num_documents:
            # With room to spare, because steps are recorded anew.
            self._num_documents, self._captured, self._num_warm_steps = most * 5 // 4, None, 0

    def _warm_accumulate(self) -> Callable[[dict[str, Tensor], bool], Tensor]:
        """What adds a micro-batch's gradients: from a recording once there is nothing left to compile."""
        self._num_warm_steps += 1
        if not self.captures or self._num_warm_steps <= _WARM_STEPS:
            self.optimizer.zero_grad(set_to_none=True)
            return lambda inputs, first: self._accumulate(inputs)
        if self._captured is None:
            self._captured = Captured(self._accumulate, self.model.parameters())
        return self._captured

    def _accumulate(self, inputs: dict[str, Tensor]) -> Tensor:
        """Adds the gradients of a micro-batch to those that are there; the sum of its losses."""
        loss = self._loss(inputs)
        # Ranks' gradients are averaged, so that `scale` gives the mean over all targets of the batch.
        (loss * inputs["scale"]).backward()
        return loss.detach()

    def _loss(self, inputs: dict[str, Tensor]) -> Tensor:
        """The sum of the losses of some rows."""
        fields = ("tokens", "targets", "positions", "centres")
        mask = DocumentMask(inputs["document_ids"], self.attention, self._num_documents)
        with self._autocast():
            loss: Tensor = self.replica.module(**{field: inputs[field] for field in fields}, document_ids=mask)
        return loss

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.precision == "float32":
            return nullcontext()
        return torch.autocast(self.ranks.device.type, torch.bfloat16)

    def _report(self, started: Started | None) -> bool:
        """Records a step, and says whether any rank was asked to stop."""
        if started is None:
            return False
        started.end.wait()
        total, stops, norm, frequency_norm = started.numbers.tolist()
        loss = total / max(started.num_targets, 1)
        seconds, self._clock = started.end.seconds_since(self._clock), started.end
        tokens = self.recipe.batch_tokens
        # A moving average, so that the time left does not jump.
        self._rate = tokens / seconds if self._rate == 0 else 0.9 * self._rate + 0.1 * tokens / seconds
        flops = flops_per_token(self.recipe.model, self.recipe.row_length) * tokens / seconds
        share = None if self.peak_flops is None else flops / (self.peak_flops * self.ranks.num_ranks)
        record = {
            "step": started.step,
            "tokens": started.step * tokens,
            "loss": loss,
            "learning_rate": started.learning_rate,
            "gradient_norm": norm,
            "frequency_gradient_norm": frequency_norm if self.learns else None,
            "seconds": seconds,
            "wait_seconds": started.wait_s,
            "tokens_per_second": tokens / seconds,
            "share_of_peak": share,
        }
        if not all(map(math.isfinite, (loss, norm, frequency_norm))):
            raise ValueError(
                f"loss is {loss}, the gradient's norm {norm} and the frequencies' {frequency_norm} at step "
                f"{started.step:,}: training has diverged; lower learning_rate in a new run, the last checkpoint is "
                "whole."
            )
        if self.records is not None:
            self.records.metrics(record)
        if self.display is not None:
            left = (self.recipe.steps - started.step) * tokens / self._rate
            self.display.show(line({**record, "tokens_per_second": self._rate}, self.recipe.steps, left))
        self._loss_now = loss
        return bool(stops > 0)

    def _record_frequencies(self, step: int) -> None:
        artifact = self.model.encoding.artifact()  # FSDP2 gathers, so every rank takes part
        # Log-scales and the base say it all, except where a band does not turn or there is no base.
        scales = {"log_scales": artifact.log_scales} if artifact.log_scales is not None else {}
        frequencies = {} if self.learns and scales else {"frequencies": artifact.frequencies}
        if self.records is not None:
            self.records.frequencies({"step": step, **scales, **frequencies})

    @torch.no_grad()
    def _validate(self, step: int) -> None:
        sums = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        for rows in self.validation:
            batch = assemble(self.corpus.validation, rows, self.recipe.row_length)
            self._count_documents(batch)
            sums[0] += self._loss(self._moved(batch))
            sums[1] += batch.num_targets
        total, count = self.ranks.sum(sums).tolist()
        if self.records is not None:
            self.records.metrics({"step": step, "validation_loss": total / count, "validation_tokens": int(count)})
        if self.display is not None:
            losses = f"loss {self._loss_now:.4f}  validation loss {total / count:.4f}"
            self.display.say(f"step {step:,}/{self.recipe.steps:,}  {losses}")
        self._clock = Moment(self.ranks.device)

    def _save(self, step: int) -> None:
        if self.records is not None:
            self.records.sync()
        state = checkpoint.training_state(self.model, self.optimizer)
        checkpoint.save(self.run.checkpoints, step, state, self.ranks, self.setup.keep_checkpoints)
        self._clock = Moment(self.ranks.device)


def last_validation_loss(run: RunDirectory) -> float | None:
    """The newest validation loss in a run's metrics."""
    found = [record["validation_loss"] for record in read_records(run.path / METRICS) if "validation_loss" in record]
    return found[-1] if found else None
