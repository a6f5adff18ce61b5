"""Which encoding `lerope.convert` gives a model: what text or an encoding says, checked against the model."""

from typing import Any

import torch
from torch import Tensor

from lerope.core.encoding import Layout
from lerope.interop.probe import rope_parameters
from lerope.interop.rotary import SHARED
from lerope.rotary.encodings import Encoding, FrozenRoPE, LeRoPE


def make_encoding(
    spec: str | Encoding, kind: str, theta: Tensor, saved: dict[str, Any] | None, config: Any, layout: Layout
) -> Encoding:
    """The encoding that `spec` names, at the model's frequencies or where a saved folder left off; or is."""
    if not isinstance(spec, str | Encoding):
        raise ValueError(f"encoding must be text or a lerope.Encoding; got {type(spec).__name__}.")
    name, _, option = spec.partition(",") if isinstance(spec, str) else ("", "", "")
    head_dim = max(_head_dim(config), 2 * len(theta))
    base = rope_parameters(config, kind).get("rope_theta")
    encoding: Encoding
    if isinstance(spec, Encoding):
        encoding = _given(spec, type(spec).__name__, kind, theta, head_dim, layout)
    elif name.startswith("preset:"):
        raise ValueError(
            f"encoding {spec!r} does not say for which train length; give encoding=lerope.preset("
            f"{name.partition(':')[2]!r}, head_dim={2 * len(theta)}, train_length=...)."
        )
    elif name.endswith(".json"):
        if option not in ("", "head_dim=resample"):
            raise ValueError(f"encoding {spec!r} takes no option but head_dim=resample; got {option!r}.")
        loaded = FrozenRoPE.load(name, 2 * len(theta) if option else None)
        encoding = _given(loaded, spec, kind, theta, head_dim, layout)
    elif name not in ("lerope", "frozen") or (option and not spec.startswith("lerope,parametrization=")):
        raise ValueError(
            "encoding must be lerope, lerope,parametrization=log, linear or direct, frozen, or a frequencies.json; "
            f"got {spec!r}."
        )
    else:
        asked: Any = option.partition("=")[2]
        stored = (saved or {}).get("parametrization")
        if asked and stored and asked != stored:
            raise ValueError(
                f"encoding {spec!r} differs from the folder's, which learned with parametrization={stored}; use "
                "encoding='lerope' to continue, or delete the lerope entry of its config.json to start again."
            )
        start = theta if saved is None else torch.tensor(saved["theta"])
        encoding = LeRoPE.starting_at(start, head_dim, asked or stored or "log", layout=layout)
        if saved is not None and "alpha" in saved:
            with torch.no_grad():
                encoding.alpha.copy_(torch.tensor(saved["alpha"]))
        _check_same(encoding.frequencies().detach(), theta, saved)
        encoding = encoding.freeze() if name == "frozen" else encoding
    encoding.base = None if base is None else float(base)
    return encoding


def _head_dim(config: Any) -> int:
    """Dimensions of one head; raises where layers differ."""
    if getattr(config, "is_heterogeneous", False):
        raise ValueError(
            f"a {config.model_type} model has heads of several sizes, which the config convert saves cannot express."
        )
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _check_same(frequencies: Tensor, theta: Tensor, saved: dict[str, Any] | None) -> None:
    """Raises if a folder's RoPE was changed after we wrote it."""
    # The recipe's factors give the frequencies back to a rounding or two of float32.
    if saved is not None and not torch.allclose(frequencies, theta.cpu(), rtol=1e-6, atol=1e-25):
        raise ValueError(
            "config.json has frequencies other than its lerope entry's, so one of them was changed by hand; delete "
            "the entry to start from the others."
        )


def _given(given: Encoding, name: str, kind: str, theta: Tensor, head_dim: int, layout: Layout) -> Encoding:
    """An encoding of the user's for the model, if it fits: its frequencies, learned if it is a LeRoPE."""
    if kind != SHARED:
        raise ValueError(f"encoding {name!r} is one set of frequencies, but the model has one per kind of layer.")
    if given.sharing != "shared" or given.rotary_dim != 2 * len(theta):
        raise ValueError(
            f"{name} must have one set of {len(theta)} bands for this model; got {given.rotary_dim // 2} bands with "
            f"sharing={given.sharing!r}."
        )
    learns = any(p.requires_grad for p in given.parameters())
    if learns and not isinstance(given, LeRoPE):
        raise ValueError(f"{name} must be a LeRoPE to be learned in this model; freeze it with .freeze() if need be.")
    # Cosines and sines go to dimensions as the model pairs them, whatever the layout of the model they come from.
    values = given.frequencies().detach()
    made: Encoding
    if isinstance(given, LeRoPE) and learns:
        made = LeRoPE.starting_at(values, head_dim, given.parametrization, layout=layout)
    else:
        made = FrozenRoPE(values, head_dim, layout=layout)
    made.origin = given.origin
    return made
