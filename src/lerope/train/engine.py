"""A model on this rank, its optimizer, and how it takes one step."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lerope.core.recipe import Recipe, Setup
from lerope.data.loader import Batch, Loader
from lerope.model.attention import Backend, DocumentMask
from lerope.model.kernels import products
from lerope.model.kernels.fastest import fastest
from lerope.model.precision import autocast, dtype_of
from lerope.rotary.dispatch import choose
from lerope.rotary.encodings import Encoding
from lerope.rotary.optim import check_gradients, clip_grad_norm_, frequency_parameters, gathered, param_groups
from lerope.train import checkpoint
from lerope.train.captured import Captured
from lerope.train.mover import Mover
from lerope.train.parallel import Ranks, build, captures
from lerope.train.schedule import factor

# Steps before recording, in which everything is compiled.
_WARM_STEPS = 3


class Moment:
    """A point in a device's work; a GPU reaches it later than the host."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()
        self._time = time.perf_counter()

    def wait(self) -> None:
        """Returns when the device has reached it."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, other: "Moment") -> float:
        """The device's time between two past moments."""
        if self._event is not None and other._event is not None:
            return float(other._event.elapsed_time(self._event)) / 1000
        return self._time - other._time


@dataclass(frozen=True)
class Started:
    """A step whose numbers may not have arrived from the device yet."""

    step: int
    """Steps finished, including this one."""
    numbers: Tensor
    """On the CPU after `end`: summed loss, ranks asked to stop, gradient norms of model and frequencies."""
    end: Moment
    num_targets: int
    learning_rate: float

    @property
    def loss(self) -> float:
        """Nats per target; read it only after `end`."""
        return float(self.numbers[0]) / max(self.num_targets, 1)


