"""A ladder model as a GGUF file for llama.cpp, with its frequencies in the tensor `rope_freqs.weight`.

llama.cpp turns band m by theta^m / rope_freqs[m] radians per token, where theta = base^(-2 / d) is rounded to float32.
It reads that tensor only in some architectures and only without a rope scaling type, and is silent where it does
not: so the architecture is checked here, the scaling type is `none`, and the file is read back.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lerope.core.extras import install
from lerope.core.files import whole
from lerope.core.run import FREQUENCIES
from lerope.interop.apertus import XIELU
from lerope.interop.export_record import read_export
from lerope.interop.longrope import STILL
from lerope.interop.tokenizer import NORMAL, UNUSED, Pieces
from lerope.rotary.artifact import Frequencies

Array = npt.NDArray[np.float32]
ARCHITECTURE = "apertus"
FACTORS = "rope_freqs.weight"
# Architectures in which llama.cpp both loads rope_freqs and turns by them (read in its sources, 2026-08).
READS_FACTORS = {
    "apertus",
    "arcee",
    "deci",
    "exaone",
    "exaone4",
    "granite",
    "llama",
    "llama4",
    "mistral3",
    "nanbeige",
    "step35",
}
_OF_MODEL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_LAYER = {
    "attention_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "feedforward_layernorm.weight": "ffn_norm.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def refuse_architecture(name: str) -> None:
    """Raises: GGUF files are written only for ladder models. Says what llama.cpp would do with this architecture."""
    if name not in READS_FACTORS:
        raise ValueError(
            f"llama.cpp ignores frequency factors in architecture {name!r} and would turn by plain RoPE; use "
            "format='hf', or a Llama or Apertus model."
        )
    raise ValueError(
        f"format='gguf' is for ladder models; got architecture {name!r}: convert the format='hf' folder with "
        "llama.cpp's converter and put the factors into its file with lerope.interop.gguf.put_factors."
    )


def rope_factors(frequencies: Frequencies) -> Array:
    """What `rope_freqs.weight` must hold for llama.cpp to turn by these frequencies."""
    assert frequencies.base is not None
    wanted = np.array(frequencies.frequencies, dtype=np.float64)
    # llama.cpp's powers of the rounded theta, so that its rounding does not add up over bands.
    theta = np.power(np.float32(frequencies.base), np.float32(-2.0) / np.float32(2 * len(wanted)))
    powers = np.float64(theta) ** np.arange(len(wanted))
    with np.errstate(divide="ignore"):
        factors = powers / wanted
    return np.where(np.abs(wanted) < 1 / STILL, STILL, factors).astype(np.float32)


def write_gguf(
    path: Path,
    *,
    name: str,
    config: dict[str, Any],
    weights: dict[str, Tensor],
    pieces: Pieces,
    frequencies: Frequencies,
) -> None:
    """Writes the file and reads it back.

    Args:
        config: what config.json of a Hugging Face folder would say.
        weights: under Apertus' names, float32.
    """
    gguf = _gguf()
    if pieces.normalizer or pieces.trims_spaces:
        raise ValueError(
            f"tokenizer {pieces.path} changes texts before splitting them, which llama.cpp does not; use one that "
            "`lerope tokenizer train` makes."
        )
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    kinds = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}
    writer.add_name(name)
    writer.add_file_type(kinds[config["dtype"]])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    for key, value in XIELU.items():
        getattr(writer, f"add_xielu_{key}")([value] * config["num_hidden_layers"])
    _add_tokenizer(writer, pieces, config["vocab_size"])
    writer.add_tensor(FACTORS, rope_factors(frequencies))
    for theirs, ours in names(config["num_hidden_layers"]).items():
        values = weights[theirs].numpy()
        if config["dtype"] == "bfloat16" and values.ndim > 1:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(ours, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(ours, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _check_written(path, config, weights, frequencies)


def put_factors(
    path: str | os.PathLike[str], target: str | os.PathLike[str], folder: str | os.PathLike[str] | None
) -> None:
    """Copies a GGUF file that llama.cpp's converter made from an exported folder, with the folder's frequencies in it.

    Args:
        path: the file to copy; its architecture must be one in which llama.cpp reads the factors.
        target: the file to write; must not exist.
        folder: what `lerope.export` wrote: its frequencies and its attention factor count. None removes the factors, to
            see what they do.
    """
    gguf = _gguf()
    path, target = Path(path), Path(target)
    if target.exists():
        raise ValueError(f"target {target} exists; name a new file.")
    reader = _open(path)
    architecture = _value(reader, "general.architecture")
    if architecture not in READS_FACTORS:
        refuse_architecture(architecture)
    attention_key = gguf.Keys.Rope.SCALING_ATTN_FACTOR.format(arch=architecture)
    frequencies = None
    attention_factor = _optional(reader, attention_key, 1.0)
    if folder is not None:
        frequencies, record = Frequencies.load(Path(folder) / FREQUENCIES), read_export(Path(folder))
        attention_factor = 1.0 if record.attention_factor is None else record.attention_factor
        _check_fit(reader, path, architecture, frequencies)
    with whole(target) as partial:
        writer = gguf.GGUFWriter(partial, architecture)
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture" or ".rope.scaling." in field.name:
                continue
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        if attention_factor != 1:
            writer.add_float32(attention_key, attention_factor)
        if frequencies is not None:
            writer.add_tensor(FACTORS, rope_factors(frequencies))
        for tensor in reader.tensors:
            if not tensor.name.startswith("rope_f"):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _check_fit(reader: Any, path: Path, architecture: str, frequencies: Frequencies) -> None:
    """Raises unless a file turns as many bands, at the same base."""
    rotary_dim = _value(reader, f"{architecture}.rope.dimension_count")
    base = _value(reader, f"{architecture}.rope.freq_base")
    wanted = 2 * len(frequencies.frequencies)
    if frequencies.base is None or rotary_dim != wanted or np.float32(base) != np.float32(frequencies.base):
        raise ValueError(
            f"{path} turns {rotary_dim} dimensions at base {base:g}; got frequencies for {wanted} at base "
            f"{frequencies.base}."
        )


def names(num_layers: int) -> dict[str, str]:
    """GGUF's name for every weight of an Apertus."""
    found = dict(_OF_MODEL)
    for layer in range(num_layers):
        found |= {f"model.layers.{layer}.{theirs}": f"blk.{layer}.{ours}" for theirs, ours in _OF_LAYER.items()}
    return found


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], Array]:
    """The config, the weights under Apertus' names and the factors of a file that `write_gguf` wrote."""
    gguf = _gguf()
    reader = _open(path)

    def own(key: str) -> Any:
        return _value(reader, f"{ARCHITECTURE}.{key}")

    architecture = _value(reader, "general.architecture")
    if architecture != ARCHITECTURE:
        raise ValueError(f"{path} must be of architecture {ARCHITECTURE}; got {architecture!r}.")
    config = {
        "model_type": ARCHITECTURE,
        "hidden_act": "xielu",
        "vocab_size": own("vocab_size"),
        "num_hidden_layers": own("block_count"),
        "num_attention_heads": own("attention.head_count"),
        "head_dim": own("attention.key_length"),
        "rms_norm_eps": own("attention.layer_norm_rms_epsilon"),
        "rope_theta": own("rope.freq_base"),
        "rope_scaling_type": own("rope.scaling.type"),
        "rope_attention_factor": _optional(reader, f"{ARCHITECTURE}.rope.scaling.attn_factor", 1.0),
        "max_position_embeddings": own("context_length"),
    }
    stored = {
        tensor.name: np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors
    }
    if FACTORS not in stored:
        raise ValueError(f"{path} has no tensor {FACTORS}: llama.cpp would turn by plain RoPE; export it again.")
    theirs = names(config["num_hidden_layers"])
    weights = {name: torch.from_numpy(stored[ours].astype(np.float32)) for name, ours in theirs.items()}
    return config, weights, stored[FACTORS].astype(np.float32)


