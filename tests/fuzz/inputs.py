"""Every input of the suite: a damage to a file of the world, and the commands that read it."""

import dataclasses
import functools
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from lerope.core.run import FrequencyRecord, StepRecord, ValidationRecord, _RunFile
from lerope.data.resume import Progress
from lerope.data.shards import Manifest
from lerope.interop.export_record import ExportRecord
from lerope.launch.measured import _Note
from lerope.model.saved import SavedConfig
from lerope.results import _KINDS, Sweep
from lerope.rotary.artifact import Frequencies
from lerope.train.checkpoint import Mark
from tests.fuzz.damage import Damage, keep_time, to_any_file, to_bits, to_json, to_lines, written
from tests.fuzz.world import command, measurements, train

Call = Callable[[Path], Callable[[], object]]
"""Given the world, a command to run."""
SIGNED: dict[str, Any] = {"fingerprint": str}
RESULT: dict[str, Any] = {"kind": str, "version": int}


SWEEP = (
    *(
        "demo",
        "--data",
        "@data",
        "--vocab-size",
        "400",
        "--previous",
        "@sweep",
        "--extrapolate",
        "52M",
        "--out",
        "@out",
    ),
    *("--steps", "1", "--row-length", "64", "--batch-tokens", "64", "--encodings", "rope"),
)


def without(folder: Path, stem: str) -> None:
    """Removes a result, so that it is made again."""
    for path in folder.glob(f"{stem}.*"):
        path.unlink()


def untrained(call: Callable[[], object]) -> None:
    """Gives training up before its first step: a valid size may be one that takes a year."""
    with mock.patch("lerope.train.job._carry_out", side_effect=SystemExit(0)):
        call()


def words(*arguments: str) -> Call:
    """A command of which words that begin with @ are paths in the world."""
    return lambda world: command(*(str(world / word[1:]) if word[:1] == "@" else word for word in arguments))


CALLS: dict[str, Call] = {
    "report": words("report", "@runs/lerope", "--out", "@out", "--no-figures"),
    "compare": words("compare", "@runs/rope", "@runs/lerope"),
    "status": words("ladder", "@study.py:study", "--out", "@study", "--status", "--data", "@data"),
    "train": lambda world: train(world, "runs/lerope"),
    "resume": lambda world: train(world, "stopped"),
    "new": lambda world: train(world, "new", steps=2),
    "frozen": lambda world: train(world, "new", str(world / "runs/lerope/model/frequencies.json"), 2),
    "eval another": words("eval", "@runs/lerope", "--length", "48", "--device", "cpu"),
    "analyze another": lambda world: (
        lambda: (
            without(world / "runs/lerope/results", "frequencies")
            or words("analyze", "@runs/lerope", "--parts", "frequencies")(world)()
        )
    ),
    "export": words("export", "@runs/lerope", "@out"),
    "verify": words("verify", "@served", "--num-tokens", "2"),
    "verify gguf": words("verify", "@gguf", "--num-tokens", "2"),
    "inspect": words("data", "inspect", "@data"),
    "prepare": words(
        *("data", "prepare", "@text.jsonl", "--out", "@partial", "--tokenizer", "@given.model"),
        *("--validation-fraction", "0.2", "--workers", "1"),
    ),
    "sweep": lambda world: lambda: untrained(words("sweep", *SWEEP)(world)),
    **{
        name: lambda world, name=name: command(*measurements(world / "runs/lerope")[name])  # type: ignore[misc]
        for name in ("eval", "extrapolate", "needle", "analyze")
    },
}


@dataclass(frozen=True)
class Reader:
    """A command that reads a file, and what must come of damage."""

    call: str
    says: str = ""
    """What its words must contain if it notices; the file's name unless given."""
    heals: bool = False
    """It makes what is damaged again, or does without, which needs no word."""
    own: Call | None = None
    """A command that no other input is given to."""

    def run(self, world: Path) -> Callable[[], object]:
        """The command, for this world."""
        return (self.own or CALLS[self.call])(world)


@dataclass(frozen=True)
class Input:
    """One input."""

    kind: str
    """A line of the table."""
    name: str
    apply: Callable[[Path], None]
    """Given the world."""
    readers: tuple[Reader, ...]
    file: str
    is_bad: bool


@dataclass(frozen=True)
class Format:
    """A JSON file that lerope reads."""

    file: str
    type: Any
    readers: tuple[Reader, ...]
    beside: dict[str, Any] = dataclasses.field(default_factory=dict)


