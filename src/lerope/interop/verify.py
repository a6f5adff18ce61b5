"""Whether engines compute what an exported model does: their frequency tables rebuilt, installed ones really run."""

import functools
import importlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lerope.core.run import CONFIG, FREQUENCIES, TOKENIZER, WEIGHTS, provenance
from lerope.interop.apertus import ladder_model
from lerope.interop.engines import TABLES, Array, Table, llama_cpp_table
from lerope.interop.export_hf import GGUF
from lerope.interop.export_record import ExportRecord, read_export
from lerope.interop.foreign import read_foreign_config
from lerope.interop.gguf import read_gguf
from lerope.interop.tokenizer import processor
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.results import EngineRun, EngineTable, Verification
from lerope.rotary.artifact import Frequencies
from lerope.rotary.extension import extend

PROMPT = "A rotary encoding turns every pair of dimensions by its own angle at each step along the text. " * 4
TABLE_TOLERANCE = 1e-6
# Angles below this, in radians per token, are no turn at any length.
_NO_TURN = 1e-20


Reference = Callable[[Tensor], Tensor]
"""Tokens (rows, length) to logits."""


@dataclass(frozen=True)
class Engine:
    """An engine that can be run from here."""

    name: str
    package: str
    distribution: str
    format: str
    run: Callable[[Path, list[int], int], tuple[Array | None, list[int]]]
    """(path, prompt, num_tokens) -> logits of the prompt's tokens, and a greedy continuation."""
    tolerance: float
    """Of logits, relative to the largest; what its arithmetic allows."""
    narrow_tolerance: float | None = None
    """The same for weights of 16 bits, where the engine does not widen them to float32."""
    any_activation: bool = False

    def allowed(self, dtype: str) -> float:
        """The tolerance for weights of this dtype."""
        if dtype in ("bfloat16", "float16") and self.narrow_tolerance is not None:
            return self.narrow_tolerance
        return self.tolerance


class _Used(TypedDict):
    """What is used of an exported model's config.json besides what engines read."""

    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    vocab_size: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str
    rms_norm_eps: float


