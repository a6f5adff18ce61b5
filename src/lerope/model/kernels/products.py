"""Matrix products of many tokens with a weight, by QuACK's kernels where they can run.

On an H200 under full load they take up to 20 % less time than cuBLAS for most shapes of the ladder, and they can do a
little work on a result before it is written (fused_mlp).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lerope.model.kernels import packages
from lerope.model.precision import compute_dtype
from lerope.rotary import dispatch

_QUACK = packages.version("quack-kernels")


def quack_obstacle(x: Tensor, *weights: Tensor) -> str | None:
    """What keeps QuACK from multiplying x with these weights; None if nothing does."""
    if _QUACK is None:
        return "quack-kernels is not installed"
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"QuACK's products need 16 bits and the input is {x.dtype}"
    reason = dispatch.triton_obstacle(x, *weights) or _machine_obstacle(x.device.index)
    if reason is not None:
        return reason
    for weight in weights:
        if type(weight) not in (Tensor, nn.Parameter):
            return f"QuACK's products do not take {type(weight).__name__}"
        if x.dtype != compute_dtype(weight):
            return f"the input is {x.dtype} and the product {compute_dtype(weight)}"
        if any(size % 8 for size in weight.shape):
            return f"QuACK's products need sizes that are multiples of 8 and the weight's are {tuple(weight.shape)}"
        if x.numel() == 0:
            return "there are no tokens"
    return None


def _machine_obstacle(device: int) -> str | None:
    reason = packages.gpu_obstacle(torch.device("cuda", device))
    return reason or packages.import_obstacle("quack-kernels", "lerope.model.kernels.cute_products")


# A constant to a compiled model. torch.compiler.assume_constant_result does just this, and imports all of Dynamo.
_machine_obstacle._dynamo_marked_constant = True  # type: ignore[attr-defined]


def rows(x: Tensor) -> Tensor:
    """(..., width) -> (tokens, width), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b for (tokens, m) and (m, n), by QuACK."""
    from lerope.model.kernels.cute_products import product

    out = a.new_empty(len(a), b.shape[1])
    product(a, b, out={"D": out}, **settings(a, (128, 192) if b.shape[1] > len(b) else (192, 128)))
    return out


def settings(x: Tensor, tile: tuple[int, int]) -> dict[str, Any]:
    """How QuACK computes: on Hopper in these tiles, which were measured on an H200; elsewhere by its defaults."""
    if torch.cuda.get_device_capability(x.device)[0] != 9:
        return {"tuned": False}
    return {"tuned": False, "config": _config(*tile)}


@cache  # QuACK looks plans up by the identity of this object
def _config(tile_m: int, tile_n: int) -> Any:
    from quack.gemm_config import GemmConfig

    cluster_m, cluster_n = (2, 1) if tile_n == 192 else (1, 2)
    return GemmConfig(
        tile_m=tile_m,
        tile_n=tile_n,
        pingpong=True,  # two tiles take turns, each working while the other finishes
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        is_dynamic_persistent=False,
    )


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T for (tokens, in_width) and (out_width, in_width).

    Args:
        weight: in the dtype of x, or in a wider one, in which its gradient is then summed.
    """
    out: Tensor = linear_forward(x, weight)[0]
    return out


@torch.library.custom_op("lerope::linear", mutates_args=())
def linear_forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What `linear` gives, and for the backward pass the weight in the dtype of x; empty if that is its own."""
    copy = narrowed(weight, x)
    return multiply(x, copy.t()), returned_copy(copy, weight)


@torch.library.custom_op("lerope::linear_backward", mutates_args=())
def linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, dtype: torch.dtype, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight, the latter in its own dtype; empty where they are not needed."""
    x_grad = multiply(grad, weight) if needs[0] else grad.new_empty(0)
    return x_grad, weight_gradient(grad, x, dtype) if needs[1] else grad.new_empty(0, dtype=dtype)


def narrowed(weight: Tensor, x: Tensor) -> Tensor:
    """The weight in the dtype of x."""
    return weight.detach().to(x.dtype)


def returned_copy(copy: Tensor, weight: Tensor) -> Tensor:
    """What an operator, which may not return its input, gives for a copy: nothing if that is the weight itself."""
    return copy.new_empty(0) if copy.dtype == weight.dtype else copy


def weight_gradient(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """grad^T x, a sum over all tokens, not rounded to the 16 bits of x where the dtype differs."""
    if dtype == x.dtype:
        return grad.t() @ x
    if x.is_cuda:
        return torch.mm(grad.t(), x, out_dtype=torch.float32).to(dtype)  # it takes no other dtype
    with torch.autocast(x.device.type, enabled=False):
        return (grad.t().float() @ x.float()).to(dtype)


@linear_forward.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), len(weight)), fake_copy(weight, x)


def fake_copy(weight: Tensor, x: Tensor) -> Tensor:
    """For fakes: what `returned_copy` gives."""
    return x.new_empty(0) if weight.dtype == x.dtype else torch.empty_like(weight, dtype=x.dtype)


@linear_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, dtype: torch.dtype, needs: list[bool]) -> tuple[Tensor, Tensor]:
    shapes = (x.shape if needs[0] else (0,), weight.shape if needs[1] else (0,))
    return grad.new_empty(shapes[0]), grad.new_empty(shapes[1], dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    (x, weight), (_, copy) = inputs, output
    ctx.save_for_backward(x, copy if copy.numel() else weight)
    ctx.dtype = weight.dtype


def _go_back(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None
    needs = list(ctx.needs_input_grad)
    return only(needs, linear_backward(grad.contiguous(), *ctx.saved_tensors, ctx.dtype, needs))


def only(needed: Sequence[bool], grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients for autograd: None where none was requested."""
    return tuple(grad if need else None for need, grad in zip(needed, grads, strict=True))


linear_forward.register_autograd(_go_back, setup_context=_keep)