def readers(*calls: str, says: str = "", heals: bool = False) -> tuple[Reader, ...]:
    """Commands that behave alike."""
    return tuple(Reader(call, says, heals) for call in calls)


def result_formats() -> Iterator[Format]:
    """A file of every kind of result: those of a run as its command leaves them."""
    made_by = {
        "evaluation": ("eval", "eval"),
        "extrapolation": ("extrapolation-first300", "extrapolate"),
        "needle": ("needle-long-128-samples-1-depths-0.5", "needle"),
        "frequencies": ("frequencies", "analyze"),
        "bands": ("bands", "analyze"),
        "ablation": ("ablation", "analyze"),
        "slowest": ("slowest", "analyze"),
        "phasors": ("phasors", "analyze"),
    }
    for kind, type_ in _KINDS.items():
        if type_ is Sweep:
            continue
        stem, maker = made_by.get(kind, (kind, ""))
        found = readers("report")
        found += readers("compare") if kind == "evaluation" else ()
        found += readers(maker, heals=True) if maker else ()
        yield Format(f"runs/lerope/results/{stem}.json", type_, found, RESULT)


@functools.cache
def formats() -> tuple[Format, ...]:
    """Every JSON file."""
    of_run = readers("report", "compare", "train", "eval", "export", "analyze", "needle")
    return (
        Format("runs/lerope/run.json", _RunFile, of_run),
        Format("study/demo-rope-42-a/run.json", _RunFile, readers("status", says="demo-rope-42-a")),
        Format("stopped/run.json", _RunFile, readers("resume")),
        Format("data/manifest.json", Manifest, readers("inspect", "new", "status"), SIGNED),
        Format("partial/progress.json", Progress, readers("prepare")),
        Format("runs/lerope/model/config.json", SavedConfig, readers("eval another", "export")),
        Format(
            "runs/lerope/model/frequencies.json",
            Frequencies,
            readers("eval another", "frozen", "analyze another"),
            SIGNED,
        ),
        Format(
            "stopped/checkpoints/step-00000009/checkpoint.json",
            Mark,
            readers("resume", says="step-00000009 is damaged"),
        ),
        Format("study/demo-rope-42-a/results/.measured.json", _Note, readers("status", heals=True)),
        Format("sweep/sweep.json", Sweep, readers("sweep"), RESULT),
        Format("served/export.json", ExportRecord, readers("verify")),
        Format("gguf/export.json", ExportRecord, readers("verify gguf")),
        Format("served/frequencies.json", Frequencies, readers("verify"), SIGNED),
        # Of Hugging Face's own nothing is known but what is used.
        Format("served/config.json", dict[str, Any], readers("verify", heals=True)),
        Format("data/.verified.json", dict[str, Any], readers("new", heals=True)),
        *result_formats(),
    )


def json_inputs(world: Path) -> Iterator[Input]:
    """Fields of every format, and the files as a whole."""
    for each in formats():
        content = (world / each.file).read_bytes()
        whole = to_any_file(content, zlib.crc32(each.file.encode()))
        for damage in (*to_json(each.type, json.loads(content), each.beside), *whole):
            yield made("JSON files", each.file, damage, each.readers)


def line_inputs(world: Path) -> Iterator[Input]:
    """A record of training in the middle of others: it costs that record."""
    lines = (world / "runs/lerope/metrics.jsonl").read_bytes().splitlines()
    validation = next(number for number, line in enumerate(lines) if b"validation_loss" in line)
    for file, type_, which in (
        ("metrics.jsonl", StepRecord, 3),
        ("metrics.jsonl", ValidationRecord, validation),
        ("frequencies.jsonl", FrequencyRecord, 3),
    ):
        for folder, call in (("runs/lerope", "report"), ("stopped", "resume")):
            content = (world / folder / file).read_bytes()
            if len(content.splitlines()) > which:
                for damage in (*to_lines(type_, content, which), *to_any_file(content, which)):
                    yield made("JSON lines", f"{folder}/{file}", damage, readers(call, heals=True))


