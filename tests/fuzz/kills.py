"""A command in a process of its own that is killed, or finds the disk full, at a file operation of our choice."""

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lerope.cli.main import guarded
from tests.fuzz.world import command, finish, measurements, run_command, train
from tests.train.runs import TIMES

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# What a clock, a process or the moment of a run's creation decides.
NOT_COMPARED = {"provenance", "created", "starts", "seconds", "wait_share", "last_start", "command", "verify", *TIMES}
LEFTOVERS = (".*.writing", ".saving-*", ".*.partial", ".*.replaced")


@dataclass(frozen=True)
class Writer:
    """A command that writes."""

    out: str
    """Where, in the world; what is there before is removed."""
    call: Callable[[Path], Callable[[], object]]
    needs: tuple[str, ...] = ("data", "runs")
    """What else of the world it reads."""
    before: Callable[[Path], None] = lambda world: None
    """Makes what else it needs."""
    again: tuple[int, ...] = (0,)
    """How it may end when it is given once more; export overwrites nothing."""


def _measure(name: str) -> Writer:
    return Writer("runs/lerope/results", lambda world: command(*measurements(world / "runs/lerope")[name]))


def _prepare(world: Path) -> Callable[[], None]:
    options = ("--validation-fraction", 0.2, "--tokenizer", world / "given.model", "--workers", 1)
    return command("data", "prepare", world / "text.jsonl", "--out", world / "prepared", *options)


def _sweep(world: Path) -> None:
    from lerope.launch.sweep import sweep

    def objective(encoding: str, index: int, folder: Path) -> float:
        finish(world, str(folder.relative_to(world)), encoding, 3, learning_rate=2 ** (-index / 2))
        return abs(index - 7.0)

    sweep(world / "swept", {"rung": "demo"}, ["rope"], 7, objective, lambda text: None)


def _ladder(world: Path) -> None:
    from lerope.launch.local import carry_out
    from tests.launch.test_local import ONE, pair, program

    if failed := carry_out(pair(), world / "corpus", world / "ladder", ONE, program(world / "ladder")):
        raise ValueError(next(iter(failed.values())))


def _before_ladder(world: Path) -> None:
    """What stands for training learns from files beside the runs."""
    import lerope
    from lerope.data.shards import Manifest
    from tests.data.corpora import write_corpus
    from tests.launch.test_local import pair

    corpus, out = write_corpus(world / "corpus", {"train": [9], "validation": [9]}), world / "ladder"
    out.mkdir()
    encoding = lerope.RoPE(64)
    encoding.save(out / "frequencies.json")
    fixed = {"data": Manifest.load(corpus).fingerprint(), "initial_frequencies": encoding.artifact().fingerprint()}
    identities = {run.name: {"recipe": asdict(run.recipe(out)), **fixed} for run in pair().runs}
    (out / "identities.json").write_text(json.dumps(identities))


def _export(world: Path) -> Callable[[], None]:
    return command("export", world / "runs/lerope", world / "exported")


def _report(world: Path) -> Callable[[], None]:
    return command("report", world / "runs", "--out", world / "reported", "--no-figures")


WRITERS = {
    "data prepare": Writer("prepared", _prepare, ("text.jsonl", "given.model")),
    "train": Writer("trained", lambda world: train(world, "trained"), ("data",)),
    "eval": _measure("eval"),
    "extrapolate": _measure("extrapolate"),
    "needle": _measure("needle"),
    "analyze": _measure("analyze"),
    "report": Writer("reported", _report),
    "sweep": Writer("swept", lambda world: lambda: guarded("sweep", lambda: _sweep(world)), ("data",)),
    "ladder": Writer("ladder", lambda world: lambda: guarded("ladder", lambda: _ladder(world)), (), _before_ladder),
    "export": Writer("exported", _export, again=(0, 2)),
}  # fmt: skip


def start(writer: Writer, world: Path, at: int | None = None, full: bool = False, count: Path | None = None) -> int:
    """Begins a command in a fork of this process, which must never have trained; gives its number.

    Args:
        at: the file operation, counted from 0, before which the process is killed, or from which on the disk is full.
        full: no kill: the operation and all like it that need room fail.
        count: a file for the number of operations.
    """
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        torch.set_num_threads(1)
        seen = _watch(str(world), at, full)
        outcome = run_command(writer.call(world))
        code = {"fine": 0, "sentence": 2}.get(outcome.kind, 1)
        if code == 1:
            (world.parent / "traceback.txt").write_text(outcome.text)
        if count is not None:
            count.write_text(str(seen()))
    finally:
        os._exit(code)


def end(process: int) -> int:
    """Waits: 0 fine, 2 one sentence, 1 a traceback, -9 killed."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _watch(world: str, at: int | None, full: bool) -> Callable[[], int]:
    """Counts file operations in the world, and strikes at one of them."""
    count = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        is_open = event == "open" and isinstance(args[2], int) and args[2] & WRITES
        if not (is_open or event in EVENTS) or not str(args[0]).startswith(world):
            return
        count += 1
        if at is None or count <= at:
            return
        if not full:
            os.kill(os.getpid(), signal.SIGKILL)
        elif is_open or event == "os.mkdir":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))

    sys.addaudithook(hook)
    return lambda: count


def fresh(world: Path, to: Path, writer: Writer) -> Path:
    """What a command needs of the world, in the same place each time, without what it writes."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for name in writer.needs:
        source = world / name
        shutil.copytree(source, to / name) if source.is_dir() else shutil.copyfile(source, to / name)
    results = to / "runs/lerope/results"
    if writer.out.startswith("runs"):
        for path in results.glob("*"):
            if path.name not in ("training.json", ".lock"):
                path.unlink()
    writer.before(to)
    return to


def state(folder: Path) -> dict[str, Any]:
    """What a command left, without what no two runs have in common."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()
            and path.name not in (".lock", "calls", "index.html") and path.suffix != ".log"}  # fmt: skip


def leftovers(folder: Path) -> list[str]:
    """Files on their way that nobody took to their end."""
    return [str(path.relative_to(folder)) for pattern in LEFTOVERS for path in folder.rglob(pattern)]


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return _plain(json.loads(path.read_bytes()), path.name == "checkpoint.json")
    if path.suffix == ".jsonl":
        return [_plain(json.loads(line)) for line in path.read_bytes().splitlines()]
    if path.suffix == ".safetensors":
        return {name: value.numpy().tobytes() for name, value in load_file(path).items()}
    return path.read_bytes()


def _plain(content: Any, mark: bool = False) -> Any:
    if isinstance(content, dict):
        # Tensors are compared one by one; in which order a checkpoint's file has them is torch's affair.
        skipped = {*NOT_COMPARED, *(("run", "sha256") if mark else ())}
        return {name: _plain(value) for name, value in content.items() if name not in skipped}
    return [_plain(value) for value in content] if isinstance(content, list) else content
