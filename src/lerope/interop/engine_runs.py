"""One run of a serving engine: logits of a prompt, and a greedy continuation.

Also a program, so that an engine can be run by the Python of an environment of its own, where lerope is not installed:

    python -P engine_runs.py ENGINE FOLDER REQUEST.json ANSWER.npz

Thus nothing of lerope is imported here, and engines only in the function that runs them.
"""

import importlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Ran = tuple[Array | None, list[int]]
"""Logits of the prompt's tokens, (tokens, vocabulary), None where an engine gives none; and the continuation."""
_MOST_LISTED = 8192


def run_transformers(folder: Path, tokens: list[int], num_tokens: int) -> Ran:
    """transformers, in float32, with its cache of keys and values."""
    torch = importlib.import_module("torch")
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=True)
        logits: Array = out.logits[0].numpy()
        ids = [int(logits[-1].argmax())]
        while len(ids) < num_tokens:
            out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            ids.append(int(out.logits[0, -1].argmax()))
    return logits, ids


def run_mlx(folder: Path, tokens: list[int], num_tokens: int) -> Ran:
    """mlx-lm, in float32."""
    mx = importlib.import_module("mlx.core")
    model, _ = importlib.import_module("mlx_lm.utils").load_model(folder)
    model.set_dtype(mx.float32)
    cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache(model)
    logits: Array = np.array(model(mx.array([tokens]), cache=cache))[0]
    ids = [int(logits[-1].argmax())]
    while len(ids) < num_tokens:
        ids.append(int(np.array(model(mx.array([ids[-1:]]), cache=cache))[0, -1].argmax()))
    return logits, ids


def run_vllm(folder: Path, tokens: list[int], num_tokens: int) -> Ran:
    """vLLM, in float32; for logits, log-probabilities of the whole vocabulary if that is small: it lists them all."""
    vllm = importlib.import_module("vllm")
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    num_listed = vocab_size if vocab_size <= _MOST_LISTED else None
    engine = vllm.LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_logprobs=num_listed or 1,
        gpu_memory_utilization=0.3,
    )
    how = vllm.SamplingParams(
        temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False, prompt_logprobs=num_listed
    )
    (done,) = engine.generate({"prompt_token_ids": tokens}, how)
    ids = list(done.outputs[0].token_ids)
    if num_listed is None:
        return None, ids
    # The first token has none, because nothing comes before it: there is one row less than tokens.
    rows = [[row[token].logprob for token in range(vocab_size)] for row in done.prompt_logprobs[1:]]
    return np.array(rows, np.float32), ids


def run_onnx(folder: Path, tokens: list[int], num_tokens: int) -> Ran:
    """ONNX Runtime GenAI, in float32: its own builder makes the graph."""
    genai = importlib.import_module("onnxruntime_genai")
    with tempfile.TemporaryDirectory() as built:
        options = ["-i", str(folder), "-o", f"{built}/model", "-p", "fp32", "-e", "cpu", "-c", f"{built}/cache"]
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", *options]
        made = subprocess.run(builder, capture_output=True, text=True)
        if made.returncode != 0:
            raise RuntimeError("the builder says: " + made.stderr.strip().splitlines()[-1].replace(str(folder), "..."))
        model = genai.Model(f"{built}/model")
        how = genai.GeneratorParams(model)
        how.set_search_options(max_length=len(tokens) + num_tokens, do_sample=False)
        generator = genai.Generator(model, how)
        generator.append_tokens(np.array(tokens, np.int32))
        logits: Array = np.array(generator.get_output("logits"), np.float32)[0]
        ids: list[int] = []
        while len(ids) < num_tokens:
            row = np.array(generator.get_logits(), np.float32).reshape(-1)
            ids.append(int(row.argmax()))
            if len(ids) < num_tokens:
                generator.append_tokens(np.array(ids[-1:], np.int32))
        return logits, ids


def run_sglang(folder: Path, tokens: list[int], num_tokens: int) -> Ran:
    """SGLang, in float32; on the CPU where there is nothing else. Log-probabilities as from vLLM."""
    torch, sglang = importlib.import_module("torch"), importlib.import_module("sglang")
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    listed: dict[str, Any] = {}
    if vocab_size <= _MOST_LISTED:
        listed = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": vocab_size}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = sglang.Engine(model_path=str(folder), dtype="float32", skip_tokenizer_init=True, device=device)
    try:
        how = {"temperature": 0.0, "max_new_tokens": num_tokens, "ignore_eos": True}
        done = engine.generate(input_ids=tokens, sampling_params=how, **listed)
    finally:
        engine.shutdown()
    ids = [int(token) for token in done["output_ids"]]
    if not listed:
        return None, ids
    rows = np.empty((len(tokens) - 1, vocab_size), np.float32)
    for row, found in zip(rows, done["meta_info"]["input_top_logprobs"][1:], strict=True):
        for value, token, *_ in found:
            row[token] = value
    return rows, ids


def run_llama_cpp(folder: Path, tokens: list[int], num_tokens: int) -> Ran:
    """llama.cpp through llama-cpp-python."""
    (path,) = folder.glob("*.gguf")
    logits = llama_cpp_logits(path, tokens, num_tokens)
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


RUNS: dict[str, Callable[[Path, list[int], int], Ran]] = {
    "transformers": run_transformers,
    "mlx-lm": run_mlx,
    "vLLM": run_vllm,
    "SGLang": run_sglang,
    "ONNX Runtime GenAI": run_onnx,
    "llama.cpp": run_llama_cpp,
}


def version_of(distributions: Sequence[str]) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def main() -> None:
    """Reads a request, runs the engine, and writes an answer or what went wrong."""
    engine, folder, request, answer = sys.argv[1:]
    asked: dict[str, Any] = json.loads(Path(request).read_text())
    said: dict[str, Any] = {"version": version_of(asked["distributions"])}
    arrays: dict[str, Any] = {}
    np.savez(answer, said=json.dumps(said))  # all there is, should the engine end this process
    try:
        logits, said["ids"] = RUNS[engine](Path(folder), asked["tokens"], asked["num_tokens"])
        if logits is not None:
            arrays["logits"] = logits
    except Exception as problem:  # an engine may raise anything
        said["problem"] = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
    np.savez(answer, said=json.dumps(said), **arrays)


if __name__ == "__main__":
    main()
