"""A callback for transformers' Trainer: no weight decay for the frequencies, clipping of their own, a record of them.

Trainer(model=lerope.convert(model), args=args, train_dataset=rows, callbacks=[LeropeCallback()]).train()
"""

import json
import math
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from lerope.core.files import parse_object, read_bytes
from lerope.core.run import HISTORY
from lerope.interop.adapters import save_as_adapter
from lerope.interop.huggingface import rotary_of, saved_sets, set_frequencies
from lerope.interop.rotary import SHARED, Rotary
from lerope.rotary.encodings import Encoding
from lerope.rotary.frequencies import wavelengths
from lerope.rotary.optim import GradientNorms, clip_grad_norm_, frequency_parameters

# Where Trainer keeps what `state` gives, in each checkpoint.
_STATE = "trainer_state.json"
# Holds the user's max_grad_norm on the arguments while a callback clips: arguments outlive an interrupted training.
_MAX_NORM = "lerope_max_grad_norm"


class LeropeCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Trains learned frequencies as they should be, in any Trainer: of a converted model or of a ladder model.

    Trainer would decay them like a matrix and clip their gradient together with all others. With this callback they
    are not decayed, `max_grad_norm` applies only to the rest of the model, and every log entry says how far the
    frequencies have moved. All log-scales go to `frequencies.jsonl` in the output directory. Where a checkpoint's
    weights cannot hold the frequencies its `trainer_state.json` does, and a resume takes them from there.

    Args:
        frequency_max_norm: the gradient norm to which the frequencies are clipped.
    """

    def __init__(self, frequency_max_norm: float = 1.0) -> None:
        if not frequency_max_norm > 0:
            raise ValueError(f"frequency_max_norm must be positive; got {frequency_max_norm!r}.")
        self.frequency_max_norm = frequency_max_norm
        self.norms: GradientNorms | None = None
        self.hook: Any = None
        self.model: Any = None
        self.gathered: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """What Trainer writes into every checkpoint's trainer_state.json."""
        carries = _is_converted(self.model) and not rotary_of(self.model).in_weights
        sets = (self.gathered or saved_sets(rotary_of(self.model))) if carries else None
        return {"args": {"frequency_max_norm": self.frequency_max_norm}, "attributes": {"sets": sets}}

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if _is_converted(kwargs["model"]):
            rotary = rotary_of(kwargs["model"])
            rotary.warns = rotary.in_weights  # else weights without frequencies lose nothing: `state` has them
            if hasattr(kwargs["model"], "peft_config"):
                save_as_adapter(kwargs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.model = kwargs["model"]
        parameters = frequency_parameters(self.model)
        if not parameters:
            raise ValueError(
                "model has no learnable frequencies; convert it with lerope.convert first, or load a ladder model with "
                "from_pretrained(folder, encoding='lerope')."
            )
        if getattr(args, "use_vllm", False):
            warnings.warn(
                "vLLM is given new weights but no new frequencies, so it writes by those it was started with; set "
                "use_vllm=False.",
                stacklevel=2,
            )
        if state.global_step > 0:
            self._restore(state.stateful_callbacks)
        # Trainer saves the state of callbacks that it finds here, and fails where one is new to a checkpoint.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._remove_hook()  # of a training that was interrupted
        self.hook = undecayed(kwargs["optimizer"], parameters.values())
        # Trainer must not clip all gradients together; what it would have clipped to is kept for the others.
        if args.max_grad_norm or not hasattr(args, _MAX_NORM):
            setattr(args, _MAX_NORM, args.max_grad_norm)
        args.max_grad_norm = 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.norms = clip_grad_norm_(kwargs["model"], getattr(args, _MAX_NORM) or math.inf, self.frequency_max_norm)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # FSDP2 gathers here, in every process: only one of them asks for `state`.
        spread = any(hasattr(p, "full_tensor") for p in frequency_parameters(self.model).values())
        self.gathered = saved_sets(rotary_of(self.model)) if spread and _is_converted(self.model) else None

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" not in kwargs["logs"] or self.hook is None:
            return
        scales = log_scales(kwargs["model"])
        numbers = {} if self.norms is None else {"frequency_grad_norm": float(self.norms.frequencies)}
        for kind, encoding in _encodings(kwargs["model"]).items():
            prefix = "" if kind == SHARED else f"{kind}_"
            moved = torch.tensor(scales[kind]).abs()
            numbers[f"{prefix}log_scale_max"] = float(moved.max())
            numbers[f"{prefix}log_scale_mean"] = float(moved.mean())
            numbers[f"{prefix}wavelength_min"] = float(wavelengths(_frequencies(encoding)).min())
        kwargs["logs"].update(numbers)
        state.log_history[-1].update(numbers)
        if state.is_world_process_zero:
            path = Path(args.output_dir) / HISTORY
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "log_scales": scales.get(SHARED, scales)}) + "\n")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            path = Path(state.best_model_checkpoint) / _STATE
            content = parse_object(read_bytes(path, "train again")) or {}
            if not isinstance(states := content.get("stateful_callbacks"), dict):
                raise ValueError(f"{path} has no stateful_callbacks, so the best frequencies are lost; train again.")
            self._restore(states)
        self._remove_hook()
        args.max_grad_norm = getattr(args, _MAX_NORM)
        delattr(args, _MAX_NORM)

    def _restore(self, states: dict[str, Any]) -> None:
        """Takes a checkpoint's frequencies, wherever the checkpoint lies and whatever the model was converted from."""
        if not _is_converted(self.model):
            return
        sets = states.get(type(self).__name__, {}).get("attributes", {}).get("sets")
        if sets is not None:
            set_frequencies(self.model, sets)
        elif not rotary_of(self.model).in_weights and not hasattr(self.model, "peft_config"):
            raise ValueError(
                "the checkpoint was written without LeropeCallback, so its frequencies are only in its config.json; "
                "load and convert its folder, and train that without resume_from_checkpoint."
            )

    def _remove_hook(self) -> None:
        if self.hook is not None:
            self.hook.remove()
        self.hook = None


