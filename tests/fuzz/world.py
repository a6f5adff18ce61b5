"""One of every file that lerope reads, written by lerope itself in seconds, and the commands that read them."""

import contextlib
import io
import json
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from lerope.cli.main import guarded, main
from lerope.data.prepare import prepare
from lerope.data.shards import Corpus
from lerope.data.tokenizer import train_tokenizer
from lerope.launch.measured import note
from lerope.launch.sweep import sweep
from lerope.results import _KINDS, Sweep
from tests.data.texts import made_up, write_jsonl
from tests.fuzz.examples import example
from tests.train.runs import TINY, StopAt, tiny_run

SECONDS = 60
"""A command that takes longer hangs."""
VOCABULARY = 400
STEPS = 12
ENCODINGS = ("rope", "lerope")
STUDY = """
from lerope.launch.study import Study, PlannedRun
def study():
    return Study(name="own", sentence="Is it?", runs=[PlannedRun(rung="demo", encoding="rope", suffix=name)
        for name in ("a", "b")])
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    kind: str
    """fine, sentence, traceback or hang."""
    text: str
    """Everything it printed, or the traceback."""


class Hang(BaseException):
    """Raised by the alarm; no `except Exception` catches it."""


def run_command(call: Callable[[], object]) -> Outcome:
    """Calls in this process what a user would type, with the output captured and the time limited."""
    printed = io.StringIO()

    def alarm(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    arguments, sys.argv = sys.argv, ["lerope"]
    try:
        with contextlib.ExitStack() as held:
            held.enter_context(contextlib.redirect_stdout(printed))
            held.enter_context(contextlib.redirect_stderr(printed))
            held.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            # A process for each corpus would take longer than all the rest.
            held.enter_context(mock.patch("lerope.data.workers.ProcessPoolExecutor", _in_a_thread))
            call()
    except SystemExit as stop:
        text = printed.getvalue()
        if stop.code in (0, None):
            return Outcome("fine", text)
        is_sentence = stop.code in (1, 2) and text.strip() and "Traceback" not in text  # 1: an engine disagrees
        return Outcome("sentence" if is_sentence else "traceback", f"exit {stop.code}: {text}")
    except Hang:
        return Outcome("hang", printed.getvalue())
    except BaseException:
        return Outcome("traceback", traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.argv = arguments
    return Outcome("fine", printed.getvalue())


def _in_a_thread(count: int, context: object, **begin: Any) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, **begin)


def command(*words: object) -> Callable[[], None]:
    """`lerope WORDS`."""
    return lambda: main([str(word) for word in words])


def train(world: Path, out: str = "stopped", encoding: str = "lerope", steps: int = STEPS) -> Callable[[], None]:
    """`lerope train`, of a model smaller than those of the ladder."""
    return lambda: guarded("train", lambda: finish(world, out, encoding, steps))


def finish(world: Path, out: str, encoding: str, steps: int = STEPS, **more: Any) -> None:
    """Trains a run, or goes on with it."""
    model = replace(TINY, num_layers=1, vocab_size=VOCABULARY, activation="relu2")
    setup = {"checkpoint_steps": 4}
    tiny_run(world / "data", world / out, setup, steps=steps, row_length=64, encoding=encoding, model=model, **more)


def measurements(run: Path) -> dict[str, list[object]]:
    """The commands that measure a run, in little."""
    return {
        "eval": ["eval", run, "--device", "cpu"],
        "extrapolate": ["extrapolate", run, "--to", 128, "--max-tokens", 300, "--device", "cpu"],
        "needle": ["needle", run, "--to", 128, "--samples", 1, "--depths", 0.5, "--device", "cpu"],
        "analyze": [
            *("analyze", run, "--rows", 2, "--phasor-rows", 1, "--max-tokens", 200, "--device", "cpu", "--parts"),
            *("frequencies", "bands", "ablation", "slowest", "phasors", *(["beyond"] if "lerope" in run.name else [])),
        ],
    }


def build(world: Path) -> Path:
    """Writes everything."""
    world.mkdir(parents=True)
    source = write_jsonl(world / "text.jsonl", made_up(60))
    train_tokenizer(made_up(200), VOCABULARY, world / "given.model")
    prepare([str(source)], world / "data", tokenizer=world / "given.model", validation_fraction=0.2, num_workers=1)
    _half_prepared(world, source)
    Corpus(world / "data")  # leaves .verified.json
    for encoding in ENCODINGS:
        finish(world, f"runs/{encoding}", encoding)
        for words in measurements(world / "runs" / encoding).values():
            _must(command(*words))
        _unusual_results(world / "runs" / encoding / "results")
    finish(world, "stopped", "lerope", hooks=[StopAt(9)])
    note(("eval",), world / "runs" / "rope")
    recipe = json.loads((world / "runs/rope/run.json").read_text())["identity"]["recipe"]
    settings = {"rung": "demo", "recipe": recipe, "data": "x"}
    sweep(world / "sweep", settings, ENCODINGS, 7, lambda encoding, index, folder: (index - 7) ** 2, _quiet)
    _must(command("export", world / "runs/lerope", world / "served", "--length", 128))
    _must(command("export", world / "runs/lerope", world / "gguf", "--format", "gguf"))
    (world / "study.py").write_text(STUDY)
    for name, encoding in zip("ab", ENCODINGS, strict=True):
        shutil.copytree(world / "runs" / encoding, world / "study" / f"demo-rope-42-{name}")
    return world


def _half_prepared(world: Path, source: Path) -> None:
    """A corpus that was stopped with nothing but its manifest left to write."""
    out = world / "partial"
    shutil.copytree(world / "data", out)
    from lerope.data.resume import Progress
    from lerope.data.shards import Manifest

    manifest = Manifest.load(out)
    splits = manifest.splits
    Progress(
        settings={"sources": [str(source)], **manifest.settings},
        tokenizer_sha256=manifest.tokenizer_sha256,
        part=1,
        num_documents={name: split.num_documents for name, split in splits.items()},
        num_tokens={name: split.num_tokens for name, split in splits.items()},
        num_bytes={name: split.num_bytes for name, split in splits.items()},
        shards={name: [[s.num_documents, s.num_tokens] for s in split.shards] for name, split in splits.items()},
    ).save(out)
    (out / "manifest.json").unlink()


def _unusual_results(folder: Path) -> None:
    """Kinds that no command leaves in a run, but that a report may meet there."""
    there = {json.loads(path.read_bytes())["kind"] for path in folder.glob("*.json")}
    for name, kind in _KINDS.items():
        if name not in there and kind is not Sweep:
            example(kind).save(folder / f"{name}.json")


def _quiet(text: str) -> None:
    pass


def _must(call: Callable[[], None]) -> None:
    outcome = run_command(call)
    if outcome.kind != "fine":
        raise AssertionError(outcome.text)
