"""The folders say which way data flows, and this test holds them to it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lerope

SOURCE = Path(lerope.__file__).parent

# Which other folders each may import; everything may import core, and bench, cli and launch may import everything.
BELOW = {
    "core": set(),
    "rotary": set(),
    "data": set(),
    "results": set(),
    "scaling": {"results"},
    "paper": {"scaling"},
    "model": {"rotary"},
    "train": {"rotary", "model", "data", "results"},
    "interop": {"rotary", "model", "train", "results"},
    "evaluate": {"rotary", "model", "data", "train", "results"},
    "analyze": {"rotary", "model", "data", "train", "evaluate", "interop", "results"},
    "report": {"scaling", "paper", "results"},
}
FREE = {"bench", "cli", "doctor", "launch"}
# What these folders may import besides the standard library.
PACKAGES = {"core": {"msgspec", "rich"}, "rotary": {"torch", "triton"}}
NO_TORCH = {"results", "scaling", "report", "paper"}


def imports_of(path: Path) -> set[str]:
    """Top-level names a file imports, `lerope.<folder>` for the package's own."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            names = [f"{node.module}.{a.name}" if node.module == "lerope" else node.module for a in node.names]
        else:
            continue
        for name in names:
            found.add(".".join(name.split(".")[:2]) if name.startswith("lerope") else name.split(".")[0])
    return found


def violations(folder: str, found: set[str]) -> set[str]:
    own = {name for name in found if name.startswith("lerope.")}
    packages = found - own - sys.stdlib_module_names - {"lerope"}
    wrong = own - {f"lerope.{name}" for name in ("core", folder, *BELOW[folder])}
    if folder in PACKAGES:
        wrong |= packages - PACKAGES[folder]
    if folder in NO_TORCH:
        wrong |= packages & {"torch"}
    return wrong


def test_every_folder_is_covered():
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= set(BELOW) | FREE
    assert "rotary" in folders


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_architecture(path):
    parts = path.relative_to(SOURCE).parts
    if len(parts) > 1 and parts[0] not in FREE:
        assert violations(parts[0], imports_of(path)) == set()


def test_the_rule_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import numpy as np\nfrom lerope.train.trainer import x\nfrom lerope import model\nimport json, torch\n"
    )
    assert violations("rotary", imports_of(bad)) == {"numpy", "lerope.train", "lerope.model"}
    assert violations("report", imports_of(bad)) == {"torch", "lerope.train", "lerope.model"}
    assert violations("train", imports_of(bad)) == set()
    assert violations("core", imports_of(bad)) == {"numpy", "torch", "lerope.train", "lerope.model"}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_ground_floor_and_what_reads_files_need_no_torch():
    """Not even by way of another module."""
    folders = ("core", *sorted(NO_TORCH))
    modules = [
        ".".join(("lerope", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for folder in folders
        for path in sorted((SOURCE / folder).rglob("*.py"))
    ]
    code = f"import sys, importlib; [importlib.import_module(m) for m in {modules!r}]; print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_importing_lerope_is_free_and_torch_comes_on_first_use():
    code = "import sys, lerope; print('torch' in sys.modules); lerope.LeRoPE; print('torch' in sys.modules)"
    assert run_python(code).split() == ["False", "True"]


def test_the_whole_public_surface_needs_little_more_than_torch():
    """What an import costs is what it imports: beyond torch's own packages, two small ones that read files."""
    code = (
        "import sys, torch; before = set(sys.modules); import lerope; "
        "[getattr(lerope, name) for name in lerope.__all__]; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert run_python(code) == "['lerope', 'msgspec', 'safetensors']"


def test_importing_changes_nothing():
    """No default dtype, device, thread or seed is touched, and no optional package is pulled in."""
    code = (
        "import sys, torch; before = (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed()); "
        "import lerope; [getattr(lerope, name) for name in lerope.__all__]; "
        "assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed()); "
        "optional = ('triton', 'transformers', 'scipy', 'rich', 'tyro', 'torch.distributed.fsdp'); "
        "print([name for name in optional if name in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_every_public_name_resolves_and_nothing_else_does():
    for name in lerope.__all__:
        assert getattr(lerope, name).__module__.startswith(("lerope.rotary", "lerope.interop"))
    assert set(lerope.__all__) <= set(dir(lerope))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lerope.nothing  # noqa: B018
