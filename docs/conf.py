"""How Sphinx builds the site from these pages: `make docs`, offline, with warnings as errors.

Why Sphinx (November 2026): Material for MkDocs ends in May 2027, MkDocs 1 has no maintainer, its successor Zensical is
at 0.1. Sphinx reads the same Markdown by MyST, takes links to files outside docs/, runs notebooks, searches from disk.
"""

import contextlib
import io
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import lerope
from lerope.cli.main import COMMANDS, main

project = "lerope"
author = "the authors of lerope"
copyright = f"{author}, Apache-2.0"
version = release = lerope.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["figures/*.py"]

# Markdown, with the anchors that headings have on GitHub. The notebook has no outputs of its own: it is run here.
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings: Google style, and single backticks are code, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False
highlight_language = "none"

html_theme = "furo"
html_title = "lerope"
html_static_path = ["_static"]
html_css_files = ["lerope.css"]
html_copy_source = False
html_show_sourcelink = False


class Commands(SphinxDirective):
    """A section for each command with what it says about itself."""

    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for name, (_, what) in COMMANDS.items():
            section = nodes.section(ids=[name], names=[name])
            section += nodes.title("", f"lerope {name}")
            section += nodes.paragraph("", f"{what[0].upper()}{what[1:]}.")
            for words in ([name], *([name, each] for each in subcommands(name))):
                section += nodes.literal_block("", said(words), language="text", classes=["help"])
            sections.append(section)
        return sections


def subcommands(name: str) -> list[str]:
    """The names after a command that has several, such as `data prepare`."""
    module = __import__(COMMANDS[name][0], fromlist=["COMMAND"])
    return list(module.COMMAND) if isinstance(module.COMMAND, dict) else []


def said(words: list[str]) -> str:
    """What `lerope WORDS --help` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue().rstrip()


def keep_attributes(app: Any, what: str, name: str, *rest: Any) -> None:
    """Remembers a field's docstring, because napoleon takes what stands before a colon for its type."""
    if what in ("attribute", "property"):
        app.kept_docstrings[name] = list(rest[-1])


def restore_attributes(app: Any, what: str, name: str, *rest: Any) -> None:
    if what in ("attribute", "property"):
        rest[-1][:] = app.kept_docstrings[name]


def setup(app: Any) -> None:
    app.add_directive("lerope-commands", Commands)
    app.kept_docstrings = {}
    app.connect("autodoc-process-docstring", keep_attributes, priority=400)
    app.connect("autodoc-process-docstring", restore_attributes, priority=600)
