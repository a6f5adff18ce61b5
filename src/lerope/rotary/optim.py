"""Training learned frequencies: parameter groups, independent clipping, and proof that gradients arrive."""

import itertools
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lerope.core.checks import check_number
from lerope.rotary.encodings import Encoding
from lerope.rotary.frequencies import widest


def frequency_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters that encodings own, by name, each once."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    owned = {id(p) for m in model.modules() if isinstance(m, Encoding) for p in m.parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) in owned and p.requires_grad}


def param_groups(
    model: nn.Module, lr: float, weight_decay: float, frequency_lr: float | None = None
) -> list[dict[str, Any]]:
    """Optimizer groups: decayed matrices, the undecayed rest, and the frequencies on their own without decay.

    Embeddings, gains and biases are not decayed. Every trainable parameter is in exactly one group; empty groups are
    left out.

    Args:
        frequency_lr: learning rate of the frequencies; the model's unless given, as in the paper.
    """
    for field, value in (("lr", lr), ("weight_decay", weight_decay), ("frequency_lr", frequency_lr)):
        if value is not None and check_number(field, value) < 0:
            raise ValueError(f"{field} must be 0 or more; got {value!r}.")
    frequencies = {id(p) for p in frequency_parameters(model).values()}
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    groups: dict[str, dict[str, Any]] = {
        "decay": {"params": [], "lr": lr, "weight_decay": weight_decay},
        "no_decay": {"params": [], "lr": lr, "weight_decay": 0.0},
        "frequencies": {"params": [], "lr": lr if frequency_lr is None else frequency_lr, "weight_decay": 0.0},
    }
    for parameter in model.parameters():
        plain = parameter.ndim < 2 or id(parameter) in embeddings
        name = "frequencies" if id(parameter) in frequencies else "no_decay" if plain else "decay"
        if parameter.requires_grad:
            groups[name]["params"].append(parameter)
    return [{"name": name, **group} for name, group in groups.items() if group["params"]]


class GradientNorms(NamedTuple):
    """Norms before clipping."""

    model: Tensor
    frequencies: Tensor


