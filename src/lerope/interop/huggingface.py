"""`lerope.convert`: learned frequencies in place of a transformers model's fixed ones.

    model = lerope.convert(AutoModelForCausalLM.from_pretrained(name))

The rotary module is replaced by one of ours that starts exactly at the model's own frequencies, its RoPE scaling
included. `save_pretrained` then writes a folder that plain transformers loads as the same function, and from which
`convert` continues learning bit for bit.
"""

import functools
import inspect
import json
import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lerope.core.encoding import Layout
from lerope.core.files import staged
from lerope.core.run import CONFIG
from lerope.interop.foreign import read_foreign_config
from lerope.interop.longrope import longrope_config
from lerope.rotary.encodings import Encoding, FrozenRoPE, LeRoPE, assign

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The entry of config.json from which `convert` continues.
ENTRY = "lerope"
# What a set of frequencies is called where all layers share it.
SHARED = "shared"
# Positions at which a rotary module is probed to see how it arranges cosines and sines.
_PROBE = (0, 1, 2, 3, 5, 11)


def convert(model: "PreTrainedModel", encoding: str | Encoding = "lerope") -> "PreTrainedModel":
    """Replaces a transformers model's rotary frequencies with learned ones, in place, and returns the model.

    Args:
        model: any model with one rotary module of the common pattern: Llama, Qwen3, Mistral, Gemma 3, Apertus, Phi-3,
            OLMo 2 and many more. Convert before wrapping it in PEFT, DDP or FSDP, and before building an optimizer.
        encoding: `lerope`, or `lerope,parametrization=linear` or `direct`; `frozen` for the model's own frequencies,
            fixed; or the path of a frequencies.json, fixed, of another head size with `,head_dim=resample` after it. Or
            an encoding with one set of frequencies, learned if it is
            a LeRoPE and fixed otherwise: for a model that is trained from scratch, because weights that were trained
            with other frequencies expect those.

    Example:
        model = lerope.convert(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B-Base"))
        new = AutoModelForCausalLM.from_config(config)
        lerope.convert(new, encoding=lerope.preset("english", head_dim=128, train_length=4096))
    """
    name, module = _find_rotary(model)
    config = model.config.get_text_config()
    kinds = _kinds(module)
    starts = {}
    for kind in kinds:
        starts[kind] = _start(module, kind)
    layout, casts = _arrangement(module, kinds[0], starts[kinds[0]])
    saved = (getattr(config, ENTRY, None) or {}).get("sets", {})
    encodings = {
        kind: _encoding(encoding, kind, theta, saved.get(kind), config, layout).to(theta.device)
        for kind, theta in starts.items()
    }
    scaling = {kind: float(getattr(module, _named(kind, "attention_scaling"))) for kind in kinds}
    rotary = Rotary(encodings, scaling, layout, casts)
    # Plain transformers skips frequencies in a checkpoint only under this name and where layers share them.
    rotary.in_weights = SHARED in kinds and name.endswith("rotary_emb")
    model.set_submodule(name, rotary)
    plain: Any = type(model)
    model.__class__ = _converted_class(plain)
    if not rotary.in_weights:
        ours = [f"{name}.{key}" for key in rotary.state_dict()]
        model._keys_to_ignore_on_save = [*(model._keys_to_ignore_on_save or []), *ours]
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