def _check_written(path: Path, config: dict[str, Any], weights: dict[str, Tensor], frequencies: Frequencies) -> None:
    """Raises unless the file says what was written."""
    try:
        found, stored, factors = read_gguf(path)
        right = found["rope_scaling_type"] == "none" and np.array_equal(factors, rope_factors(frequencies))
        dtype = getattr(torch, config["dtype"])
        for name, value in stored.items():
            wanted = weights[name].to(dtype).float() if value.ndim > 1 else weights[name]
            right = right and torch.equal(value, wanted)
    except (KeyError, ValueError) as error:
        raise OSError(f"{path} does not read back as it was written ({error}).") from None
    if not right:
        raise OSError(f"{path} does not read back as it was written; export it again.")


def _add_tokenizer(writer: Any, pieces: Pieces, vocab_size: int) -> None:
    num_missing = vocab_size - len(pieces.pieces)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*pieces.pieces, *(f"[PAD{number}]" for number in range(num_missing))])
    writer.add_token_scores([*pieces.scores, *([-1e9] * num_missing)])
    writer.add_token_types([*(kind or NORMAL for kind in pieces.types), *([UNUSED] * num_missing)])
    writer.add_bos_token_id(pieces.bos)
    writer.add_eos_token_id(pieces.eos)
    writer.add_unk_token_id(pieces.unknown)
    writer.add_pad_token_id(pieces.pad)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(pieces.adds_space)


def _open(path: Path) -> Any:
    try:
        return _gguf().GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a complete GGUF file ({error}).") from None


def _value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the GGUF file has no key {key}; export it again.")
    return field.contents()


def _optional(reader: Any, key: str, otherwise: float) -> float:
    field = reader.get_field(key)
    return otherwise if field is None else float(field.contents())


def _gguf() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise ValueError(f"GGUF files need the package gguf: {install('gguf', 'gguf')}.") from None
