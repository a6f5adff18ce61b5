"""What people are told to type works where they are."""

import sys

import pytest

from lerope.core.terminal import program


@pytest.mark.parametrize(
    ("started", "on_path", "said"),
    [
        (".venv/bin/lerope", False, ".venv/bin/lerope"),
        (".venv/bin/lerope", True, "lerope"),
        ("src/lerope/__main__.py", False, "lerope"),
    ],
)
def test_a_name_that_the_shell_would_not_find_is_a_path(started, on_path, said, tmp_path, monkeypatch):
    if on_path:
        (tmp_path / "lerope").write_text("#!/bin/sh")
        (tmp_path / "lerope").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [started])
    assert program() == said