class Engine:
    """One run's model on this rank.

    Args:
        loader: where its batches come from.
        micro_batch_rows: rows per forward pass.
        weights: what the model starts from; unless given, what follows from the seed.
    """

    def __init__(
        self,
        recipe: Recipe,
        setup: Setup,
        loader: Loader,
        encoding: Encoding,
        ranks: Ranks,
        micro_batch_rows: int,
        weights: dict[str, Tensor] | None = None,
    ) -> None:
        self.recipe, self.setup, self.loader, self.ranks = recipe, setup, loader, ranks
        self.micro_batch_rows = micro_batch_rows
        self.rotary = choose(setup.kernel, frequencies=encoding.theta.to(ranks.device))
        self.attention = ranks.on_main(self._attention)
        self._replica = build(recipe.model, encoding, recipe.seed, setup, ranks, weights)
        self.model = self._replica.model
        self.model.z_weight = recipe.z_loss
        self.model.horizon = recipe.spec.horizon
        # Python code in your own encoding would run once, when recorded, and never again.
        own = type(encoding).__module__.partition(".")[0] != "lerope"
        self._captures = captures(setup, ranks) and not (own and setup.graph == "auto")
        self._captured: Captured | None = None
        self._num_warm_steps = 0
        self._num_documents = 0
        self._mover = Mover(ranks.device) if ranks.device.type == "cuda" else None
        self.learns = bool(frequency_parameters(self.model))
        rates = (recipe.learning_rate, recipe.torch_weight_decay, recipe.frequency_learning_rate)
        groups = param_groups(self.model, *rates)
        self._still: list[nn.Parameter] = []
        """Those that do not learn."""
        if recipe.learn == "rotation":
            groups = _only_rotation(self.model, groups)
            self._still = [p for group in groups if not group["lr"] for p in group["params"]]
        peaks = [{**group, "peak": group["lr"]} for group in groups]
        self.optimizer = torch.optim.AdamW(peaks, betas=recipe.betas, eps=recipe.eps, fused=True)
        checkpoint.prepare_moments(self.optimizer, 0)

    def step(
        self, number: int, batch: Batch, num_targets: int, asked_to_stop: Callable[[], bool] = lambda: False
    ) -> Started:
        """Starts a step on the device without waiting for it.

        Args:
            number: from 0.
            batch, num_targets: what `Loader.load` returns for it.
            asked_to_stop: what it says near the end of the step is sent to all ranks with the step's numbers.
        """
        recipe, ranks = self.recipe, self.ranks
        gamma = factor(recipe.schedule, number, recipe.steps, recipe.warmup_steps)
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
            with self._replica.sync(first == starts[-1]):
                sums[0] += accumulate(part, first == 0)
        if number == 0 and self.learns and recipe.row_length > 1:
            check_gradients(self.model)
        if self._still:
            # They count neither in the norm that gradients are clipped by nor in the moments.
            torch._foreach_zero_([p.grad for p in self._still if p.grad is not None])
        norms = clip_grad_norm_(self.model, recipe.max_norm, recipe.frequency_max_norm)
        self.optimizer.step()
        sums[1].fill_(float(asked_to_stop()))  # an assignment would wait for the device
        numbers = torch.stack([*ranks.sum(sums).unbind(), *(norm.to(sums) for norm in norms)])
        if ranks.device.type == "cuda":
            # Only a copy into pinned memory lets the host continue.
            numbers = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
        return Started(number + 1, numbers, Moment(ranks.device), num_targets, recipe.learning_rate * gamma)

    @torch.no_grad()
    def summed_loss(self, batch: Batch) -> Tensor:
        """The summed loss of a batch of validation rows, on the device."""
        self._count_documents(batch)
        return self._loss(self._moved(batch))

    def state(self) -> dict[str, Tensor]:
        """The tensors that training resumes from, by name; they are the model's and the optimizer's own."""
        return checkpoint.training_state(self.model, self.optimizer)

    def resume(self, store: checkpoint.Store) -> tuple[int, list[str]]:
        """Loads the newest intact checkpoint: its step, 0 without one, and a sentence on each damaged one."""
        found, complaints = store.newest()
        if found is None:
            return 0, complaints
        checkpoint.prepare_moments(self.optimizer, found.step)
        checkpoint.load(found, self.state())
        return found.step, complaints

    def weights(self) -> dict[str, Tensor]:
        """The full weights on the CPU, by name, on the main rank; nothing elsewhere. Every rank must call this."""
        found: dict[str, Tensor] = {}
        for name, value in self.model.state_dict().items():
            whole = gathered(value)
            if self.ranks.is_main:
                found[name] = whole.detach().cpu()
        return found

    def kernels(self) -> str:
        """What computes rotations, matrix products and attention, as text."""
        if self.ranks.device.type == "cpu":
            return f"rotary {self.rotary}, attention {self.attention}"
        example = torch.empty(0, dtype=dtype_of(self.recipe.precision), device=self.ranks.device)
        reason = "requested" if self.setup.kernel == "reference" else products.quack_obstacle(example)
        chosen = "quack" if reason is None else f"torch ({reason})"
        return f"rotary {self.rotary}, products {chosen}, attention {self.attention}"

    def _attention(self) -> Backend:
        """The attention backend: as requested, or the fastest for documents as in the first micro-batch."""
        setup, recipe, device = self.setup, self.recipe, self.ranks.device
        if setup.attention != "auto":
            return setup.attention
        if device.type == "cpu":
            return "sdpa"
        batch, _ = self.loader.load(0)
        ids = torch.from_numpy(batch.document_ids[: self.micro_batch_rows])
        return fastest(ids, recipe.model.num_heads, recipe.model.head_dim, dtype_of(self.recipe.precision), device)

    def _moved(self, batch: Batch) -> dict[str, Tensor]:
        """A batch on the device; a GPU copies it while still working on the previous step."""
        fields = ("tokens", "targets", "positions", "document_ids", "centres")
        arrays = [getattr(batch, field) for field in fields]
        if self._mover is None:
            return {field: torch.from_numpy(array) for field, array in zip(fields, arrays, strict=True)}
        return dict(zip(fields, self._mover.move(arrays).unbind(), strict=True))

    def _count_documents(self, batch: Batch) -> None:
        """Makes room for the documents of a micro-batch; a recording with less room is made again."""
        if self.attention not in ("varlen", "flash4"):
            return  # the others keep no list of documents
        ids = batch.document_ids
        ends = 1 + np.count_nonzero(ids[:, 1:] != ids[:, :-1], axis=1)
        most = max(
            int(ends[first : first + self.micro_batch_rows].sum())
            for first in range(0, len(ends), self.micro_batch_rows)
        )
        if most > self._num_documents:
            # With room to spare, because this re-records steps.
            self._num_documents, self._captured, self._num_warm_steps = most * 5 // 4, None, 0

    def _warm_accumulate(self) -> Callable[[dict[str, Tensor], bool], Tensor]:
        """What adds a micro-batch's gradients: a recording, once there is nothing left to compile."""
        self._num_warm_steps += 1
        if not self._captures or self._num_warm_steps <= _WARM_STEPS:
            self.optimizer.zero_grad(set_to_none=True)
            return lambda inputs, first: self._accumulate(inputs)
        if self._captured is None:
            self._captured = Captured(self._accumulate, self.model.parameters())
        return self._captured

    def _accumulate(self, inputs: dict[str, Tensor]) -> Tensor:
        """Adds the gradients of a micro-batch to the existing ones; returns its summed loss."""
        loss = self._loss(inputs)
        # Gradients are averaged over ranks, so `scale` gives the mean over all targets of the batch.
        (loss * inputs["scale"]).backward()
        return loss.detach()

    def _loss(self, inputs: dict[str, Tensor]) -> Tensor:
        """The summed loss of some rows."""
        fields = ("tokens", "targets", "positions", "centres")
        mask = DocumentMask(inputs["document_ids"], self.attention, self._num_documents)
        with autocast(self.ranks.device, self.recipe.precision):
            loss: Tensor = self._replica.module(**{field: inputs[field] for field in fields}, document_ids=mask)
        return loss


def _only_rotation(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Optimizer groups in which all but frequencies and the gains of QK-norm have a learning rate of zero.

    With that AdamW leaves them as they are, bit for bit.
    """
    gains = {id(p) for name, p in model.named_parameters() if name.endswith((".q_norm.weight", ".k_norm.weight"))}
    split = []
    for group in groups:
        learns = [group["name"] == "frequencies" or id(p) in gains for p in group["params"]]
        for moves, lr in ((True, group["lr"]), (False, 0.0)):
            some = [p for p, each in zip(group["params"], learns, strict=True) if each == moves]
            split += [{**group, "params": some, "lr": lr}] if some else []
    return split
