"""`lerope.export`: a trained model as files for serving engines that never heard of LeRoPE.

lerope.export("runs/52M-lerope-42", "served/")                      a Hugging Face folder
lerope.export("runs/52M-lerope-42", "served/", format="gguf")       for llama.cpp
lerope.export("runs/52M-lerope-42", "served/", length=8192)         with YaRN to 8,192 tokens baked in
"""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lerope.core.checks import check_choice, check_count
from lerope.core.files import whole
from lerope.core.run import CONFIG, FREQUENCIES, TOKENIZER, WEIGHTS, is_run, provenance, read_run
from lerope.interop.apertus import (
    apertus_config,
    apertus_frequencies,
    apertus_weights,
    extended_frequencies,
    only_transformers,
)
from lerope.interop.export_record import GGUF, ExportRecord, Format, hashes
from lerope.interop.foreign import read_foreign_config
from lerope.interop.longrope import longrope_config
from lerope.interop.temperature import folded
from lerope.interop.tokenizer import Pieces, tokenizer_files
from lerope.model.saved import SavedConfig, load_model, read_config
from lerope.model.transformer import Transformer
from lerope.rotary.extension import Extension, Method, extend

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What an export should be; see `export`."""

    format: Format
    length: int | None
    method: Method
    temperature: float
    dominant_band: int | None
    dtype: Dtype | None
    tokenizer: Any
    train_length: int | None

    def __post_init__(self) -> None:
        check_choice("format", self.format, Format)
        check_choice("method", self.method, Method)
        if self.method == "logits":
            raise ValueError(
                "method 'logits' scales each query by its position, which no export can say; take another."
            )
        if self.dtype is not None:
            check_choice("dtype", self.dtype, Dtype)
        for field in ("length", "train_length"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))


def export(
    model_or_run_dir: Any,
    directory: str | os.PathLike[str],
    format: Format = "hf",
    *,
    length: int | None = None,
    method: Method = "yarn",
    temperature: float = 0.1,
    dominant_band: int | None = None,
    dtype: Dtype | None = None,
    tokenizer: Any = None,
    train_length: int | None = None,
) -> Path:
    """Writes a model for serving engines, whole or not at all, and returns the folder.

    A ladder model becomes an Apertus: with activation relu2 for every engine, with gelu only for transformers. A model
    that `lerope.convert` made keeps its architecture. Frequencies travel as one `longrope` factor per band, in GGUF as
    `rope_freqs.weight`.

    Args:
        model_or_run_dir: a run's directory, a ladder model, or a converted transformers model.
        directory: a folder that does not exist or is empty.
        format: `hf` for a Hugging Face folder (transformers, vLLM, SGLang, mlx-lm, TensorRT-LLM), `gguf` for llama.cpp.
        length: bake in an extension to this many tokens; its temperature goes into the weights of queries, in layers
            that turn them.
        method: how to extend; see `lerope.extend`.
        temperature: of `yarn`, `slow_bands` and `dominant_band`; see `lerope.extend`.
        dominant_band: which band `dominant_band` slows.
        dtype: float32 unless given. A converted model keeps its own.
        tokenizer: the run's unless given: for a ladder model a SentencePiece .model file, for a converted one a
            tokenizer or its folder.
        train_length: tokens of a row in training, for a ladder model in memory.

    Example:
        lerope.export("runs/52M-lerope-42", "served/52M", format="hf", length=8192, method="yarn")
    """
    request = ExportRequest(
        format=format,
        length=length,
        method=method,
        temperature=temperature,
        dominant_band=dominant_band,
        dtype=dtype,
        tokenizer=tokenizer,
        train_length=train_length,
    )
    target = Path(directory)
    _check_target(target)
    if isinstance(model_or_run_dir, (str, os.PathLike)):
        source = _of_run(Path(model_or_run_dir), request)
    elif isinstance(model_or_run_dir, Transformer):
        source = _in_memory(model_or_run_dir, request)
    else:
        with _folder(target) as folder:
            _export_converted(model_or_run_dir, folder, request)
        return target
    with _folder(target) as folder:
        _export_ladder(source, folder, request)
    return target


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A ladder model and what belongs to it."""

    model: Transformer
    train_length: int
    pieces: Pieces | None
    label: dict[str, Any] | None


def _of_run(path: Path, request: ExportRequest) -> _Source:
    _refuse_foreign(path)
    model = load_model(path)
    folder = path / "model" if (path / "model" / CONFIG).is_file() else path
    if request.train_length is not None:
        raise ValueError("train_length is the run's own; leave it out to export a run.")
    train_length = read_config(folder).train_length
    if train_length is None:
        raise ValueError(f"{folder / CONFIG}: train_length must be a whole number; got null; train the model again.")
    tokenizer = Path(request.tokenizer) if request.tokenizer is not None else folder / TOKENIZER
    if not tokenizer.is_file():
        raise ValueError(f"tokenizer {tokenizer} does not exist; name the .model file that made the run's data.")
    home = folder.parent
    label = read_run(home).label if folder.name == "model" and is_run(home) else None
    return _Source(
        model=model,
        train_length=train_length,
        pieces=Pieces.load(tokenizer, model.config.vocab_size),
        label=label,
    )