def binary_inputs(world: Path, num_bits: int = 40) -> Iterator[Input]:
    """Shards, tokenizers, weights, checkpoints, arrays: bits, sizes, and another run's in their place."""
    checkpoint = "stopped/checkpoints/step-00000009"
    shard = next((world / checkpoint).glob("*.safetensors")).name
    evaluated = "runs/lerope/results/eval.safetensors"
    files: dict[str, tuple[Reader, ...]] = {
        **{f"data/{split}-00000.{kind}": readers("inspect", "new") for split in ("train", "validation")
           for kind in ("tokens", "ends")},
        "data/tokenizer.model": readers("inspect", "new"),
        "runs/lerope/model/model.safetensors": readers("eval another", "export"),
        "runs/lerope/model/tokenizer.model": readers("eval another", "export"),
        f"{checkpoint}/{shard}": readers("resume", says="step-00000009 is damaged"),
        evaluated: (*readers("compare", "report"), Reader("eval", heals=True)),
        "served/model.safetensors": readers("verify"),
        "served/tokenizer.model": readers("verify"),
        "gguf/model.gguf": readers("verify gguf"),
        **{
            str(path.relative_to(world)): readers("report")
            for path in sorted((world / "runs/lerope/results").glob("*.safetensors"))
            if str(path.relative_to(world)) != evaluated
        },
    }  # fmt: skip
    for file, found in files.items():
        content = (world / file).read_bytes()
        seed = zlib.crc32(file.encode())
        for damage in (*to_bits(content, seed, num_bits), *to_any_file(content, seed)):
            yield made("binary files", file, damage, found)
        other = (
            file.replace("runs/lerope", "runs/rope").replace("stopped", "runs/rope").replace("-00000009", "-00000008")
        )
        if other != file and (world / other).is_file() and (world / other).read_bytes() != content:
            yield made("binary files", file, written("another run's", (world / other).read_bytes()), found)
    for kind in ("tokens", "ends"):
        file = f"data/train-00000.{kind}"
        for damage in to_bits((world / file).read_bytes(), 1, num_bits):
            if "flipped" in damage.name:
                kept = Damage(f"{damage.name}, its time kept", keep_time(damage.apply))
                yield made("binary files", file, kept, readers("inspect"))
    yield from _swaps(checkpoint)


def _swaps(checkpoint: str) -> Iterator[Input]:
    """Whole folders of another run or step in the place of one's own."""

    def put(source: str, target: str, link: bool = False) -> Callable[[Path], None]:
        def apply(world: Path) -> None:
            shutil.rmtree(world / target, ignore_errors=True)
            if link:
                (world / target).symlink_to(world / source)
            else:
                shutil.copytree(world / source, world / target)

        return apply

    def put_file(source: str, target: str) -> Callable[[Path], None]:
        return lambda world: (world / target).write_bytes((world / source).read_bytes()) and None

    model = readers("eval another", "export", says="model")
    damaged = readers("resume", says="is damaged")
    older = "stopped/checkpoints/step-00000008"
    result, frequencies = "runs/{}/results/{}", "model/frequencies.json"
    cases: list[tuple[str, Callable[[Path], None], tuple[Reader, ...]]] = [
        ("the model of another run", put("runs/rope/model", "runs/lerope/model"), model),
        ("a link to another run's model", put("runs/rope/model", "runs/lerope/model", True), model),
        (
            "another run's frequencies",
            put_file(f"runs/rope/{frequencies}", f"runs/lerope/{frequencies}"),
            readers("eval another", "analyze another", says="frequencies.json"),
        ),
        ("an older checkpoint renamed", put(older, checkpoint), damaged),
        ("an older checkpoint linked", put(older, checkpoint, True), damaged),
        ("a later name for a checkpoint", put(checkpoint, "stopped/checkpoints/step-00000011"), damaged),
        ("another run's checkpoint", put("runs/rope/checkpoints/step-00000012", checkpoint), damaged),
        (
            "another run's checkpoint linked",
            put("runs/lerope/checkpoints/step-00000012", "stopped/checkpoints/step-00000012", True),
            damaged,
        ),
        (
            "another run's run.json",
            put_file("runs/rope/run.json", "runs/lerope/run.json"),
            readers("compare", "report"),
        ),
    ]
    for name in ("eval", "bands", "frequencies", "needle-long-128-samples-1-depths-0.5", "training"):

        def both(world: Path, name: str = name) -> None:
            for ending in ("json", "safetensors"):
                source = world / result.format("rope", f"{name}.{ending}")
                if source.exists():
                    shutil.copyfile(source, world / result.format("lerope", f"{name}.{ending}"))

        found = readers("report", *(["compare"] if name == "eval" else []), says=f"{name}.json")
        cases.append((f"another run's {name}", both, found))
    for name, apply, found in cases:
        yield Input("binary files", name, apply, found, "", True)


def made(kind: str, file: str, damage: Damage, found: tuple[Reader, ...]) -> Input:
    """An input that damages one file."""
    return Input(
        kind, f"{file}: {damage.name}", lambda world: damage.apply(world / file), found, Path(file).name, damage.is_bad
    )
