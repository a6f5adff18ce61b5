"""Code in README and docs runs as it stands there, names and options in it exist, and every page and name is found."""

import ast
import importlib
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path

import pytest

from lerope.cli.main import COMMANDS, main
from tests.report.example import write_example

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
# What a page's code finds in the folder it runs in.
GIVEN = {"figures.md": lambda folder: write_example(folder / "runs")}
PUBLIC = ("lerope", "lerope.scaling", "lerope.results")
NOT_RUN = "# Not run in tests: "


def blocks(page: Path, language: str) -> list[str]:
    """The page's code blocks in a language ("" for those that name none), those in lists too."""
    found: list[str] = []
    opened: tuple[str, str] | None = None
    for line in page.read_text().splitlines():
        fence = re.match(r"( *)```(\S*)", line)
        if fence and opened is None:
            opened = fence.group(1), fence.group(2)
            found += [""] if opened[1] == language else []
        elif fence:
            opened = None
        elif opened is not None and opened[1] == language:
            found[-1] += line.removeprefix(opened[0]) + "\n"
    assert opened is None, f"{page.name} ends inside a code block"
    return found


def cells(notebook: Path) -> list[str]:
    """The notebook's code."""
    content = json.loads(notebook.read_text())
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def imported(code: str) -> list[str]:
    """Names that code imports from lerope, with their modules, and attributes of `lerope` that it uses."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lerope":
            names += [f"{node.module}.{each.name}" for each in node.names]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lerope":
            names += [f"lerope.{node.attr}"]
    return names


@cache
def help_of(*words: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue()


@cache
def documented() -> set[str]:
    """Names that the reference has, and modules all of whose names it has."""
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    return set(re.findall(r"^\.\. auto\w+:: (\S+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    GIVEN.get(page.name, lambda folder: None)(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_run(notebook, tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "3")
    namespace: dict[str, object] = {}
    for cell in cells(notebook):
        exec(compile(cell, notebook.name, "exec"), namespace)
    assert all(not cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"])


@pytest.mark.parametrize("name", ["band", "distance", "flow"])
def test_drawings_are_what_their_scripts_draw(name, tmp_path):
    for file in ("svg.py", f"{name}.py"):
        shutil.copy(DOCS / "figures" / file, tmp_path)
    subprocess.run([sys.executable, tmp_path / f"{name}.py"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / f"{name}.svg").read_text() == (DOCS / "figures" / f"{name}.svg").read_text()


def test_there_is_something_to_run():
    assert NOTEBOOKS
    for name in ("own-model.md", "encodings.md", "huggingface.md", "long-context.md", "studies.md", "training.md"):
        assert blocks(DOCS / name, "python"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_blocks_that_are_not_run_say_why_and_name_what_exists(page):
    for block in blocks(page, "py"):
        assert block.startswith(NOT_RUN), block
        for name in imported(block):
            module, _, attribute = name.rpartition(".")
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
                continue
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_their_options_exist(page):
    lines = re.sub(r"\\\n", " ", "\n".join(blocks(page, "")))
    for line in re.findall(r"(?:^|-m )lerope (.+)", lines, flags=re.MULTILINE):
        words = line.partition(" #")[0].split()
        assert words[0] in COMMANDS, line
        command = importlib.import_module(COMMANDS[words[0]][0]).COMMAND
        if isinstance(command, dict) and len(words) > 1 and words[1] in command:
            text = help_of(*words[:2])
        else:
            text = help_of(words[0])
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", text), f"{option} in: lerope {line}"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"^[^<\n]*<([\w/-]+)>$", (DOCS / "index.md").read_text(), flags=re.MULTILINE))
    listed |= {f"api/{name}" for name in re.findall(r"^\w+$", (DOCS / "api/index.md").read_text(), flags=re.MULTILINE)}
    pages = {str(p.relative_to(DOCS).with_suffix("")) for p in [*PAGES[1:], *NOTEBOOKS]} - {"index"}
    assert pages - listed == set()


def test_the_reference_has_every_public_name():
    for module in PUBLIC:
        if module not in documented():
            names = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
            assert names - documented() == set()


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda p: p.name)
def test_the_reference_has_what_pages_import(page):
    code = cells(page) if page.suffix == ".ipynb" else [*blocks(page, "python"), *blocks(page, "py")]
    for name in (name for block in code for name in imported(block)):
        assert name in documented() or name.rpartition(".")[0] in documented() - {"lerope"}, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
