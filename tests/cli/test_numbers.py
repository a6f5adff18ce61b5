"""Options that are numbers: what is none is refused in words."""

import pytest

from lerope.cli.main import main


@pytest.mark.parametrize(
    ("args", "option", "sentence"),
    [
        (["train", "demo", "--data", "x", "--steps", "abc"], "--steps", "it must be a whole number; got 'abc'."),
        (["train", "demo", "--data", "x", "--learning-rate", "fast"], "--learning-rate", "it must be a number; got"),
        (["generate", "run", "prompt", "--tokens", "1e3"], "--tokens", "it must be a whole number; got '1e3'."),
        (["data", "prepare", "x", "--out", "y", "--vocab-size", "2k"], "--vocab-size", "it must be a whole number;"),
        (["needle", "run", "--distractors", "1", "b"], "--distractors", "each must be a whole number; got 'b'."),
        (["extrapolate", "run", "--to", "9", "--temperatures", "x"], "--temperatures", "each must be a number; got"),
    ],
)
def test_what_is_no_number_is_named_without_internals(capsys, args, option, sentence):
    with pytest.raises(SystemExit) as end:
        main(args)
    _, err = capsys.readouterr()
    assert end.value.code == 2
    assert f"Error parsing {option}: {sentence}" in err
    assert not any(internal in err for internal in ("class", "int()", "tuple", "{None}"))


def test_numbers_are_read_as_before(capsys):
    with pytest.raises(SystemExit):
        main(["train", "demo", "--data", "no-such", "--steps", "None", "--learning-rate", "1e-3"])
    assert "no-such/manifest.json does not exist" in capsys.readouterr().err
