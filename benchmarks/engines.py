"""Serving engines, really run, on small models of many architectures whose frequencies were changed.

    python benchmarks/engines.py .engines                                   # every architecture in every engine
    python benchmarks/engines.py .engines --only llama phi3 --out FILE      # some architectures
    python benchmarks/engines.py .engines --engines vllm --out FILE         # one environment of those in the folder
    python benchmarks/engines.py --tables                                   # only the table in docs/serving.md

The folder holds one virtual environment for each engine, as `make engines` makes them. One run over all of them is
results/engines.json. From it, and from results/engines_sglang.json (`make engines` leaves out SGLang, which wants
gigabytes of CUDA), come the table in docs/serving.md and what `lerope verify` says of an architecture
(src/lerope/interop/tried.json).

Models have random weights, attention that looks around, and frequencies e^0.5 away from RoPE's in the mean, so that an
engine that turns by plain RoPE is off by about as much as the logits are large.
"""

import argparse
import copy
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import lerope
from lerope.core.files import write_json
from lerope.core.ladder import ModelConfig
from lerope.core.run import provenance
from lerope.interop.engine_runs import version_of
from lerope.interop.huggingface import rotary_of
from lerope.interop.tried import FILE, known_as
from lerope.interop.verify import verify
from lerope.model.init import init_weights
from lerope.model.transformer import Transformer

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "engines.json"
SGLANG = ROOT / "results" / "engines_sglang.json"
PAGE = ROOT / "docs" / "serving.md"
START, END = "<!-- engines: made by benchmarks/engines.py -->\n", "<!-- end of engines -->\n"
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LADDER = "ladder"
PROMPT = " ".join(f"w{(17 * at * at + 3 * at) % 500 + 5}" for at in range(48))
KINDS = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere2": {"layer_types": KINDS, "sliding_window": 128},
    "exaone4": {"layer_types": KINDS, "sliding_window": 128},
    "gemma2": {"head_dim": 64, "query_pre_attn_scalar": 64},
    "gemma3_text": {"head_dim": 64, "query_pre_attn_scalar": 64, "layer_types": KINDS},
    "glm4": {"head_dim": 64},
    # It has no grouped queries, and vLLM would believe the key.
    "gpt_neox": {"num_key_value_heads": 4},
    "granite": {},
    "llama": {},
    "mistral": {"head_dim": 64, "sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "nemotron": {},
    "olmo2": {},
    "olmo3": {"layer_types": KINDS},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
ENGINES = ("transformers 5", "transformers 4", "vLLM", "mlx-lm", "ONNX Runtime GenAI", "SGLang", "llama.cpp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("environments", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", choices=[LADDER, *FAMILIES], default=[LADDER, *FAMILIES])
    parser.add_argument("--engines", nargs="+", metavar="NAME", help="folders among the environments")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.out == RESULTS and (args.engines or len(args.only) <= len(FAMILIES)):
        parser.error(f"{RESULTS.name} is one run of everything; give a part --out FILE.")
    rows: list[dict[str, Any]] = []
    for architecture in [] if args.tables else args.only:
        with tempfile.TemporaryDirectory() as home:
            new = tried(architecture, Path(home), chosen(args.environments, args.engines, Path(home)))
        rows += new
        write_results(args.out, rows)
        for row in new:
            error = "" if row["error"] is None else f"{row['error']:.1e} of {row['allowed']:.1e}"
            print(f"{architecture:12} {row['engine']:20} {row['version']:10} {row['verdict']:20} {error}", row["note"])
    if args.out == RESULTS:
        write_tables([row for path in (RESULTS, SGLANG) for row in json.loads(path.read_text())["tried"]])


def chosen(environments: Path | None, names: list[str] | None, home: Path) -> Path:
    """A folder with links to the environments to use."""
    folder = home / "environments"
    folder.mkdir()
    for path in sorted(environments.iterdir()) if environments is not None else []:
        if names is None or path.name in names:
            (folder / path.name).symlink_to(path.absolute())
    return folder


def tried(architecture: str, home: Path, environments: Path) -> list[dict[str, Any]]:
    """What every environment's engine makes of a model of this architecture."""
    exports = export_ladder(home) if architecture == LADDER else [export_converted(architecture, home)]
    rows = []
    for folder in exports:
        found = verify(folder, prompt=PROMPT, num_tokens=16, environments=environments)
        for row in found.runs:
            if row["verdict"] is not None and row["version"] is not None:
                rows.append(
                    {
                        "engine": known_as(row["engine"], row["version"]),
                        "version": row["version"],
                        "architecture": architecture,
                        "verdict": row["verdict"],
                        "error": row["logit_error"],
                        "allowed": found.settings["logit_tolerances"][row["engine"]],
                        "note": row["note"],
                    }
                )
    return rows


def export_ladder(home: Path) -> list[Path]:
    """A ladder model with squared ReLU, as a folder and as a GGUF file."""
    from lerope.data.tokenizer import train_tokenizer

    tokenizer = home / "tokenizer.model"
    words = " ".join(f"w{token}" for token in range(SHAPE["vocab_size"]))
    train_tokenizer([(ROOT / "LICENSE").read_text(), words], SHAPE["vocab_size"], tokenizer)
    encoding = lerope.LeRoPE(64)
    shape = ModelConfig(num_layers=2, num_heads=4, vocab_size=SHAPE["vocab_size"], activation="relu2")
    model = Transformer(shape, encoding)
    init_weights(model, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.fill_(2.0)
    shake(encoding)
    length = SHAPE["max_position_embeddings"]
    return [
        lerope.export(model, home / "hf", tokenizer=tokenizer, train_length=length),
        lerope.export(model, home / "gguf", "gguf", tokenizer=tokenizer, train_length=length),
    ]


def export_converted(family: str, home: Path) -> Path:
    """A model of a family that transformers knows."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **copy.deepcopy({**SHAPE, **FAMILIES[family]}))
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "query_key_value")):
            torch.nn.init.normal_(parameter, std=0.15)
    lerope.convert(model)
    shake(rotary_of(model))
    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(SHAPE["vocab_size"])}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "w1", "eos_token": "w2", "pad_token": "w0", "unk_token": "w3"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    return lerope.export(model, home / "hf", tokenizer=tokenizer)


def shake(module: torch.nn.Module) -> None:
    """Learned frequencies that are not the initial ones."""
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=noise).to(parameter))


def write_results(path: Path, rows: list[dict[str, Any]]) -> None:
    stamp = {"provenance": provenance(), "transformers": version_of(["transformers"])}
    write_json(path, {"tried": sorted(rows, key=lambda row: (row["engine"], row["architecture"])), **stamp})


def write_tables(rows: list[dict[str, Any]]) -> None:
    """What lerope and its documentation say, from the results."""
    known = [row | {"architecture": "apertus"} if row["architecture"] == LADDER else row for row in rows]
    said = [{key: value for key, value in row.items() if key != "allowed"} for row in known]
    write_json(FILE, {"tried": sorted(said, key=lambda row: (row["engine"], row["architecture"]))})
    text = PAGE.read_text()
    before, _, rest = text.partition(START)
    PAGE.write_text(before + START + table(rows) + END + rest.partition(END)[2])


def table(rows: list[dict[str, Any]]) -> str:
    """A column for each engine that was run, a row for each architecture, the error of logits in the cells."""
    engines = [engine for engine in ENGINES if any(row["engine"] == engine for row in rows)]
    versions = {row["engine"]: row["version"] for row in rows}
    heads = [f"{engine.split()[0] if engine[-2:] in (' 4', ' 5') else engine} {versions[engine]}" for engine in engines]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(engines)]
    cells = {(row["engine"], row["architecture"]): cell(row) for row in rows}
    for name in [LADDER, *FAMILIES]:
        found = [cells.get((engine, name), "") for engine in engines]
        label = "a ladder model (relu2)" if name == LADDER else f"`{name}`"
        lines.append(f"| {label} | " + " | ".join(found) + " |")
    return "\n".join(lines) + "\n"


def cell(row: dict[str, Any]) -> str:
    if row["verdict"] == "agrees":
        return "tokens" if row["error"] is None else f"{row['error']:.0e}"
    return f"**{row['verdict']}**"


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        main()