class Rotary(nn.Module):
    """What stands in for a transformers rotary module: positions to cosines and sines, with gradients.

    The encodings are called `inv_freq` because plain transformers skips checkpoint keys of that name.

    Args:
        encodings: one per kind of layer, or one called `shared`.
        scaling: what cosines and sines are multiplied by, for each of them.
        layout: how the model pairs dimensions.
        casts: whether cosines and sines come in the dtype of the hidden states.
    """

    def __init__(
        self, encodings: dict[str, Encoding], scaling: dict[str, float], layout: Layout, casts: bool = True
    ) -> None:
        super().__init__()
        self.inv_freq = encodings[SHARED] if SHARED in encodings else nn.ModuleDict(encodings)
        self.scaling = scaling
        self.layout = layout
        self.casts = casts
        self.in_weights = True
        """Whether `save_pretrained` writes the frequencies among the weights; else only config.json has them."""
        self.warns = True
        """Whether to warn of weights that bring no frequencies."""

    @property
    def encodings(self) -> dict[str, Encoding]:
        """The encodings by kind of layer; one called `shared` where there are no kinds."""
        if isinstance(self.inv_freq, Encoding):
            return {SHARED: self.inv_freq}
        return {kind: encoding for kind, encoding in self.inv_freq.items() if isinstance(encoding, Encoding)}

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines, (rows, length, rotary_dim), for hidden states x and integer positions."""
        kind = layer_type or SHARED
        encoding = self.inv_freq if isinstance(self.inv_freq, Encoding) else self.inv_freq[kind]
        assert isinstance(encoding, Encoding)
        learned = [p for p in encoding.parameters() if p.requires_grad]
        if learned and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            cos, sin = _Tables.apply(encoding, position_ids, self.scaling[kind], *learned)
        else:
            cos, sin = _tables(encoding.frequencies(), position_ids, self.scaling[kind], self.layout)
        dtype = x.dtype if self.casts else cos.dtype
        return cos.to(x.device, dtype), sin.to(x.device, dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        learns = any(p.requires_grad for p in self.parameters())
        if learns and self.warns and not any(key.startswith(f"{prefix}inv_freq.") for key in state_dict):
            warnings.warn(
                "these weights hold no learned frequencies, so the model keeps those it has, which is right only if it "
                "was converted from their folder; else load and convert that folder, or resume with LeropeCallback.",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


def _tables(frequencies: Tensor, positions: Tensor, scaling: float, layout: Layout) -> tuple[Tensor, Tensor]:
    """Cosines and sines in float32, each band twice, in the arithmetic order of transformers."""
    phases = positions[..., None].to(frequencies.device, frequencies.dtype) * frequencies
    phases = torch.cat((phases, phases), dim=-1) if layout == "half" else phases.repeat_interleave(2, dim=-1)
    return phases.cos() * scaling, phases.sin() * scaling


class _Tables(torch.autograd.Function):
    """`_tables` of an encoding as one node that keeps no tensors.

    Reentrant checkpointing runs backward once per layer through what layers share, so nothing here may be freed.
    """

    @staticmethod
    def forward(
        ctx: Any, encoding: Encoding, positions: Tensor, scaling: float, *learned: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.encoding, ctx.positions, ctx.scaling, ctx.learned = encoding, positions, scaling, learned
        return _tables(encoding.frequencies(), positions, scaling, encoding.layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_cos: Tensor, grad_sin: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            frequencies = ctx.encoding.frequencies()
        cos, sin = _tables(frequencies.detach(), ctx.positions, ctx.scaling, ctx.encoding.layout)
        torque = grad_sin * cos - grad_cos * sin
        split = (2, -1) if ctx.encoding.layout == "half" else (-1, 2)
        torque = torque.unflatten(-1, split).sum(-2 if ctx.encoding.layout == "half" else -1)
        wide = torch.float32 if torque.device.type == "mps" else torch.float64
        offsets = ctx.positions[..., None].to(torque.device, wide)
        gradient = (torque.to(wide) * offsets).flatten(0, -2).sum(0).to(frequencies.dtype)
        return None, None, None, *torch.autograd.grad(frequencies, ctx.learned, gradient)


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
        # FSDP2 gathers here, so every process takes part.
        sets, frequencies = saved_sets(rotary), {k: e.frequencies().detach().cpu() for k, e in rotary.encodings.items()}
        with staged(Path(save_directory), last=CONFIG, replaces=_WEIGHTS) as partial:
            super().save_pretrained(partial, *args, **kwargs)  # type: ignore[misc]
            if (partial / CONFIG).is_file():  # only the main process writes it
                content = read_foreign_config(partial, "save the model again")
                _put_frequencies(content, model.config, frequencies, rotary.scaling, sets)
                text = json.dumps(content, indent=2, sort_keys=True) + "\n"
                (partial / CONFIG).write_text(text, encoding="utf-8")
                check_reload(model, partial)

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
    if SHARED in frequencies:
        written = longrope_config(text.to_dict(), frequencies[SHARED], scaling[SHARED])
    else:
        written = longrope_config(text.to_dict(), frequencies, scaling)
    section = _section(config)
    part = content if section is None else content.setdefault(section, {})
    for key in (*_WRITTEN, *_LEGACY):
        part.pop(key, None)
    part |= {key: written[key] for key in _WRITTEN if key in written and not _is_property(text, key)}
    part[ENTRY] = {"sets": sets}


def _is_property(config: Any, key: str) -> bool:
    """Whether a config computes this field, so that config.json must not hold it."""
    return isinstance(inspect.getattr_static(type(config), key, None), property)


def _section(config: Any) -> str | None:
    """Where config.json keeps the language model's part; None if at the top."""
    text = config.get_text_config()
    return None if text is config else next(key for key, value in vars(config).items() if value is text)


