"""A callback for transformers' Trainer: no weight decay for the frequencies, clipping of their own, a record of them.

Trainer(model=lerope.convert(model), args=args, train_dataset=rows, callbacks=[LeropeCallback()]).train()
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import TrainerCallback

from lerope.interop.huggingface import SHARED, restore, rotary_of
from lerope.rotary.frequencies import wavelengths
from lerope.rotary.optim import GradientNorms, clip_grad_norm_, frequency_parameters

FREQUENCIES = "frequencies.jsonl"


class LeropeCallback(TrainerCallback):  # type: ignore[misc]
    """Trains a converted model's frequencies as they should be, in any Trainer.

    Trainer would decay them like a matrix and clip their gradient together with all others. With this callback they
    are not decayed, `max_grad_norm` counts for the rest of the model alone, and every log entry tells how far the
    frequencies have moved. All log-scales go to `frequencies.jsonl` in the output directory.

    Args:
        frequency_max_norm: the gradient norm to which the frequencies are clipped.
    """

    def __init__(self, frequency_max_norm: float = 1.0) -> None:
        if not frequency_max_norm > 0:
            raise ValueError(f"frequency_max_norm must be positive; got {frequency_max_norm!r}.")
        self.frequency_max_norm = frequency_max_norm
        self.max_norm = math.inf
        self.norms: GradientNorms | None = None
        self.hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        parameters = frequency_parameters(model)
        if not parameters:
            raise ValueError("model has no learnable frequencies; convert it with lerope.convert first.")
        rotary = rotary_of(model)
        if state.global_step > 0 and SHARED not in rotary.encodings and not rotary.restored:
            restore(model, Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self.hooks = undecayed(kwargs["optimizer"], parameters.values())
        # Trainer must not clip all gradients together; what it would have clipped to is kept for the others.
        self.max_norm, args.max_grad_norm = args.max_grad_norm or math.inf, 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.norms = clip_grad_norm_(kwargs["model"], self.max_norm, self.frequency_max_norm)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" not in kwargs["logs"] or not self.hooks:
            return
        scales = log_scales(kwargs["model"])
        numbers = {} if self.norms is None else {"frequency_grad_norm": float(self.norms.frequencies)}
        for kind, encoding in rotary_of(kwargs["model"]).encodings.items():
            prefix = "" if kind == SHARED else f"{kind}_"
            moved = torch.tensor(scales[kind]).abs()
            numbers[f"{prefix}log_scale_max"] = float(moved.max())
            numbers[f"{prefix}log_scale_mean"] = float(moved.mean())
            numbers[f"{prefix}wavelength_min"] = float(wavelengths(encoding.frequencies().detach()).min())
        kwargs["logs"].update(numbers)
        state.log_history[-1].update(numbers)
        if state.is_world_process_zero:
            path = Path(args.output_dir) / FREQUENCIES
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "log_scales": scales.get(SHARED, scales)}) + "\n")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and SHARED not in rotary_of(model).encodings:
            restore(model, best)
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        args.max_grad_norm = 0.0 if math.isinf(self.max_norm) else self.max_norm


@torch.no_grad()
def log_scales(model: Any) -> dict[str, list[float]]:
    """ln(frequency / initial frequency) of every band, for each kind of layer; 0 for bands that never turn."""
    found = {}
    for kind, encoding in rotary_of(model).encodings.items():
        ratio = encoding.frequencies().double() / encoding.theta.double()
        found[kind] = torch.where(encoding.theta == 0, 0.0, ratio.abs().log()).tolist()
    return found


def undecayed(optimizer: Any, parameters: Iterable[Tensor]) -> list[Any]:
    """Keeps an optimizer from decaying these parameters, whatever groups they are in; returns its hooks' handles.

    The parameters have a group of their own while a step is taken and only then: Trainer saves and loads the state of
    an optimizer by the groups it made itself.
    """
    while not isinstance(optimizer, Optimizer) or type(optimizer).__name__ == "AcceleratedOptimizer":
        optimizer = optimizer.optimizer
    apart = {id(parameter) for parameter in parameters}
    groups = optimizer.param_groups
    whole: list[list[Any]] = []

    def split(optimizer: Any, *_: Any) -> None:
        whole[:] = [group["params"] for group in groups]
        for group in list(groups):
            own = [p for p in group["params"] if id(p) in apart]
            if own and group.get("weight_decay"):
                group["params"] = [p for p in group["params"] if id(p) not in apart]
                groups.append({**group, "params": own, "weight_decay": 0.0})

    def join(optimizer: Any, *_: Any) -> None:
        del groups[len(whole) :]
        for group, params in zip(groups, whole, strict=True):
            group["params"] = params

    return [optimizer.register_step_pre_hook(split), optimizer.register_step_post_hook(join)]