def _refuse_foreign(path: Path) -> None:
    """Raises if this is the folder of a transformers model, which a converted one saves too."""
    if not (path / CONFIG).is_file():
        return
    kind = read_foreign_config(path, "train it again or restore it").get("model_type")
    if isinstance(kind, str) and kind != SavedConfig.model_type:
        raise ValueError(
            f"{path} holds a transformers model ({kind}), not a run; load it with transformers and call "
            "lerope.export(lerope.convert(model), directory) in Python."
        )


def _in_memory(model: Transformer, request: ExportRequest) -> _Source:
    if request.train_length is None:
        raise ValueError("train_length must be given for a model in memory: the tokens of a row in its training.")
    if request.tokenizer is None:
        if request.format == "gguf":
            raise ValueError("tokenizer must be given for a GGUF file: the SentencePiece .model file of the data.")
        warnings.warn("no tokenizer was given, so the folder gets none; pass tokenizer=a .model file.", stacklevel=3)
        pieces = None
    else:
        pieces = Pieces.load(Path(request.tokenizer), model.config.vocab_size)
    return _Source(model=model, train_length=request.train_length, pieces=pieces, label=None)


def _export_ladder(source: _Source, folder: Path, request: ExportRequest) -> None:
    model, pieces = source.model, source.pieces
    if model.config.activation != "relu2":
        if request.format == "gguf":
            raise ValueError(
                f"activation {model.config.activation!r} cannot run in llama.cpp, which computes xIELU in this "
                "architecture; train with --activation relu2."
            )
        warnings.warn(only_transformers(model.config.activation), stacklevel=3)
    own = apertus_frequencies(model.encoding, source.train_length)
    extension = _extension(own.tensor(), source.train_length, request)
    frequencies = extended_frequencies(own, extension)
    assert isinstance(extension.logit_scale, float)
    weights = apertus_weights(model, extension.logit_scale)
    dtype = request.dtype or "float32"
    config = apertus_config(model.config, frequencies, request.length or source.train_length, dtype)
    if pieces is not None:
        config |= {"bos_token_id": pieces.bos, "eos_token_id": pieces.eos, "pad_token_id": pieces.pad}
    else:
        config |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if request.format == "gguf":
        from lerope.interop.gguf import write_gguf

        assert pieces is not None
        name = source.label["name"] if source.label else "lerope"
        write_gguf(folder / GGUF, name=name, config=config, weights=weights, pieces=pieces, frequencies=frequencies)
    else:
        _write_folder(folder, config, weights, pieces)
    if pieces is not None:
        (folder / TOKENIZER).write_bytes(pieces.content)
    frequencies.save(folder / FREQUENCIES)
    made = {"kind": "ladder", "dtype": dtype, "attention_factor": 1.0, "run": source.label}
    _write_record(folder, request, source.train_length, extension.logit_scale, made)


def _write_folder(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], pieces: Pieces | None) -> None:
    dtype = getattr(torch, config["dtype"])
    # The activation's scalars stay float32: softplus of a rounded alpha_p is no longer 1.
    stored = {name: value if ".act_fn." in name else value.to(dtype) for name, value in weights.items()}
    _write_json(folder / CONFIG, config)
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    if pieces is not None:
        ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write_json(folder / "generation_config.json", ids)
        for name, text in tokenizer_files(pieces, config["max_position_embeddings"]).items():
            (folder / name).write_text(text + "\n", encoding="utf-8")


def _extension(frequencies: Tensor, train_length: int, request: ExportRequest) -> Extension:
    """Frequencies at the requested length; as they are if there is none."""
    if request.length is None:
        return Extension(frequencies, 1.0)
    if request.length <= train_length:
        raise ValueError(f"length must be more than the train length of {train_length:,}; got {request.length:,}.")
    return extend(
        frequencies,
        train_length=train_length,
        length=request.length,
        method=request.method,
        dominant_band=request.dominant_band,
        temperature=request.temperature,
    )


