"""Training learned frequencies: parameter groups, independent clipping, and proof that gradients arrive."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lerope.rotary.encodings import Encoding
from lerope.rotary.frequencies import check_number


def frequency_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters that encodings own, by name, each once."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    owned = {id(p) for m in model.modules() if isinstance(m, Encoding) for p in m.parameters(recurse=False)}
    return {name: p for name, p in model.named_parameters() if id(p) in owned and p.requires_grad}


def param_groups(
    model: nn.Module, lr: float, weight_decay: float, frequency_lr: float | None = None
) -> list[dict[str, Any]]:
    """Optimizer groups: decayed matrices, undecayed rest, and the frequencies on their own without decay.

    Embeddings, gains and biases are not decayed. Every trainable parameter is in exactly one group; empty groups are
    left out.

    Args:
        frequency_lr: learning rate of the frequencies; that of the model unless given, as in the paper.
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
    """Clips the gradients of the frequencies and those of everything else, each by their own global norm.

    Works on plain tensors, on DTensors of any mesh, and on both in one model.
    """
    for field, value in (("max_norm", max_norm), ("frequency_max_norm", frequency_max_norm)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{field} must be positive; got {value!r}.")
    frequencies = frequency_parameters(model)
    rest = [p for name, p in model.named_parameters() if name not in frequencies]
    return GradientNorms(_clip(rest, max_norm), _clip(frequencies.values(), frequency_max_norm))


def _clip(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    # One norm cannot mix plain tensors with DTensors or meshes with each other, so each kind gives a number of its own.
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = [_plain(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in kinds.values()]
    if not norms:
        return torch.zeros(())
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    for group in kinds.values():
        nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


def check_gradients(model: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, float]:
    """Proves that a model's frequencies receive their gradient; raises a ValueError that says which do not.

    Fused kernels and library code often return no gradient for frequencies, or only part of it, and training goes on
    without a word. Call this once after building a model: it runs the model forward and backward and compares the
    gradient with a finite difference (in float32; with 16-bit outputs it only looks for missing gradients). After a
    `backward()` of your own, call it without inputs and it looks at the gradients that are there.

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
    try:
        for parameter, _ in before:
            parameter.grad = None
        with torch.enable_grad():
            loss, wide = _objective(model, inputs, kwargs)
            if loss.requires_grad:
                loss.backward()
        norms = {name: _norm(name, p.grad) for name, p in parameters.items()}
        for name, parameter in parameters.items() if wide else ():
            slope = _slope(model, inputs, kwargs, parameter)
            if abs(slope - norms[name]) > 0.1 * max(abs(slope), norms[name]):
                raise ValueError(
                    f"{name} receives a wrong gradient: its norm is {norms[name]:.4g}, but along it the output changes "
                    f"by {slope:.4g} per unit; part of the rotation detaches the frequencies."
                )
        return norms
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _norm(name: str, gradient: Tensor | None) -> float:
    if gradient is None:
        raise ValueError(f"{name} receives no gradient: the rotation detaches the frequencies or never uses them.")
    norm = float(torch.linalg.vector_norm(_plain(gradient)))
    if not math.isfinite(norm) or norm == 0:
        raise ValueError(f"{name} receives a gradient of norm {norm}: the frequencies do not reach the output.")
    return norm


@torch.no_grad()
def _slope(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], parameter: Tensor) -> float:
    """The change of the objective per unit along the parameter's gradient, by a central difference."""
    assert parameter.grad is not None
    step = 1e-3 * parameter.grad / torch.linalg.vector_norm(parameter.grad)
    original = parameter.clone()
    values = []
    for sign in (1, -1):
        parameter.copy_(original + sign * step)
        values.append(float(_objective(model, inputs, kwargs)[0]))
        parameter.copy_(original)
    return (values[0] - values[1]) / 2e-3


def _objective(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, bool]:
    """A fixed random projection of all outputs, summed in float64, and whether they have float32's precision."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            output = model(*inputs, **kwargs)
        except Exception as error:
            raise ValueError(
                f"model could not be run ({type(error).__name__}: {error}); pass it inputs that it takes: "
                "check_gradients(model, *inputs)."
            ) from error
        outputs = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
        total = sum((t.double() * torch.randn_like(t, dtype=torch.float64)).sum().cpu() for t in outputs)
    wide = all(t.dtype in (torch.float32, torch.float64) for t in outputs)
    return torch.as_tensor(total, dtype=torch.float64), wide


def _probe(model: nn.Module) -> Tensor:
    """An input the model is likely to take, from its first embedding or linear layer."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return torch.randint(module.num_embeddings, (2, 32), generator=generator).to(module.weight.device)
        if isinstance(module, nn.Linear):
            return torch.randn(2, 32, module.in_features, generator=generator).to(module.weight)
    raise ValueError("model has no embedding or linear layer to guess inputs from; pass them to check_gradients.")


def _plain(tensor: Tensor) -> Tensor:
    """A DTensor gathered, any other tensor as it is."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