def verify(
    directory: str | Path, *, run: str | Path | None = None, prompt: str = PROMPT, num_tokens: int = 32
) -> Verification:
    """Compares engines with the exported model.

    Args:
        directory: what `lerope.export` wrote.
        run: the run it came from, to compare with that instead of with the exported weights.
        prompt: a text to run engines on; its end is cut if the model's length needs it.
        num_tokens: how many tokens to continue it by.
    """
    folder = Path(directory)
    record = read_export(folder)
    record.check_files(folder)
    is_ladder = record.kind == "ladder"
    if run is not None and not is_ladder:
        raise ValueError(f"run is for exported ladder models; {folder} holds one that lerope.convert made.")
    weights: dict[str, Tensor] = {}
    tables: dict[str, Callable[[], Table]] = {}
    if record.format == "gguf":
        config, weights, factors = read_gguf(folder / GGUF)
        tables["llama.cpp"] = functools.partial(llama_cpp_table, config, factors)
    else:
        config = _read_config(folder)
        weights = _weights(folder / WEIGHTS) if is_ladder else {}
        tables |= {name: functools.partial(make, config) for name, make in TABLES.items()}
    frequencies = Frequencies.load(folder / FREQUENCIES)
    attention_factor = 1.0 if record.attention_factor is None else record.attention_factor
    compared = [_compared(name, make, frequencies, attention_factor) for name, make in tables.items()]
    length = config["max_position_embeddings"]
    num_tokens = min(num_tokens, length // 2)
    tokens = _tokens(folder, prompt, config, is_ladder)[: length - num_tokens]
    if run is not None:
        rounded = "" if record.dtype == "float32" else f" with its weights rounded to {record.dtype}"
        reference, model = f"the run {Path(run).name}{rounded}", _of_run(load_model(run), record)
    elif weights:
        reference, model = "lerope on the exported weights", _ladder(folder, config, weights, frequencies)
    else:
        reference, model = "transformers", _plain(folder)
    engines = [engine for engine in ENGINES if engine.format == record.format]
    tolerances = {engine.name: engine.allowed(record.dtype) for engine in engines}
    runs = [_ran(engine, folder, config, model, tokens, num_tokens, tolerances[engine.name]) for engine in engines]
    return Verification(
        settings={
            "format": record.format,
            "dtype": record.dtype,
            "num_prompt_tokens": len(tokens),
            "num_tokens": num_tokens,
            "table_tolerance": TABLE_TOLERANCE,
            "logit_tolerances": tolerances,
        },
        provenance=provenance(),
        reference=reference,
        tables=compared,
        runs=runs,
    )


def _compared(engine: str, make: Callable[[], Table], frequencies: Frequencies, attention_factor: float) -> EngineTable:
    try:
        table = make()
    except (ValueError, KeyError, TypeError, ArithmeticError) as problem:
        note = f"the engine needs {problem} in config.json." if isinstance(problem, KeyError) else str(problem)
        return EngineTable(engine=engine, error=None, attention_factor=None, agrees=False, note=note)
    wanted = np.array(frequencies.frequencies)
    found = table.frequencies.astype(np.float64)
    if found.shape != wanted.shape:
        note = f"{len(found)} bands instead of {len(wanted)}"
        return EngineTable(engine=engine, error=None, attention_factor=None, agrees=False, note=note)
    turning = np.abs(wanted) >= _NO_TURN
    stand_still = bool(np.all(np.abs(found[~turning]) < _NO_TURN))
    error = float(np.max(np.abs(found[turning] / wanted[turning] - 1), initial=0.0))
    note = "" if stand_still else "bands turn that should stand still"
    if not note and not math.isclose(table.attention_factor, attention_factor, rel_tol=TABLE_TOLERANCE):
        note = f"the attention factor should be {attention_factor:g}"
    agrees = error <= TABLE_TOLERANCE and not note
    return EngineTable(engine=engine, error=error, attention_factor=table.attention_factor, agrees=agrees, note=note)


def _read_config(folder: Path) -> dict[str, Any]:
    content = read_foreign_config(folder, "export the model again")
    if "text_config" in content or "max_position_embeddings" not in content:
        raise ValueError(
            f"verify compares language models; {folder} holds a {content.get('model_type')} model, whose language "
            "model is one part of it."
        )
    rope = content.get("rope_parameters")
    kinds = [kind for kind, part in rope.items() if isinstance(part, dict)] if isinstance(rope, dict) else []
    if kinds:
        raise ValueError(
            f"verify compares models whose layers share frequencies; {folder} has a set for each of "
            f"{', '.join(sorted(kinds))}."
        )
    try:
        msgspec.convert(content, _Used)
    except msgspec.ValidationError as error:
        raise ValueError(f"{folder / CONFIG} is not as it must be ({error}); export the model again.") from None
    return content


def _tokens(folder: Path, prompt: str, config: dict[str, Any], is_ladder: bool) -> list[int]:
    """The prompt's tokens; a made-up series where the folder has no tokenizer."""
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise ValueError(f"prompt must be valid UTF-8; got {prompt[:40]!r}.")
    ids: list[int]
    if is_ladder and (folder / TOKENIZER).is_file():
        model = processor((folder / TOKENIZER).read_bytes())
        ids = [model.bos_id(), *model.encode(prompt)]
    elif (folder / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        ids = AutoTokenizer.from_pretrained(folder)(prompt).input_ids
    else:
        vocab_size = config["vocab_size"]
        ids = [(17 * at * at + 3 * at) % vocab_size for at in range(64)]
    if not ids:
        raise ValueError("prompt is empty; give a text.")
    return ids


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); export the model again.") from None


def _ladder(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], frequencies: Frequencies) -> Transformer:
    try:
        return ladder_model(config, weights, frequencies)
    except (KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{folder}: its weights do not fit its {CONFIG} ({reason}); export it again.") from None


@torch.no_grad()
def _of_run(model: Transformer, record: ExportRecord) -> Reference:
    """The run's own model at the length of the export, its weights as exact as the exported ones."""
    scale: Any = 1.0
    if record.length is not None:
        extension = extend(
            model.encoding.frequencies().detach(),
            train_length=record.train_length,
            length=record.length,
            method=record.method,
            dominant_band=record.dominant_band,
            temperature=0.0 if record.temperature is None else record.temperature,
        )
        scale, model.encoding = extension.logit_scale, model.encoding.freeze(extension.frequencies)
    for name, parameter in model.named_parameters():
        if name.endswith("q_norm.weight"):
            parameter.copy_(parameter.double() * scale)
        is_rounded = parameter.ndim > 1 or record.format == "hf"  # GGUF files keep gains in float32
        if is_rounded and not name.startswith("encoding."):
            parameter.copy_(parameter.to(getattr(torch, record.dtype)))
    return model.eval()


def _plain(folder: Path) -> Reference:
    """A converted model's folder, as transformers runs it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return lambda rows: model(rows).logits


def _ran(
    engine: Engine,
    folder: Path,
    config: dict[str, Any],
    reference: Reference,
    tokens: list[int],
    num_tokens: int,
    tolerance: float,
) -> EngineRun:
    def row(
        note: str,
        version: str | None = None,
        agrees: bool | None = None,
        logit_error: float | None = None,
        num_same_tokens: int | None = None,
    ) -> EngineRun:
        return EngineRun(
            engine=engine.name,
            version=version,
            logit_error=logit_error,
            num_same_tokens=num_same_tokens,
            num_tokens=num_tokens,
            agrees=agrees,
            note=note,
        )

    if importlib.util.find_spec(engine.package) is None:
        return row(f"not installed: pip install {engine.distribution}")
    if config.get("model_type") == "apertus" and config["hidden_act"] != "xielu" and not engine.any_activation:
        return row(f"cannot run activation {config['hidden_act']}")
    try:
        version = importlib.metadata.version(engine.distribution)
    except importlib.metadata.PackageNotFoundError:  # built or copied by hand
        version = "unknown"
    try:
        found, ids = engine.run(folder, tokens, num_tokens)
    except Exception as problem:  # an engine may raise anything, and the others must still run
        said = " ".join(str(problem).split())[:200]
        return row(f"{type(problem).__name__}: {said}", version=version, agrees=False)
    with torch.no_grad():
        ours = reference(torch.tensor([[*tokens, *ids[:-1]]]))[0].numpy()
    logits, expected = ours[: len(tokens)], ours[len(tokens) - 1 :].argmax(-1).tolist()
    num_same = next((at for at, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b), len(ids))
    largest = float(np.max(np.abs(logits)))
    error = None if found is None else float(np.max(np.abs(found - logits))) / largest
    same = num_same == len(ids)
    if not same and error is not None:
        # Where two tokens are as good as equal, rounding may choose either.
        scores = ours[len(tokens) - 1 + num_same]
        same = float(scores.max() - scores[ids[num_same]]) <= 2 * tolerance * largest
    return row(
        "" if num_same == len(ids) else f"continues differently from token {num_same + 1} on",
        version=version,
        logit_error=error,
        num_same_tokens=num_same,
        agrees=same and (error is None or error <= tolerance),
    )


def _transformers(folder: Path, tokens: list[int], num_tokens: int) -> tuple[Array | None, list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=True)
        logits: Array = out.logits[0].numpy()
        ids = [int(logits[-1].argmax())]
        while len(ids) < num_tokens:
            out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            ids.append(int(out.logits[0, -1].argmax()))
    return logits, ids


def _mlx(folder: Path, tokens: list[int], num_tokens: int) -> tuple[Array | None, list[int]]:
    mx = importlib.import_module("mlx.core")
    model, _ = importlib.import_module("mlx_lm.utils").load_model(folder)
    model.set_dtype(mx.float32)
    cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache(model)
    logits: Array = np.array(model(mx.array([tokens]), cache=cache))[0]
    ids = [int(logits[-1].argmax())]
    while len(ids) < num_tokens:
        ids.append(int(np.array(model(mx.array([ids[-1:]]), cache=cache))[0, -1].argmax()))
    return logits, ids


def _vllm(folder: Path, tokens: list[int], num_tokens: int) -> tuple[Array | None, list[int]]:
    vllm = importlib.import_module("vllm")
    engine = vllm.LLM(model=str(folder), dtype="float32", enforce_eager=True)
    how = vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    done = engine.generate({"prompt_token_ids": tokens}, how)
    return None, list(done[0].outputs[0].token_ids)


def _llama_cpp(folder: Path, tokens: list[int], num_tokens: int) -> tuple[Array | None, list[int]]:
    logits = llama_cpp_logits(folder / GGUF, tokens, num_tokens)
    rows = logits[len(tokens) - 1 :]
    return logits[: len(tokens)], [int(row.argmax()) for row in rows]


def llama_cpp_logits(path: Path, tokens: Sequence[int], num_tokens: int = 1) -> Array:
    """llama.cpp's logits of these tokens and of a greedy continuation by `num_tokens` of which the last is not read.

    Keys and values are kept in float32.
    """
    length = len(tokens) + num_tokens
    engine = importlib.import_module("llama_cpp").Llama(
        str(path), n_ctx=length, n_batch=length, logits_all=True, verbose=False, type_k=0, type_v=0, n_gpu_layers=0
    )
    try:
        engine.eval(list(tokens))
        for _ in range(num_tokens - 1):
            engine.eval([int(engine.scores[engine.n_tokens - 1].argmax())])
        return np.array(engine.scores[: engine.n_tokens], np.float32)
    finally:
        engine.close()


ENGINES = (
    Engine("transformers", "transformers", "transformers", "hf", _transformers, 1e-5, any_activation=True),
    Engine("mlx-lm", "mlx_lm", "mlx-lm", "hf", _mlx, 1e-4),
    Engine("vLLM", "vllm", "vllm", "hf", _vllm, 0.0),
    # llama.cpp rounds activations to the dtype of the weights they meet: in bfloat16 by 2^-9 each.
    Engine("llama.cpp", "llama_cpp", "llama-cpp-python", "gguf", _llama_cpp, 1e-3, narrow_tolerance=1e-2),
)