def clip_grad_norm_(model: nn.Module, max_norm: float, frequency_max_norm: float = 1.0) -> GradientNorms:
    """Clips the gradients of the frequencies and those of everything else, each by its own global norm.

    Works on plain tensors, on DTensors of any mesh, and on both in one model.
    """
    for field, value in (("max_norm", max_norm), ("frequency_max_norm", frequency_max_norm)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{field} must be positive; got {value!r}.")
    frequencies = frequency_parameters(model)
    rest = [p for name, p in model.named_parameters() if name not in frequencies]
    # The norm of no gradients is a zero on the others' device, because moving it there would wait for the device.
    device = next((p.device for p in model.parameters()), None)
    return GradientNorms(_clip(rest, max_norm, device), _clip(frequencies.values(), frequency_max_norm, device))


def _clip(parameters: Iterable[nn.Parameter], max_norm: float, device: torch.device | None) -> Tensor:
    # One norm cannot mix plain tensors with DTensors or meshes with each other, so each kind gives its own number.
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = [
        gathered(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in kinds.values()
    ]
    if not norms:
        return torch.zeros((), device=device)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    for group in kinds.values():
        nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


def check_gradients(model: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, float]:
    """Proves that a model's frequencies receive their gradient; raises a ValueError that says which do not.

    Fused kernels and library code often return no gradient for frequencies, or only part of it, and training goes on
    without a word. Call this once after building a model, before wrapping it: it runs the model forward and backward,
    and where everything is float32 compares the gradient with finite differences. In 16 bits or in a distributed run
    it only looks for missing gradients. After a `backward()` of your own, call it without inputs and it looks at the
    gradients that are there.

    Args:
        model: any module that contains encodings. Its weights and gradients stay as they are.
        inputs, kwargs: what to call the model with. Without them a language model gets random token ids and a model
            that starts with a linear layer gets random vectors.

    Returns:
        The gradient norm of every frequency parameter.
    """
    parameters = frequency_parameters(model)
    if not parameters:
        raise ValueError("model has no learnable frequencies: no encoding in it owns a trainable parameter.")
    before = [(p, p.grad) for p in model.parameters()]
    if not inputs and not kwargs:
        if any(gradient is not None for _, gradient in before):
            return {name: _norm(name, p.grad) for name, p in parameters.items()}
        inputs = (_probe(model),)

    def objective() -> Tensor:
        return _objective(model, inputs, kwargs)

    try:
        for parameter, _ in before:
            parameter.grad = None
        with torch.enable_grad():
            loss = objective()
            if loss.requires_grad:
                loss.backward()
        norms = {name: _norm(name, p.grad) for name, p in parameters.items()}
        if _is_exact(model):
            for name, parameter in parameters.items():
                _compare(name, parameter, objective)
        return norms
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _norm(name: str, gradient: Tensor | None) -> float:
    if gradient is None:
        raise ValueError(f"{name} receives no gradient: the rotation detaches the frequencies or never uses them.")
    norm = float(torch.linalg.vector_norm(gathered(gradient)))
    if not math.isfinite(norm) or norm == 0:
        raise ValueError(f"{name} receives a gradient of norm {norm}: the frequencies do not reach the output.")
    return norm


def _is_exact(model: nn.Module) -> bool:
    """Whether finite differences mean something: float32 throughout, and a gradient that is this process's own."""
    wide = all(p.dtype in (torch.float32, torch.float64) for p in model.parameters())
    cast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return wide and not cast and not (torch.distributed.is_available() and torch.distributed.is_initialized())


@torch.no_grad()
def _compare(name: str, parameter: Tensor, objective: Callable[[], Tensor]) -> None:
    """Compares the gradient with central differences along a direction that no part of it can hide from."""
    gradient = parameter.grad
    assert gradient is not None
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)).to(gradient)
    direction = gradient / torch.linalg.vector_norm(gradient) + noise / torch.linalg.vector_norm(noise)
    expected = float((gradient * direction).sum())
    original = parameter.clone()
    slopes = []
    for step in (1e-2, 1e-3, 1e-4):
        values = []
        try:
            for sign in (1, -1):
                parameter.copy_(original + sign * step * direction)
                values.append(float(objective()))
        finally:
            parameter.copy_(original)
        slopes.append((values[0] - values[1]) / (2 * step))
        if math.isclose(slopes[-1], expected, rel_tol=0.05):
            return
    # Differences that disagree with each other, or vanish, are rounding and prove nothing.
    for one, other in itertools.pairwise(slopes):
        if one != 0 and math.isclose(one, other, rel_tol=0.05):
            raise ValueError(
                f"{name} receives a wrong gradient: it predicts a change of {expected:.4g} per unit where the output "
                f"changes by {other:.4g}; part of the rotation detaches the frequencies."
            )


def _objective(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A fixed random projection of all outputs, summed in float64."""
    with _random_state_kept():
        torch.manual_seed(0)
        try:
            output = model(*inputs, **kwargs)
        except Exception as error:
            raise ValueError(
                f"model could not be run ({type(error).__name__}: {error}); pass inputs that it takes: "
                "check_gradients(model, *inputs)."
            ) from error
        outputs = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
        if not outputs:
            raise ValueError(f"model returned no floating-point tensors to check; got {type(output).__name__}.")
        moved = [t.to(widest(t.device)) for t in outputs]
        return torch.stack([(t * torch.randn_like(t)).sum().cpu().double() for t in moved]).sum()


def _probe(model: nn.Module) -> Tensor:
    """Token ids for its first embedding or vectors for its first linear layer; if it has both, what it runs on.

    Where it runs on neither, the guess for the layer that comes first, whose error says what is wrong.
    """
    generator = torch.Generator().manual_seed(0)
    guesses: dict[type[nn.Module], Tensor] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding) and nn.Embedding not in guesses:
            ids = torch.randint(module.num_embeddings, (2, 32), generator=generator)
            guesses[nn.Embedding] = ids.to(module.weight.device)
        elif isinstance(module, nn.Linear) and nn.Linear not in guesses:
            guesses[nn.Linear] = torch.randn(2, 32, module.in_features, generator=generator).to(module.weight)
    if not guesses:
        raise ValueError("model has no embedding or linear layer to guess inputs from; pass them to check_gradients.")
    first, *others = guesses.values()
    for guess in (first, *others) if others else ():
        with torch.no_grad(), _random_state_kept(), suppress(Exception):
            model(guess)
            return guess
    return first


def _random_state_kept() -> AbstractContextManager[None]:
    """Of all devices, named one by one: where there are several, torch warns if they are not."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=range(torch.accelerator.device_count()), device_type=device.type)


def gathered(tensor: Tensor) -> Tensor:
    """A DTensor gathered, any other tensor as it is."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
