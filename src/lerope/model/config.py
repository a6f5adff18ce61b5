"""What a model is made of, and the ladder of models as data."""

from dataclasses import dataclass
from typing import Literal

from lerope.rotary.frequencies import check_choice, check_count, check_rotary_dim

Activation = Literal["gelu", "relu2"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer: pre-norm, QK-norm before the rotation, two-matrix MLP, no biases, untied head."""

    num_layers: int
    num_heads: int
    head_dim: int = 64
    vocab_size: int = 32_000
    activation: Activation = "gelu"
    """Exact GELU as in the paper's recipe, or squared ReLU, which serving engines can run in this shape."""
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_heads", "vocab_size"):
            check_count(field, getattr(self, field))
        check_rotary_dim(self.head_dim, None)
        check_choice("activation", self.activation, Activation)
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"norm_eps must lie between 0 and 1; got {self.norm_eps!r}.")

    @property
    def width(self) -> int:
        """Dimensions of the residual stream."""
        return self.num_heads * self.head_dim

    @property
    def mlp_width(self) -> int:
        """Hidden dimensions of the MLP."""
        return 4 * self.width


def _rung(num_layers: int, vocab_size: int = 32_000) -> ModelConfig:
    """The ladder's rule: four heads of 64 dimensions for every three layers."""
    return ModelConfig(num_layers=num_layers, num_heads=4 * num_layers // 3, vocab_size=vocab_size)


# The paper's five rungs, one below them by the same rule, and that one with a small vocabulary for a laptop.
LADDER: dict[str, ModelConfig] = {
    "demo": _rung(3, vocab_size=2_048),
    "19M": _rung(3),
    "52M": _rung(6),
    "217M": _rung(12),
    "608M": _rung(18),
    "1.34B": _rung(24),
    "2.52B": _rung(30),
}


def rung(name: str) -> ModelConfig:
    """The configuration of a rung by name."""
    if name not in LADDER:
        raise ValueError(f"rung must be one of {', '.join(LADDER)}; got {name!r}.")
    return LADDER[name]