def _find_rotary(model: Any) -> tuple[str, nn.Module]:
    """The name and module of a model's rotary embedding; raises where there is none that we can replace."""
    try:
        from transformers import PreTrainedModel
    except ImportError:
        raise ValueError("lerope.convert needs the package transformers: pip install 'lerope[hf]'.") from None
    if not isinstance(model, PreTrainedModel):
        hint = "convert the model inside before wrapping it" if hasattr(model, "modules") else "load one first"
        raise ValueError(f"model must be a transformers model, {hint}; got {type(model).__name__}.")
    if any(isinstance(m, Rotary) for m in model.modules()):
        raise ValueError("model is already converted; its frequencies are in lerope.interop.huggingface.rotary_of.")
    found = [(name, m) for name, m in model.named_modules() if _kinds(m)]
    kind = type(model).__name__
    if not found:
        raise ValueError(f"model must have a rotary module (a RoPE model such as Llama); {kind} has none.")
    parameters = str(getattr(model.config.get_text_config(), "rope_parameters", None))
    if "mrope" in parameters or "mrope" in str(getattr(found[0][1], "config", "")):
        raise ValueError(f"{kind} turns along several axes (M-RoPE), which one set of frequencies cannot express.")
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise ValueError(f"{kind} must have one rotary module for all layers to be converted; got {names}.")
    return found[0]


def _kinds(module: nn.Module) -> list[str]:
    """The kinds of layers a rotary module has frequencies for; nothing if it is not a rotary module."""
    buffers = [name for name, _ in module.named_buffers(recurse=False) if not name.endswith("original_inv_freq")]
    if "inv_freq" in buffers:
        return [SHARED]
    return [name.removesuffix("_inv_freq") for name in buffers if name.endswith("_inv_freq")]


def _named(kind: str, what: str) -> str:
    """The attribute of a transformers rotary module that holds `what` for this kind of layer."""
    return what if kind == SHARED else f"{kind}_{what}"


def _start(module: Any, kind: str) -> Tensor:
    """The frequencies a rotary module turns by; raises where they change with the length."""
    rope_type = getattr(module, "rope_type", "default")
    rope_type = rope_type[kind] if isinstance(rope_type, dict) else rope_type
    if "dynamic" in rope_type:
        raise ValueError(
            f"rope_type {rope_type!r} computes new frequencies for every length, so there are none to learn; load the "
            "model with rope_type 'default' or 'yarn'."
        )
    theta: Tensor = getattr(module, _named(kind, "inv_freq"))
    if rope_type == "longrope":
        theta = getattr(module, _named(kind, "original_inv_freq"))
        parameters = _rope_parameters(module.config, kind)
        if parameters.get("short_factor") != parameters.get("long_factor"):
            warnings.warn(
                "the model switches to long_factor beyond "
                f"{parameters.get('original_max_position_embeddings')} positions; the converted one keeps its "
                "frequencies for short inputs at every length.",
                stacklevel=3,
            )
    if theta.is_meta:
        raise ValueError("model is on the meta device and holds no frequencies; load its weights before converting.")
    if theta.ndim != 1:
        raise ValueError(f"frequencies must be one list for all heads; got inv_freq of shape {tuple(theta.shape)}.")
    if theta.dtype != torch.float32:
        warnings.warn(
            f"a cast to {theta.dtype} has rounded the model's frequencies, and the learned ones start there; load it "
            "with dtype=... or convert it before the cast.",
            stacklevel=3,
        )
    return theta.detach().float()


def _rope_parameters(config: Any, kind: str) -> dict[str, Any]:
    """What a config says about RoPE for a kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    found: dict[str, Any] = parameters if kind == SHARED else parameters.get(kind) or {}
    return found


def _arrangement(module: Any, kind: str, theta: Tensor) -> tuple[Layout, bool]:
    """How a rotary module pairs dimensions and whether it casts, seen by calling it at a few positions."""
    positions = torch.tensor([_PROBE], device=theta.device)
    extra = [] if kind == SHARED else [kind]
    scaling = float(getattr(module, _named(kind, "attention_scaling"), math.nan))
    try:
        cos, sin = module(torch.zeros(1, 1, 1, device=theta.device), positions, *extra)
        narrow = module(torch.zeros(1, 1, 1, device=theta.device, dtype=torch.bfloat16), positions, *extra)[0]
        layouts: tuple[Layout, ...] = ("half", "interleaved")
        for layout in layouts:
            expected_cos, expected_sin = _tables(theta, positions, scaling, layout)
            if (
                cos.shape == expected_cos.shape
                and torch.allclose(cos, expected_cos)
                and torch.allclose(sin, expected_sin)
            ):
                return layout, narrow.dtype == torch.bfloat16
        reason = "they are not those of its inv_freq"
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
    raise ValueError(f"{type(module).__name__} makes cosines and sines in a way that convert does not know: {reason}.")


def _encoding(
    spec: str | Encoding, kind: str, theta: Tensor, saved: dict[str, Any] | None, config: Any, layout: Layout
) -> Encoding:
    """The encoding that `spec` names, at the model's frequencies or where a saved folder left off; or is."""
    if not isinstance(spec, str | Encoding):
        raise ValueError(f"encoding must be text or a lerope.Encoding; got {type(spec).__name__}.")
    name, _, option = spec.partition(",") if isinstance(spec, str) else ("", "", "")
    head_dim = max(_head_dim(config), 2 * len(theta))
    base = _rope_parameters(config, kind).get("rope_theta")
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
