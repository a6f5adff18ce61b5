"""Errors of the user's own code are one sentence with file, line and error."""

import pytest

from lerope.core.own_code import own_code
from lerope.launch.study import own_study

FILES = {
    "import math\n\ndef study():\n    return math.floor('x')\n": ("TypeError", 4),
    "raise RuntimeError('broken\\nin two lines')\n": ("RuntimeError: broken", 1),
    "def study(x):\n    return x\n": ("missing 1 required positional argument", None),
    "def study(:\n": ("SyntaxError", 1),
    "import sys\nsys.exit(3)\n": ("SystemExit", 2),
    "def study():\n    return study()\n": ("RecursionError", 2),
    "from lerope.launch.study import *\ndef study():\n    return Study(name='x', sentence='', runs=[3])\n": ("runs", 3),
    "from lerope.launch.study import *\ndef study():\n    return PlannedRun(rung='x/y', encoding=3)\n": ("encoding", 3),
}


@pytest.mark.parametrize("text", FILES)
def test_where_and_what(tmp_path, text):
    said, line = FILES[text]
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ValueError, match=r"own\.py") as caught:
        own_study(f"{tmp_path}/own.py:study")
    sentence = str(caught.value)
    assert said in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert line is None or f"{tmp_path}/own.py, line {line}." in sentence


def test_a_stop_by_the_user_is_none_of_it():
    with pytest.raises(KeyboardInterrupt), own_code("x"):
        raise KeyboardInterrupt
