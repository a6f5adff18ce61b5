"""Encodings by name: what `--encoding` takes and what a saved model says about its own.

rope    rope,base=500000    prope,p=0.5    lerope,sharing=layer    nope
runs/52M-lerope-42/model/frequencies.json       another run's frequencies, fixed
my_package.encodings:Wavelet,scale=2            an Encoding of your own
"""

import ast
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from lerope.model.config import ModelConfig
from lerope.rotary.encodings import Encoding, FrozenRoPE, LeRoPE, NoPE, PRoPE, RoPE

NAMES: dict[str, type[Encoding]] = {"nope": NoPE, "rope": RoPE, "prope": PRoPE, "lerope": LeRoPE}


def build_encoding(spec: str, config: ModelConfig) -> Encoding:
    """The encoding that a text names, for a model of this shape.

    An encoding of your own is `module:name[,option=value...]`: a class or function that takes head_dim, and num_layers
    and num_heads if it has parameters of these names, and gives an Encoding.
    """
    name, *parts = spec.split(",")
    if name.endswith(".json"):
        if parts:
            raise ValueError(f"encoding {spec!r}: a frequencies.json takes no options; got {','.join(parts)!r}.")
        return _fits(FrozenRoPE.load(name), config, spec)
    make = NAMES[name] if name in NAMES else _imported(name, spec)
    given = _options(parts, spec)
    accepted = inspect.signature(make).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for option in given:
        if (option not in accepted and not open_ended) or option == "head_dim":
            known = [p for p in accepted if p not in ("head_dim", "num_layers", "num_heads")]
            raise ValueError(
                f"encoding {spec!r}: option {option!r} is unknown; {name} takes {', '.join(known) or 'none'}."
            )
    sizes = {"num_layers": config.num_layers, "num_heads": config.num_heads}
    given |= {size: value for size, value in sizes.items() if size in accepted and size not in given}
    try:
        return _fits(make(head_dim=config.head_dim, **given), config, spec)
    except Exception as error:  # what one's own code raises may be anything
        said = str(error) or type(error).__name__
        hint = "" if name in NAMES else f" ({name} is called with head_dim={config.head_dim})"
        raise ValueError(f"encoding {spec!r}: {said.rstrip('.')}{hint}.") from None


def _options(parts: list[str], spec: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals or not option.isidentifier() or option in options:
            raise ValueError(
                f"encoding {spec!r}: options are name=value, each once, with commas between; got {part!r}."
            )
        try:
            options[option] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[option] = value
    return options


def _imported(path: str, spec: str) -> Callable[..., Any]:
    module, colon, attribute = path.partition(":")
    if not colon:
        raise ValueError(
            f"encoding must be {', '.join(NAMES)}, a frequencies.json or module:name of your own; got {spec!r}."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"encoding {spec!r} cannot be imported: {error}.") from None
    if not callable(found):
        raise ValueError(f"encoding {spec!r} must name a class or function; got {type(found).__name__}.")
    made: Callable[..., Any] = found
    return made


def _fits(encoding: Any, config: ModelConfig, spec: str) -> Encoding:
    if not isinstance(encoding, Encoding):
        raise ValueError(f"{spec} must give a lerope.Encoding; got {type(encoding).__name__}.")
    if encoding.head_dim != config.head_dim:
        raise ValueError(f"{spec} must have the model's head_dim of {config.head_dim}; got {encoding.head_dim}.")
    if encoding.num_layers not in (None, config.num_layers):
        raise ValueError(f"{spec} must have the model's {config.num_layers} layers; got {encoding.num_layers}.")
    bands = encoding.frequencies(None if encoding.num_layers is None else 0).shape[-1]
    if bands != encoding.rotary_dim // 2:
        raise ValueError(f"{spec} must have frequencies of {encoding.rotary_dim // 2} bands; got {bands}.")
    return encoding
