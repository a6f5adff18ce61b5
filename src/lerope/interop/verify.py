"""Whether engines compute what an exported model does: their frequency tables rebuilt, installed ones really run."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lerope.core.run import CONFIG, FREQUENCIES, TOKENIZER, WEIGHTS, provenance
from lerope.interop.apertus import ladder_model, other_activation
from lerope.interop.engine_runs import Array
from lerope.interop.engines import TABLES, Table, llama_cpp_table
from lerope.interop.environments import ENGINES, Engine, EngineError, found_engines
from lerope.interop.export_record import GGUF, ExportRecord, read_export
from lerope.interop.foreign import read_foreign_config
from lerope.interop.gguf import read_gguf
from lerope.interop.tokenizer import processor
from lerope.interop.tried import cause, known_as, tried
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.results import EngineRun, EngineTable, Verification
from lerope.results.verification import Verdict
from lerope.rotary.artifact import Frequencies
from lerope.rotary.extension import extend

PROMPT = "A rotary encoding turns every pair of dimensions by its own angle at each step along the text. " * 4
TABLE_TOLERANCE = 1e-6
# How many times what logits move by when every number of the model goes to its neighbour an engine may be off. Of those
# that were really run llama.cpp was off by 5 times, the others by less than 2; with one of the bands that turn wrong by
# 1e-3 it is 50 times and more (docs/LOG.md, 2026-11-19).
ROUNDINGS = 16
# Angles below this, in radians per token, are no turn at any length.
_NO_TURN = 1e-20
_KINDS = "no table: each kind of layer has frequencies of its own"


class _Used(TypedDict):
    """What is used of an exported model's config.json besides what engines read."""

    model_type: str
    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    vocab_size: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]


