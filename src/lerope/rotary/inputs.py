"""What people give to a rotation: its order of dimensions, its positions, and checks of both."""

import reprlib
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor


def heads_last(name: str, x: Tensor, heads_first: bool | None) -> Tensor:
    """x as (..., length, heads, head_dim), from (..., heads, length, head_dim) where heads come first."""
    if heads_first not in (None, True, False):
        raise ValueError(f"heads_first must be True or False; got {heads_first!r}.")
    return check_heads(name, x).transpose(-3, -2) if heads_first else x


def as_positions(positions: Tensor | int, given: Sequence[Tensor], heads_first: bool | None = None) -> Tensor:
    """Positions as a tensor with a length: a single integer is the position of the first token of what is given.

    Where it is open which dimension holds the tokens, and `heads_first` was not said, a single integer raises and
    positions of tokens warn.
    """
    length, device = given[0].shape[-3], given[0].device
    is_one = isinstance(positions, int) and not isinstance(positions, bool)
    if not is_one and check_positions(positions).ndim:
        assert isinstance(positions, Tensor)
        if heads_first is None and not torch.compiler.is_compiling():
            _warn_if_square(positions, given)
        return positions
    if heads_first is None and length > 1 and all(x.shape[-2] == 1 for x in given):
        raise ValueError(
            f"a tensor of shape {tuple(given[0].shape)} may be {length} tokens of one head, or one token of {length} "
            "heads if they come first; pass heads_first=False or heads_first=True."
        )
    positions = positions + torch.arange(length, device=device)
    if heads_first is None and not torch.compiler.is_compiling():
        _warn_if_square(positions, given)
    return positions


def _warn_if_square(positions: Tensor, given: Sequence[Tensor]) -> None:
    """Warns where there are as many tokens as heads, so that nothing shows which come first.

    No error: a text may have as many tokens as there are heads, and other lengths of the same caller are no question.
    """
    length = given[0].shape[-3]
    if length > 1 and all(x.shape[-2] == length for x in given) and positions.shape[-1] > 1:
        warnings.warn(
            f"a tensor of shape {tuple(given[0].shape)} has as many heads as tokens and was turned as (..., length, "
            "heads, head_dim); pass heads_first=True if heads come first, and False if this is right.",
            stacklevel=3,
        )


def check_positions(positions: object) -> Tensor:
    """Raises unless `positions` is an integer tensor."""
    if not isinstance(positions, Tensor):
        raise ValueError(f"positions must be a tensor of integers; got {reprlib.repr(positions)}.")
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise ValueError(f"positions must be integers; got {positions.dtype}; pass positions.long().")
    return positions


def check_heads(name: str, x: object, head_dim: int | None = None) -> Tensor:
    """Raises unless `x` is a floating tensor of shape (..., length, heads, head_dim)."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name} must be a floating-point tensor; got {got}.")
    if x.ndim < 3:
        raise ValueError(f"{name} must have shape (..., length, heads, head_dim); got {tuple(x.shape)}.")
    if head_dim is not None and x.shape[-1] != head_dim:
        raise ValueError(f"{name} must have head_dim {head_dim}; got {x.shape[-1]}.")
    return x
