"""Encodings by name: builds what `lerope.core.encoding` reads."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from lerope.core.checks import hint
from lerope.core.encoding import FAMILIES, FROZEN, POSITIONS, PRESET, RESAMPLE, EncodingSpec
from lerope.core.ladder import ModelConfig
from lerope.core.own_code import own_code
from lerope.rotary.encodings import Encoding, FrozenRoPE, LeRoPE, NoPE, PRoPE, RoPE
from lerope.rotary.preset import load_preset

CLASSES: dict[str, type[Encoding]] = {"nope": NoPE, "rope": RoPE, "prope": PRoPE, "lerope": LeRoPE}


def build_encoding(
    text: str, config: ModelConfig, train_length: int | None = None, start: Encoding | None = None
) -> Encoding:
    """The encoding that a text names, for a model of this shape, and where it is a preset for rows of this length.

    Learned frequencies start from those of `start`, unless the text says where they start.

    An encoding of your own is `module:name[,option=value...]`: a class or function that takes head_dim, and num_layers
    and num_heads if it has parameters by these names, and returns an Encoding.
    """
    spec = EncodingSpec.parse(text)
    if spec.family == FROZEN:
        if spec.path is None:
            raise ValueError("encoding 'frozen' needs frequencies; name a frequencies.json.")
        head_dim = config.head_dim if dict(spec.options).get("head_dim") == RESAMPLE else None
        return _fits(FrozenRoPE.load(spec.path, head_dim), config, text)
    if spec.family == PRESET:
        return _fits(_preset(f"{PRESET}:{spec.path}", config, train_length), config, text)
    make = CLASSES.get(spec.family) or _imported(spec.family, text)
    given = {option: value for option, value in spec.options if option not in POSITIONS}
    if spec.family == "lerope" and "init" in given:
        given["init"] = _preset(given["init"], config, train_length)
    elif spec.family == "lerope" and start is not None:
        given["init"] = start
    accepted = inspect.signature(make).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    is_own = spec.family not in FAMILIES
    if is_own and start is not None and "init" in accepted:
        given.setdefault("init", start)
    for option in given:
        if (option not in accepted and not open_ended) or option == "head_dim":
            known = [p for p in accepted if p not in ("head_dim", "num_layers", "num_heads")]
            takes = f"{spec.family} takes {', '.join(known) or 'none'}{hint(option, known)}"
            raise ValueError(f"encoding {text!r}: option {option!r} is unknown; {takes}")
    sizes = {"num_layers": config.num_layers, "num_heads": config.num_heads}
    given |= {size: value for size, value in sizes.items() if size in accepted and size not in given}
    try:
        made = _fits(make(head_dim=config.head_dim, **given), config, text)
        if is_own and start is not None and "init" not in given and any(True for _ in made.parameters()):
            raise ValueError("it learns, and cannot start from a run's frequencies without a parameter named init")
        return made
    except Exception as error:  # what your own code raises may be anything
        said = str(error) or type(error).__name__
        called = "" if spec.family in FAMILIES else f" ({spec.family} is called with head_dim={config.head_dim})"
        raise ValueError(f"encoding {text!r}: {said.rstrip('.')}{called}{'' if said.endswith('?') else '.'}") from None


def _imported(path: str, text: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    with own_code(f"encoding {text!r} cannot be imported"):
        found = getattr(importlib.import_module(module), attribute)
    if not callable(found):
        raise ValueError(f"encoding {text!r} must name a class or function; got {type(found).__name__}.")
    made: Callable[..., Any] = found
    return made


def _preset(text: str, config: ModelConfig, train_length: int | None) -> FrozenRoPE:
    if train_length is None:
        raise ValueError(f"encoding {text!r} needs the train length of the model, which is not known here.")
    return load_preset(text.partition(":")[2], config.head_dim, train_length)


def _fits(encoding: Any, config: ModelConfig, text: str) -> Encoding:
    if not isinstance(encoding, Encoding):
        raise ValueError(f"{text} must return a lerope.Encoding; got {type(encoding).__name__}.")
    if encoding.head_dim != config.head_dim:
        fix = f"; say {text},head_dim={RESAMPLE} to resample it" if EncodingSpec.parse(text).family == FROZEN else ""
        raise ValueError(f"{text} must have the model's head_dim of {config.head_dim}; got {encoding.head_dim}{fix}.")
    if encoding.num_layers not in (None, config.num_layers):
        raise ValueError(f"{text} must have the model's {config.num_layers} layers; got {encoding.num_layers}.")
    *heads, bands = encoding.frequencies(None if encoding.num_layers is None else 0).shape
    if heads not in ([], [config.num_heads]):
        raise ValueError(f"{text} must have frequencies for the model's {config.num_heads} heads; got {heads[0]}.")
    if bands != encoding.rotary_dim // 2:
        raise ValueError(f"{text} must have frequencies of {encoding.rotary_dim // 2} bands; got {bands}.")
    return encoding
