"""`lerope.convert`: learned frequencies in place of a transformers model's fixed ones.

    model = lerope.convert(AutoModelForCausalLM.from_pretrained(name))

The rotary module is replaced by one of ours that starts exactly at the model's own frequencies, its RoPE scaling
included. `save_pretrained` then writes a folder that plain transformers loads as the same function, and from which
`convert` continues learning bit for bit.
"""

import functools
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lerope.core.checks import check_choice
from lerope.core.encoding import Layout
from lerope.core.files import staged
from lerope.core.recipe import Kernel
from lerope.core.run import CONFIG
from lerope.interop.foreign import read_foreign_config
from lerope.interop.longrope import longrope_config
from lerope.interop.probe import arrangement, find_rotary, kinds, named, start
from lerope.interop.qk_norm import defer_norms
from lerope.interop.rotary import SHARED, Rotary
from lerope.interop.specs import make_encoding
from lerope.rotary.encodings import Encoding, LeRoPE, assign

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["SHARED", "Rotary", "convert", "rotary_of", "saved_sets", "set_frequencies"]

# The entry of config.json from which `convert` continues.
ENTRY = "lerope"


def convert(
    model: "PreTrainedModel", encoding: str | Encoding = "lerope", kernel: Kernel = "auto"
) -> "PreTrainedModel":
    """Replaces a transformers model's rotary frequencies with learned ones, in place, and returns the model.

    Args:
        model: any model with one rotary module of the common pattern: Llama, Qwen3, Mistral, Gemma 3, Apertus, Phi-3,
            OLMo 2 and many more. Convert before wrapping it in PEFT, DDP or FSDP, and before building an optimizer.
        encoding: `lerope`, or `lerope,parametrization=linear` or `direct`; `frozen` for the model's own frequencies,
            fixed; or the path of a frequencies.json, fixed, of another head size with `,head_dim=resample` after it. Or
            an encoding with one set of frequencies, learned if it is
            a LeRoPE and fixed otherwise: for a model that is trained from scratch, because weights that were trained
            with other frequencies expect those.
        kernel: what turns queries and keys: on CUDA our fused kernel, in float32 inside (auto); that or an error
            (triton); or transformers' own formula (reference), as everywhere else.

    Example:
        model = lerope.convert(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B-Base"))
        new = AutoModelForCausalLM.from_config(config)
        lerope.convert(new, encoding=lerope.preset("english", head_dim=128, train_length=4096))
    """
    check_choice("kernel", kernel, Kernel)
    name, module = find_rotary(model)
    config = model.config.get_text_config()
    starts = {}
    for kind in kinds(module):
        starts[kind] = start(module, kind)
    first = next(iter(starts))
    arranged = arrangement(module, first, starts[first])
    layout: Layout = "half" if arranged.form in ("half", "once") else "interleaved"
    saved = (getattr(config, ENTRY, None) or {}).get("sets", {})
    encodings = {
        kind: make_encoding(encoding, kind, theta, saved.get(kind), config, layout).to(theta.device)
        for kind, theta in starts.items()
    }
    scaling = {kind: float(getattr(module, named(kind, "attention_scaling"))) for kind in starts}
    rotary = Rotary(encodings, scaling, arranged, kernel)
    rotary.plain = type(module)
    rotary.is_buffer = "inv_freq" in module.state_dict()
    # Plain transformers skips frequencies in a checkpoint only under this name and where layers share them.
    rotary.in_weights = SHARED in starts and name.endswith("rotary_emb") and not rotary.is_buffer
    _check_saves(model, rotary)
    model.set_submodule(name, rotary)
    if arranged.modeling is not None and kernel != "reference":
        defer_norms(model, kernel)
    for part, own in parts(model, name):
        plain: Any = type(part)
        part.__class__ = _converted_class(plain)
        if not rotary.in_weights:
            ours = [f"{own}.{key}" for key in rotary.state_dict()]
            part._keys_to_ignore_on_save = [*(part._keys_to_ignore_on_save or []), *ours]
    return model


def rotary_of(model: nn.Module) -> "Rotary":
    """The rotary module of a converted model, however wrapped; its `encodings` hold the frequencies.

    Where PEFT keeps copies of it for adapters this is the one in use.
    """
    for module in model.modules():
        if isinstance(module, Rotary):
            return module
        copies = getattr(module, "modules_to_save", None)
        original = getattr(module, "original_module", None)
        if isinstance(copies, nn.ModuleDict) and isinstance(original, Rotary):
            wrapper: Any = module
            active = [] if wrapper.disable_adapters else [name for name in wrapper.active_adapters if name in copies]
            found: Any = copies[active[0]] if active else original
            assert isinstance(found, Rotary)
            return found
    raise ValueError(f"model must be converted with lerope.convert first; got {type(model).__name__}.")