@torch.no_grad()
def log_scales(model: Any) -> dict[str, list[Any]]:
    """ln(frequency / initial frequency) of every band, for each kind of layer; 0 for bands that never turn."""
    found = {}
    for kind, encoding in _encodings(model).items():
        theta = encoding.theta.cpu().double()
        ratio = torch.tensor(encoding.artifact().frequencies).double() / theta
        found[kind] = torch.where(theta == 0, 0.0, ratio.abs().log()).tolist()
    return found


def undecayed(optimizer: Any, parameters: Iterable[Tensor]) -> Any:
    """Keeps an optimizer from decaying these parameters, whatever groups they are in; returns its hook's handle.

    Before each step a twin of the optimizer, with the same state, moves them without decay, and clears their
    gradients. The optimizer's own groups never change: Trainer saves and loads its state by them.
    """
    while not isinstance(optimizer, Optimizer) or type(optimizer).__name__ == "AcceleratedOptimizer":
        optimizer = optimizer.optimizer
    apart = {id(parameter) for parameter in parameters}

    def step_apart(optimizer: Any, *_: Any) -> None:
        twin = object.__new__(type(optimizer))
        vars(twin).update(vars(optimizer))
        twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        twin.param_groups = []
        for group in optimizer.param_groups:
            own = [p for p in group["params"] if id(p) in apart]
            if own and group.get("weight_decay"):
                twin.param_groups.append({**group, "params": own, "weight_decay": 0.0})
        if twin.param_groups:
            type(optimizer).step(twin)
        for group in twin.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return optimizer.register_step_pre_hook(step_apart)


def _is_converted(model: Any) -> bool:
    return model is not None and any(isinstance(module, Rotary) for module in model.modules())


def _encodings(model: Any) -> dict[str, Encoding]:
    """The encodings by kind of layer of a converted model; a ladder model's only one."""
    if _is_converted(model):
        return rotary_of(model).encodings
    return {SHARED: next(module for module in model.modules() if isinstance(module, Encoding))}


@torch.no_grad()
def _frequencies(encoding: Encoding) -> Tensor:
    """The frequencies of all layers."""
    return torch.tensor(encoding.artifact().frequencies, device=encoding.theta.device)