class _UsedOfLadder(_Used):
    """The same of a ladder model's."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str
    rms_norm_eps: float


def verify(
    directory: str | Path,
    *,
    run: str | Path | None = None,
    prompt: str = PROMPT,
    num_tokens: int = 32,
    environments: str | Path | None = None,
) -> Verification:
    """Compares engines with the exported model.

    Args:
        directory: what `lerope.export` wrote.
        run: the run it came from, to compare with that instead of with the exported weights.
        prompt: a text to run engines on; its end is cut if the model's length needs it.
        num_tokens: how many tokens to continue it by.
        environments: a folder of virtual environments, each called after the engine that is installed in it; engines
            that are not there are run if they are installed here.
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
        config = _read_config(folder, is_ladder)
        weights = _weights(folder / WEIGHTS) if is_ladder else {}
        tables |= {name: functools.partial(make, config) for name, make in TABLES.items()}
    frequencies = None
    if _kinds(config):
        compared = [_row(name, config) | {"agrees": None, "note": _cause(name, config) or _KINDS} for name in tables]
    else:
        frequencies, factor = Frequencies.load(folder / FREQUENCIES), record.attention_factor or 1.0
        compared = [
            _compared(_row(name, config), _cause(name, config), make, frequencies, factor)
            for name, make in tables.items()
        ]
    length = config["max_position_embeddings"]
    num_tokens = min(num_tokens, length // 2)
    tokens = _tokens(folder, prompt, config, is_ladder)[: length - num_tokens]
    make: Callable[[], nn.Module]
    if run is not None:
        rounded = "" if record.dtype == "float32" else f" with its weights rounded to {record.dtype}"
        reference, make = f"the run {Path(run).name}{rounded}", lambda: _of_run(load_model(run), record)
    elif weights and frequencies is not None:
        reference, make = "lerope on the exported weights", lambda: _ladder(folder, config, weights, frequencies)
    else:
        reference, make = "transformers", lambda: _plain(folder)
    moved = _logits(_moved(make()), tokens)  # first, so that there is never more than one reference in memory
    model = make()
    still = _with_plain_rope(folder, config, weights, frequencies)
    engines = [engine for engine in found_engines(ENGINES, environments) if engine.format == record.format]
    ours = _logits(model, tokens)
    allowed = [_allowed(engine, record.dtype, moved, ours) for engine in engines]
    runs = [
        _unless_itself(engine, reference, _ran(engine, folder, config, (model, still), tokens, num_tokens, tolerance))
        for engine, tolerance in zip(engines, allowed, strict=True)
    ]
    return Verification(
        settings={
            "format": record.format,
            "dtype": record.dtype,
            "other_activation": other_activation(config),
            "num_prompt_tokens": len(tokens),
            "num_tokens": num_tokens,
            "table_tolerance": TABLE_TOLERANCE,
            "logit_tolerances": {engine.name: tolerance for engine, tolerance in zip(engines, allowed, strict=True)},
        },
        provenance=provenance(),
        reference=reference,
        tables=compared,
        runs=runs,
    )


def _kinds(config: dict[str, Any]) -> list[str]:
    """The kinds of layers that have frequencies of their own."""
    rope = config.get("rope_parameters")
    return [kind for kind, part in rope.items() if isinstance(part, dict)] if isinstance(rope, dict) else []


def _cause(engine: str, config: dict[str, Any]) -> str | None:
    """Why an engine is known to compute another function; None if that is not known."""
    activation = other_activation(config)
    if activation is not None and not engine.startswith("transformers"):
        return f"xIELU instead of {activation}"
    return cause(engine, config["model_type"])


def _row(engine: str, config: dict[str, Any]) -> EngineTable:
    """What is known of an engine and an architecture, which was tried with the activation that all engines have."""
    found = None if other_activation(config) is not None else tried(engine, config["model_type"])
    return EngineTable(
        engine=engine,
        error=None,
        attention_factor=None,
        agrees=False,
        tried=None if found is None else found.verdict,
        tried_version=None if found is None else found.version,
        note="",
    )


def _compared(
    row: EngineTable, reason: str | None, make: Callable[[], Table], frequencies: Frequencies, attention_factor: float
) -> EngineTable:
    """A table, rebuilt and compared.

    Args:
        reason: why the engine is known to compute another function, if it is.
    """
    try:
        table = make()
    except (ValueError, KeyError, TypeError, ArithmeticError) as problem:
        note = f"the engine needs {problem} in config.json." if isinstance(problem, KeyError) else str(problem)
        return row | {"note": note}
    wanted = np.array(frequencies.frequencies)
    values = table.frequencies.astype(np.float64)
    if values.shape != wanted.shape:
        return row | {"note": f"{len(values)} bands instead of {len(wanted)}"}
    turning = np.abs(wanted) >= _NO_TURN
    stand_still = bool(np.all(np.abs(values[~turning]) < _NO_TURN))
    error = float(np.max(np.abs(values[turning] / wanted[turning] - 1), initial=0.0))
    note = "" if stand_still else "bands turn that should stand still"
    if not note and not math.isclose(table.attention_factor, attention_factor, rel_tol=TABLE_TOLERANCE):
        note = f"the attention factor should be {attention_factor:g}"
    agrees: bool | None = error <= TABLE_TOLERANCE and not note
    if agrees and (reason is not None or row["tried"] not in (None, "agrees")):
        agrees, note = None, reason or ""
    return row | {"error": error, "attention_factor": table.attention_factor, "agrees": agrees, "note": note}


def _read_config(folder: Path, is_ladder: bool) -> dict[str, Any]:
    content = read_foreign_config(folder, "export the model again")
    if "text_config" in content or "max_position_embeddings" not in content:
        raise ValueError(
            f"verify compares language models; {folder} holds a {content.get('model_type')} model, whose language "
            "model is one part of it."
        )
    try:
        msgspec.convert(content, _UsedOfLadder if is_ladder else _Used)
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
def _of_run(model: Transformer, record: ExportRecord) -> nn.Module:
    """The run's own model at the length of the export, its weights as exact as the exported ones."""
    scale: Any = 1.0
    model.encoding = model.encoding.freeze()
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


def _plain(folder: Path, config: Any = None) -> nn.Module:
    """A converted model's folder, as transformers runs it; with another config if there is one."""
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    return model


@torch.no_grad()
def _moved(model: nn.Module) -> nn.Module:
    """The model with every number that it holds moved to the float32 above or below it, by lot.

    How far its logits move is what float32 can tell of them: the sharper attention is, the less.
    """
    lots = torch.Generator().manual_seed(0)
    for values in (*model.parameters(), *model.buffers()):
        if values.is_floating_point():
            up = torch.rand(values.shape, generator=lots) < 0.5
            values.data = values.nextafter(torch.where(up, torch.inf, -torch.inf))
    return model


def _with_plain_rope(
    folder: Path, config: dict[str, Any], weights: dict[str, Tensor], frequencies: Frequencies | None
) -> Callable[[], nn.Module]:
    """Makes the exported model without its factors, to recognise an engine that ignores them."""

    def ladder() -> nn.Module:
        assert frequencies is not None
        num_bands = len(frequencies.frequencies)
        values = [config["rope_theta"] ** (-band / num_bands) for band in range(num_bands)]
        return _ladder(folder, config, weights, replace(frequencies, frequencies=values, log_scales=None))

    def converted() -> nn.Module:
        from transformers import AutoConfig

        plain = AutoConfig.from_pretrained(folder)
        rope = plain.rope_parameters
        kinds = _kinds({"rope_parameters": rope})
        plain.rope_parameters = {kind: _plain_rope(rope[kind]) for kind in kinds} or _plain_rope(rope)
        return _plain(folder, plain)

    return ladder if weights else converted


def _plain_rope(rope: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in rope.items() if key in ("rope_theta", "partial_rotary_factor")}
    return {"rope_type": "default", **kept}


def _allowed(engine: Engine, dtype: str, moved: Array, ours: Array) -> float:
    """How far an engine's logits may be off, relative to the largest."""
    exact = ROUNDINGS * engine.difference(engine.scores(moved), ours)
    return max(exact, engine.narrow_tolerance) if dtype in ("bfloat16", "float16") else exact


def _ran(
    engine: Engine,
    folder: Path,
    config: dict[str, Any],
    references: tuple[nn.Module, Callable[[], nn.Module]],
    tokens: list[int],
    num_tokens: int,
    tolerance: float,
) -> EngineRun:
    row = EngineRun(
        engine=engine.name,
        version=None,
        logit_error=None,
        num_same_tokens=None,
        num_tokens=num_tokens,
        verdict=None,
        note="",
    )
    obstacle = engine.obstacle()
    if obstacle is not None:
        return row | {"note": obstacle}
    activation = other_activation(config)
    if activation is not None and not engine.any_activation:
        return row | {"note": f"cannot run activation {activation}"}
    try:
        version, found, ids = engine.carry_out(folder, tokens, num_tokens)
    except EngineError as problem:
        failed: Verdict = "cannot run"
        return row | {"version": problem.version, "verdict": failed, "note": str(problem)[:200]}
    ours = _logits(references[0], tokens, ids)
    expected = ours[len(tokens) - 1 :].argmax(-1).tolist()
    num_same = next((at for at, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b), len(ids))
    largest = float(np.max(np.abs(ours[: len(tokens)])))
    error = None if found is None else engine.difference(found, ours)
    same = num_same == len(ids)
    if not same and error is not None:
        # Where two tokens are as good as equal, rounding may choose either.
        scores = ours[len(tokens) - 1 + num_same]
        same = float(scores.max() - scores[ids[num_same]]) <= 2 * tolerance * largest
    verdict: Verdict = "agrees" if same and (error is None or error <= tolerance) else "differs"
    note = "" if num_same == len(ids) else f"continues differently from token {num_same + 1} on"
    if verdict == "differs" and found is not None:
        plain = _logits(references[1](), tokens, ids)
        if error is not None and engine.difference(found, plain) < error / 100:
            verdict, note = "ignores the factors", "its logits are those of plain RoPE"
    if verdict == "differs":
        note = _cause(known_as(engine.name, version), config) or note
    return row | {
        "version": version,
        "logit_error": error,
        "num_same_tokens": num_same,
        "verdict": verdict,
        "note": note,
    }


def _unless_itself(engine: Engine, reference: str, row: EngineRun) -> EngineRun:
    """What ran, unless it is what it is compared with: then its agreement says nothing."""
    if row["verdict"] != "agrees" or engine.name != reference or engine.python is not None:
        return row
    return row | {"logit_error": None, "num_same_tokens": None, "verdict": None, "note": "the reference itself"}


@torch.no_grad()
def _logits(model: nn.Module, tokens: list[int], ids: Sequence[int] = ()) -> Array:
    """Of the prompt's tokens and of all but the last that follow."""
    found = model(torch.tensor([[*tokens, *ids[:-1]]]))
    logits: Array = getattr(found, "logits", found)[0].numpy()
    return logits