def saved_sets(rotary: "Rotary") -> dict[str, Any]:
    """Everything needed to continue from a rotary module's frequencies, for JSON, by kind of layer."""
    sets = {}
    for kind, encoding in rotary.encodings.items():
        sets[kind] = {"parametrization": encoding.parametrization, "theta": encoding.theta.tolist()}
        if isinstance(encoding, LeRoPE):
            sets[kind]["alpha"] = encoding.whole(encoding.alpha).detach().tolist()
    return sets


@torch.no_grad()
def set_frequencies(model: nn.Module, sets: dict[str, Any]) -> None:
    """Sets the frequencies of a converted model to what `saved_sets` gave."""
    encodings = rotary_of(model).encodings
    if set(sets) != set(encodings):
        raise ValueError(
            f"the model has frequencies for {', '.join(encodings)}, but the saved ones are for {', '.join(sets)}."
        )
    for kind, encoding in encodings.items():
        stored = sets[kind]["parametrization"]
        if encoding.parametrization != stored:
            raise ValueError(
                f"the saved frequencies were learned with parametrization={stored}, not {encoding.parametrization}; "
                f"convert the model with encoding='lerope,parametrization={stored}'."
            )
        assign(encoding.theta, torch.tensor(sets[kind]["theta"]))
        if isinstance(encoding, LeRoPE):
            assign(encoding.alpha, torch.tensor(sets[kind]["alpha"]))


def parts(model: Any, name: str) -> Iterator[tuple[Any, str]]:
    """The model and the models inside it that hold its rotary module, as each can be saved; with its name in each."""
    from transformers import PreTrainedModel

    steps = name.split(".")
    for at in range(len(steps)):
        part = model.get_submodule(".".join(steps[:at]))
        if isinstance(part, PreTrainedModel):
            yield part, ".".join(steps[at:])


