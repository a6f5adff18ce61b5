"""Command lines: every option of every command with values that no one should give, and encodings of every kind."""

import dataclasses
import importlib
import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from lerope.cli.main import COMMANDS
from tests.fuzz.inputs import Call, Input, Reader, untrained, words

VALUES = (
    *("", "x", "-1", "0", "1", "0.5", "nan", "inf", "-inf", "1e400", str(1 << 63), str(1 << 70), "9" * 5000),
    *("[/b]", "[red]x", "../x", "/", "\x00", "é\udcff", "a" * 5000, "..:x", "rope", "@runs/lerope", "@data", "None"),
)
# What a command needs besides the option that is tried. Those that are not here take long whatever they are given.
NEEDED: dict[str, tuple[str, ...]] = {
    "data inspect": ("@data",),
    "data prepare": ("@text.jsonl", "--out", "@out", "--tokenizer", "@given.model", "--workers", "1"),
    "tokenizer show": ("@data/tokenizer.model",),
    "plan": ("demo",),
    "train": ("demo", "--data", "@data", "--out", "@out", "--vocab-size", "400", "--steps", "2"),
    "eval": ("@runs/lerope", "--device", "cpu"),
    "compare": ("@runs/rope", "@runs/lerope"),
    "multipliers": ("@runs/rope", "@runs/lerope"),
    "needle": ("@runs/lerope", "--to", "128", "--samples", "1", "--depths", "0.5", "--device", "cpu"),
    "extrapolate": ("@runs/lerope", "--to", "128", "--device", "cpu"),
    "analyze": ("@runs/lerope", "--rows", "1", "--phasor-rows", "1", "--max-tokens", "100", "--device", "cpu"),
    "generate": ("@runs/lerope", "x", "--tokens", "3", "--device", "cpu"),
    "report": ("@runs", "--out", "@out", "--no-figures"),
    "sweep": ("demo", "--data", "@data", "--out", "@out", "--vocab-size", "400", "--steps", "2"),
    "ladder": ("@study.py:study", "--status", "--out", "@study", "--data", "@data"),
    "export": ("@runs/lerope", "@out"),
    "verify": ("@served", "--num-tokens", "2"),
}
ENCODINGS = (
    *("", ",", ":", "..:x", ".:x", "a..b:c", ":x", "x:", "os:", "os:sep", "os:getcwd", "sys:exit", "json:loads", "1:2"),
    *(
        "rope,",
        "rope,base",
        "rope,base=",
        "rope,base=0",
        "rope,base=-1",
        "rope,base=nan",
        "rope,base=inf",
        "rope,base=x",
    ),
    *("rope,base=1e400", "rope,base=(1,2)", "rope,base=" + "(" * 500, "rope,base=" + "9" * 5000, "rope,base=1,base=2"),
    *("rope,rotary_dim=3", "rope,rotary_dim=1.5", "rope,rotary_dim=-2", "rope,rotary_dim=" + str(1 << 70)),
    *(
        "rope,layout=x",
        "rope,layout=None",
        "prope,p=0",
        "prope,p=2",
        "prope,p=nan",
        "lerope,sharing=x",
        "lerope,base=[]",
    ),
    *(
        "lerope,parametrization=[1]",
        "lerope,sharing={'a':1}",
        "frozen",
        "frozen,x=1",
        "nowhere.json",
        ".json",
        "/.json",
    ),
    *(
        "@data/manifest.json",
        "@runs",
        "@data/tokenizer.model",
        "[/b]",
        "[/b]:x",
        "x:[/b]",
        "rope\x00",
        "é:ü",
        "nope,p=1",
    ),
    *(
        "json.json",
        "lerope.model.spec:build_encoding",
        "tests.fuzz.world:Hang",
        "a" * 5000,
        "a:" + "b" * 5000,
        "rope;x",
    ),
    *("antigravity:x", "tests.fuzz.no_module:x", "lerope,num_layers=7", "lerope,head_dim=8", "rope,__class__=1"),
)


def command_inputs(world: Path, seed: int = 0) -> Iterator[Input]:
    """Options with odd values, then encodings."""
    for name, needed in NEEDED.items():
        yield _input((name, needed), [], "alone")
        for option in options(name):
            for value in VALUES:
                yield _input((name, needed), [f"--{option}", value], f"--{option} {value[:30]!r}")
        for position, value in enumerate(needed):
            if value.startswith("@") and not (position and needed[position - 1].startswith("--")):
                for odd in VALUES:
                    changed = (*needed[:position], odd, *needed[position + 1 :])
                    yield _input((name, changed), [], f"{odd[:30]!r} for {value}")
    chance = random.Random(seed)
    made = ["".join(chance.choices("rope,=:.x1[]/-_ é", k=chance.randint(1, 12))) for _ in range(60)]
    for encoding in (*ENCODINGS, *made):
        needed = NEEDED["train"]
        yield _input(("train", needed), ["--encoding", encoding], f"--encoding {encoding[:40]!r}")
    for name in COMMANDS:
        for odd in ("--help", "--nothing", "[/b]"):
            if name not in ("demo", "watch", "bench", "doctor") or odd != "[/b]":
                yield _input((name, ()), [odd], odd)


def options(name: str) -> dict[str, Any]:
    """The options of a command and their types, from its function."""
    first, _, second = name.partition(" ")
    function = importlib.import_module(COMMANDS[first][0]).COMMAND
    function = function[second] if second else function
    hints = get_type_hints(function)
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if parameter.name == "json_" or parameter.name == "print_" or hint is bool:
            continue
        if dataclasses.is_dataclass(hint):
            found |= {field.name: hint for field in dataclasses.fields(hint) if field.type is not bool}
        elif parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            found[parameter.name] = hint
    return {option.replace("_", "-"): hint for option, hint in found.items()}


def _input(base: tuple[str, tuple[str, ...]], more: list[str], what: str) -> Input:
    name, needed = base
    return Input(
        "command lines",
        f"lerope {name} {what}",
        lambda world: None,
        (Reader(name, own=_call(name, needed, more)),),
        "",
        False,
    )


def _call(name: str, needed: tuple[str, ...], more: list[str]) -> Call:
    return lambda world: lambda: untrained(words(*name.split(), *needed, *more)(world))