def _export_converted(model: Any, folder: Path, request: ExportRequest) -> None:
    """A converted transformers model: its own folder, with the recipe's config, and what an extension changes."""
    from lerope.interop.huggingface import SHARED, is_property, rotary_of
    from lerope.interop.reload import check_reload

    _check_converted(model, request)
    rotary = rotary_of(model)
    kinds = rotary.encodings
    text = model.config.get_text_config()
    if request.format == "gguf":
        from lerope.interop.gguf import refuse_architecture

        refuse_architecture(text.model_type)
    for kind, encoding in kinds.items():
        if encoding.sharing != "shared":
            raise ValueError(f"{kind} has frequencies per layer or head, but engines keep one set for all of them.")
    if request.length is not None and (SHARED not in kinds or text is not model.config):
        raise ValueError("length is for models whose layers share frequencies; this one has several kinds of layers.")
    train_length = request.train_length or text.max_position_embeddings
    own = next(iter(kinds.values())).frequencies().detach().cpu()
    extension = _extension(own, train_length, request)
    assert isinstance(extension.logit_scale, float)
    with folded(model, extension.logit_scale):
        # Engines and llama.cpp's converter stumble over weights they do not know; config.json has the frequencies.
        learned = tuple(f"{name}." for name, module in model.named_modules() if module is rotary)
        state = {name: value for name, value in model.state_dict().items() if not name.startswith(learned)}
        model.save_pretrained(folder, state_dict=state)
    if SHARED in kinds and text is model.config and not rotary.is_buffer:
        content = read_foreign_config(folder, "export the model again")
        if request.length is not None:
            content.pop("lerope")  # what `convert` continues from: the frequencies before their extension
            content["max_position_embeddings"] = request.length
        content = longrope_config(content, extension.frequencies, rotary.scaling[SHARED])
        if is_property(text, "head_dim"):  # Falcon's config computes it
            content.pop("head_dim", None)
        _write_json(folder / CONFIG, content)
        obstacle = check_reload(model, folder, extension.frequencies)
        if obstacle is not None:
            warnings.warn(f"logits were not compared with those of plain transformers: {obstacle}.", stacklevel=3)
    if SHARED in kinds:
        encoding = kinds[SHARED]
        saved = replace(encoding.artifact(train_length), frequencies=extension.frequencies.tolist(), log_scales=None)
        saved.save(folder / FREQUENCIES)
    _save_tokenizer(model, folder, request)
    made = {
        "kind": "converted",
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention_factor": rotary.scaling.get(SHARED),
        "run": None,
    }
    _write_record(folder, request, train_length, extension.logit_scale, made)


def _check_converted(model: Any, request: ExportRequest) -> None:
    """Raises unless this is a model that `lerope.convert` made, with weights of its own."""
    from lerope.interop.huggingface import Rotary

    name = type(model).__name__
    if not isinstance(model, nn.Module) or not any(isinstance(m, Rotary) for m in model.modules()):
        raise ValueError(f"export takes a run's directory, a ladder model or one that lerope.convert made; got {name}.")
    if not hasattr(type(model), "plain"):
        raise ValueError(f"model is wrapped in {name}; merge adapters and export the model inside.")
    config: Any = model.config
    if getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None:
        raise ValueError("model has quantised weights; export it before quantising: engines quantise on their own.")
    if request.dtype is not None:
        raise ValueError("dtype is for ladder models; call model.to(dtype) before exporting a converted one.")


def _save_tokenizer(model: Any, folder: Path, request: ExportRequest) -> None:
    tokenizer = request.tokenizer
    home = Path(str(getattr(model.config, "_name_or_path", "") or "."))
    if tokenizer is None and any(home.glob("tokenizer*")) and str(home) != ".":
        tokenizer = home
    if tokenizer is None:
        warnings.warn("no tokenizer was given, so the folder gets none; pass tokenizer=.", stacklevel=4)
        return
    if isinstance(tokenizer, (str, os.PathLike)):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    tokenizer.save_pretrained(folder)


def _write_record(
    folder: Path, request: ExportRequest, train_length: int, logit_scale: float, made: dict[str, Any]
) -> None:
    """export.json: what was requested, what was made and where the model comes from."""
    extended = request.length is not None
    ExportRecord(
        **made,
        format=request.format,
        train_length=train_length,
        length=request.length,
        method=request.method if extended else "none",
        temperature=request.temperature if extended else None,
        dominant_band=request.dominant_band if extended else None,
        logit_scale=logit_scale,
        sha256=hashes(folder),
        provenance=provenance(),
    ).save(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _check_target(target: Path) -> None:
    try:
        target.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(f"directory {target} cannot be reached ({error.strerror}); name another one.") from None
    if not target.is_dir():
        raise ValueError(f"directory must be a folder; {target} is a file.")
    if any(target.iterdir()):
        raise ValueError(f"directory {target} is not empty; name a new folder: export overwrites nothing.")


@contextlib.contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """A folder to write into that becomes the target at the end, or vanishes."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole(target) as partial:
        partial.mkdir()
        yield partial