class _Converted:
    """What a converted model's class adds: saving that carries the frequencies."""

    plain: type

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Writes a folder that plain transformers loads as the same function and `lerope.convert` continues from."""
        if kwargs.get("push_to_hub"):
            raise ValueError(
                "push_to_hub=True would upload config.json before the frequencies are in it; save without it, then "
                "call model.push_to_hub(name)."
            )
        from lerope.interop.reload import check_reload

        model: Any = self
        rotary = rotary_of(model)
        if rotary.is_buffer:
            kwargs["state_dict"] = _with_buffer(model, rotary, kwargs.get("state_dict"))
        # Trainer gathers what FSDP2 has spread and calls this in one process alone; else every process takes part here.
        whole = gathered(model, rotary, kwargs.get("state_dict"))
        sets, frequencies = saved_sets(whole), {k: e.frequencies().detach().cpu() for k, e in whole.encodings.items()}
        with staged(Path(save_directory), last=CONFIG, replaces=_WEIGHTS) as partial:
            super().save_pretrained(partial, *args, **kwargs)  # type: ignore[misc]
            if (partial / CONFIG).is_file():  # only the main process writes it
                content = read_foreign_config(partial, "save the model again")
                if rotary.is_buffer:
                    content[ENTRY] = {"sets": sets}
                else:
                    _put_frequencies(content, model.config, frequencies, rotary.scaling, sets)
                text = json.dumps(content, indent=2, sort_keys=True) + "\n"
                (partial / CONFIG).write_text(text, encoding="utf-8")
                if not rotary.is_buffer:
                    check_reload(model, partial)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Loads a model of the plain class and converts it: from a folder that was saved here, it continues."""
        plain: Any = cls.plain
        found = plain.from_pretrained(*args, **kwargs)
        return (convert(found[0]), *found[1:]) if isinstance(found, tuple) else convert(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (self.plain,), self.__dict__


# Of an earlier save in more or fewer parts, transformers might read these in place of the new ones.
_WEIGHTS = r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?"
# Fields of config.json that the recipe decides.
_WRITTEN = ("rope_parameters", "partial_rotary_factor", "original_max_position_embeddings", "head_dim")
# Keys for older engines: `lerope.export` writes them, but Trainer cannot resume from a config.json that has them.
_LEGACY = ("rope_scaling", "rope_theta", "rope_local_base_freq")


@functools.cache
def _converted_class(plain: Any) -> Any:
    """`plain` with `_Converted` on top, under the same name: transformers looks things up by it."""
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    return type(plain.__name__, (_Converted, plain), {**names, "plain": plain})


def _empty(plain: type) -> Any:
    """A converted model without content, for copy and pickle to fill."""
    made = _converted_class(plain)
    return made.__new__(made)


def _put_frequencies(
    content: dict[str, Any], config: Any, frequencies: dict[str, Tensor], scaling: dict[str, float], sets: Any
) -> None:
    """Writes frequencies into the content of config.json, for plain transformers and for us."""
    text = config.get_text_config()
    written = recipe_of(text, frequencies, scaling)
    section = _section(config)
    part = content if section is None else content.setdefault(section, {})
    for key in (*_WRITTEN, *_LEGACY):
        part.pop(key, None)
    part |= written
    part[ENTRY] = {"sets": sets}


def recipe_of(text: Any, frequencies: dict[str, Tensor], scaling: dict[str, float]) -> dict[str, Any]:
    """The fields of a language model's config with which plain transformers turns by these frequencies."""
    if SHARED in frequencies:
        written = longrope_config(text.to_dict(), frequencies[SHARED], scaling[SHARED])
    else:
        written = longrope_config(text.to_dict(), frequencies, scaling)
    return {key: written[key] for key in _WRITTEN if key in written and not is_property(text, key)}


def is_property(config: Any, key: str) -> bool:
    """Whether a config computes this field, so that config.json must not hold it."""
    return isinstance(inspect.getattr_static(type(config), key, None), property)


def _check_saves(model: Any, rotary: Rotary) -> None:
    """Raises before any training if what is learned could not be saved."""
    if rotary.is_buffer:
        return
    text = model.config.get_text_config()
    frequencies = {kind: encoding.frequencies().detach() for kind, encoding in rotary.encodings.items()}
    try:
        written = recipe_of(text, frequencies, rotary.scaling)
        kept = {key: value for key, value in text.to_dict().items() if key not in (*_WRITTEN, *_LEGACY)}
        type(text).from_dict({**kept, **written})
    except Exception as error:  # a config's own checks may raise anything
        raise ValueError(
            f"{type(model).__name__} could not be saved with learned frequencies, because its config cannot hold "
            f"them: {' '.join(str(error).split())}"
        ) from None


def gathered(model: nn.Module, rotary: Rotary, state: dict[str, Any] | None) -> Rotary:
    """A rotary module whose parameters are whole: where FSDP2 has spread them, a copy with those of a state dict.

    Without collectives, which one process alone would wait in for ever.
    """
    name = next(name for name, module in model.named_modules() if module is rotary)
    found = {key: (state or {}).get(f"{name}.{key}") for key, _ in rotary.named_parameters()}
    spread = any(hasattr(parameter, "full_tensor") for parameter in rotary.parameters())
    if not spread or any(value is None or hasattr(value, "full_tensor") for value in found.values()):
        return rotary
    encodings: dict[str, Encoding] = {}
    for kind, encoding in rotary.encodings.items():
        alpha = found["inv_freq.alpha" if kind == SHARED else f"inv_freq.{kind}.alpha"]
        assert isinstance(encoding, LeRoPE)
        assert isinstance(alpha, Tensor)
        copied = LeRoPE.starting_at(encoding.theta, encoding.head_dim, encoding.parametrization, layout=encoding.layout)
        with torch.no_grad():
            copied.alpha.copy_(alpha)
        encodings[kind] = copied
    return Rotary(encodings, rotary.scaling, rotary.arrangement, rotary.kernel)


def _with_buffer(model: Any, rotary: Rotary, state: dict[str, Any] | None) -> dict[str, Any]:
    """A state dict with the frequencies under the name of the buffer that plain transformers reads."""
    name = next(name for name, module in model.named_modules() if module is rotary)
    state = {key: value for key, value in (state or model.state_dict()).items() if not key.startswith(f"{name}.")}
    return {**state, f"{name}.inv_freq": rotary.encodings[SHARED].frequencies().detach()}


def _section(config: Any) -> str | None:
    """Where config.json keeps the language model's part; None if at the top."""
    text = config.get_text_config()
    return None if text is config else next(key for key, value in vars(config).items() if value is text)
