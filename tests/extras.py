"""Each extra of the package in an environment of its own, where it must do what it is for: `make extras`.

    python tests/extras.py dist/lerope-*.whl FOLDER            # all of them, in FOLDER/EXTRA; a few GB
    python tests/extras.py dist/lerope-*.whl FOLDER data hf    # some of them

Versions are those of constraints.txt. The first, `none`, is the package alone.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
TEXTS = """python -c "
from pathlib import Path; from pydoc_data.topics import topics
Path('text').mkdir(exist_ok=True)
for name, text in topics.items(): Path('text', name + '.txt').write_text(text)
" """
PREPARE = "lerope data prepare text --vocab-size 500 --validation-fraction 0.1 --out data"
TRAIN = "lerope train demo --encoding lerope --steps 2 --batch-tokens 512 --row-length 128 --activation relu2 --out run"
TRACKED = f"WANDB_MODE=offline {TRAIN} --data ../data/data --trackers"
CONVERT = """python -c "
import lerope, transformers
config = transformers.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=99)
lerope.export(lerope.convert(transformers.LlamaForCausalLM(config)), 'served')
" """
NONE = """python -c "
import lerope, torch
q = torch.randn(1, 4, 2, 64)
assert torch.equal(lerope.LeRoPE(64)(q, None, 0)[0], lerope.RoPE(64)(q, None, 0)[0])
" """
JOBS: dict[str, tuple[str, ...]] = {
    "none": (NONE, "lerope plan 52M", "lerope presets"),
    "data": (TEXTS, PREPARE, f"{TRAIN} --data data", "lerope eval run --max-tokens 2000", "lerope generate run def"),
    "scaling": ("lerope multipliers --paper",),
    "plots": ("lerope presets show english --out english.svg",),
    "hf": (CONVERT, "lerope verify served"),
    "gguf": ("lerope export ../data/run out --format gguf",),
    "tensorboard": (f"{TRACKED} tensorboard",),
    "wandb": (f"{TRACKED} wandb",),
    "trackio": (f"{TRACKED} trackio",),
    "kernels": ("lerope doctor",),
    "bench": ("lerope bench rotary",),
    "fast": ("lerope doctor",),
}
"""What is run, in a folder of its own; some need what `data` has left."""


def try_out(wheel: Path, home: Path, extra: str) -> str | None:
    """What goes wrong with an extra; None if nothing does."""
    folder = home / extra
    venv.create(folder / "env", with_pip=True, clear=True)
    programs = folder / "env" / "bin"
    wanted = f"lerope[{extra}] @ {wheel.resolve().as_uri()}" if extra != "none" else str(wheel.resolve())
    install = [str(programs / "pip"), "install", "--quiet", "--constraint", str(CONSTRAINTS), wanted]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    for command in (install, *(["sh", "-c", job] for job in JOBS[extra])):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            return f"{command[-1].strip()}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    return None


if __name__ == "__main__":
    wheel, home, *names = sys.argv[1:]
    failed = False
    for extra in names or JOBS:
        problem = try_out(Path(wheel), Path(home), extra)
        failed = failed or problem is not None
        print(f"{extra}: {'works' if problem is None else problem}", flush=True)
    sys.exit(failed)
