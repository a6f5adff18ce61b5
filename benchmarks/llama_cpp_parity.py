"""Perplexity of a run in llama.cpp against ours, with its frequency factors and without them.

    python benchmarks/llama_cpp_parity.py runs/52M-lerope-42 essay.txt --out results/llama_cpp_parity.json

Needs `pip install llama-cpp-python gguf`. The run may also be a folder with nothing but a run's `model`. The text is
cut into windows of the train length, each of them from BOS on.
"""

import argparse
import importlib.metadata
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import lerope
from lerope.core.files import write_whole
from lerope.core.run import RUN, provenance, read_run
from lerope.data.tokenizer import Tokenizer
from lerope.interop.engine_runs import llama_cpp_logits
from lerope.interop.gguf import FACTORS, put_factors
from lerope.model.saved import load_model
from lerope.rotary.artifact import Frequencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    model = load_model(args.run)
    saved = Frequencies.load(args.run / "model" / "frequencies.json")
    assert saved.train_length is not None
    tokenizer = Tokenizer(args.run / "model" / "tokenizer.model")
    ids = tokenizer.encode([args.text.read_text(encoding="utf-8")])[0][1:-1].astype(np.int64)
    size = saved.train_length - 1
    starts = range(0, len(ids) - size, size)[: args.windows]
    windows = [torch.cat((torch.tensor([tokenizer.bos]), torch.from_numpy(ids[at : at + size]))) for at in starts]

    losses: dict[str, float] = {}
    error = 0.0
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for dtype in ("float32", "bfloat16"):
            out = lerope.export(args.run, Path(folder) / dtype, format="gguf", dtype=dtype)
            files[f"llama.cpp, {dtype}"] = out / "model.gguf"
        files["llama.cpp without the factors"] = Path(folder) / "plain.gguf"
        put_factors(files["llama.cpp, float32"], files["llama.cpp without the factors"], None)
        for window in windows:
            with torch.no_grad():
                ours = model(window[None])[0]
            logits = {name: torch.from_numpy(llama_cpp_logits(path, window.tolist())) for name, path in files.items()}
            error = max(error, float((logits["llama.cpp, float32"] - ours).abs().max() / ours.abs().max()))
            for name, values in {"ours": ours, **logits}.items():
                loss = cross_entropy(values[:-1].double(), window[1:], reduction="sum").item()
                losses[name] = losses.get(name, 0.0) + loss
    num_tokens = len(windows) * size
    perplexity = {name: float(np.exp(loss / num_tokens)) for name, loss in losses.items()}
    result = {
        "what": "perplexity of one run on one text, in windows of the train length",
        "run": read_run(args.run).label if (args.run / RUN).is_file() else None,
        "model": asdict(model.config),
        "train_length": saved.train_length,
        "text": args.text.name,
        "num_tokens": num_tokens,
        "perplexity": perplexity,
        "relative_difference": {name: value / perplexity["ours"] - 1 for name, value in perplexity.items()},
        "largest_logit_difference": error,
        "factors": {"tensor": FACTORS, "log_scales": saved.log_scales},
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "gguf": importlib.metadata.version("gguf"),
        "provenance": provenance(),
    }
    print(json.dumps({key: result[key] for key in ("num_tokens", "perplexity", "relative_difference")}, indent=1))
    if args.out is not None:
        write_whole(args.out, json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
