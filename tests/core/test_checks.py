"""Names that are misspelled are refused with the one that was meant."""

import pytest

from lerope.cli.main import main
from lerope.core.checks import hint
from lerope.core.encoding import EncodingSpec
from lerope.core.ladder import rung
from lerope.model.spec import build_encoding


@pytest.mark.parametrize(
    ("value", "known", "meant"),
    [
        ("trian", ["train", "plan"], "train"),
        ("LEROPE", ["rope", "lerope"], "lerope"),
        ("217m", ["19M", "217M"], "217M"),
        ("x", ["train"], None),
        ("", ["train"], None),
        (None, ["train"], None),
        ("a" * 100_000, ["train"], None),
        ("train", [], None),
    ],
)
def test_the_known_name_that_is_closest(value, known, meant):
    assert hint(value, known) == ("." if meant is None else f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: rung("53M"), "52M"),
        (lambda: EncodingSpec.parse("lrope,base=500"), "lerope,base=500"),
        (lambda: EncodingSpec.parse("rope,bas=500"), "base"),
        (lambda: EncodingSpec.parse("lerope,sharin=layer"), "sharing"),
        (lambda: build_encoding("lerope,sharing=layr", rung("demo")), "layer"),
    ],
)
def test_refusals_say_what_was_meant(call, meant):
    with pytest.raises(ValueError, match=rf"; did you mean {meant}\?$"):
        call()


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["trian"], "train"),
        (["Eval"], "eval"),
        (["data", "prepar", "x"], "prepare"),
        (["plan", "218M"], "217M"),
        (["plan", "seed"], "seeds"),
        (["plan", "52M", "--gpu", "H20"], "H200"),
        (["ladder", "sharin", "--print"], "sharing"),
    ],
)
def test_so_do_commands(args, meant, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")


def test_options_are_suggested_by_what_reads_them(capsys):
    with pytest.raises(SystemExit):
        main(["train", "demo", "--data", "x", "--encodng", "rope"])
    printed = capsys.readouterr()
    assert "--encoding" in printed.err + printed.out
