"""Runs inputs and counts: `python -m tests.fuzz.suite` prints the table of docs/robustness.md."""

import argparse
import collections
import contextlib
import itertools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz.commands import command_inputs
from tests.fuzz.inputs import Input, Reader, binary_inputs, json_inputs, line_inputs
from tests.fuzz.sources import source_inputs, study_inputs
from tests.fuzz.world import build, run_command

BAD = ("traceback", "silent", "hang")


@dataclass
class Table:
    """Outcomes by kind of input."""

    tried: collections.Counter[str] = field(default_factory=collections.Counter)
    commands: collections.Counter[str] = field(default_factory=collections.Counter)
    found: dict[str, collections.Counter[str]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def text(self) -> str:
        """In Markdown."""
        lines = ["| input | tried | commands | fine | one sentence | tracebacks | silently accepted | hangs |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for kind in self.tried:
            counts = [self.found[kind][name] for name in ("fine", "sentence", *BAD)]
            lines.append(
                f"| {kind} | {self.tried[kind]:,} | {self.commands[kind]:,} | " + " | ".join(map(str, counts)) + " |"
            )
        return "\n".join(lines)


class World:
    """Files that are damaged and put back."""

    def __init__(self, home: Path) -> None:
        self.path = build(home / "world")
        self._files = {path: path.read_bytes() for path in self.path.rglob("*") if path.is_file()}
        self._folders = {path for path in self.path.rglob("*") if path.is_dir()}
        for path in self._files:
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**9))
        self._stamps = {path: _stamp(path) for path in self._files}

    def restore(self) -> None:
        """Puts everything back as it was; what did not change is not written."""
        for folder, below, names in os.walk(self.path):
            for name in names:
                path = Path(folder, name)
                if path not in self._files or path.is_symlink():
                    path.unlink()
            for name in list(below):
                path = Path(folder, name)
                if path not in self._folders or path.is_symlink():
                    below.remove(name)
                    path.unlink() if path.is_symlink() else shutil.rmtree(path)
        for path in sorted(self._folders):
            path.mkdir(exist_ok=True)
        for path, content in self._files.items():
            if not path.exists() or _stamp(path) != self._stamps[path]:
                path.write_bytes(content)
                os.utime(path, ns=(self._stamps[path][0], self._stamps[path][0]))
                self._stamps[path] = _stamp(path)


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def try_input(world: World, item: Input, reader: Reader) -> tuple[str, str]:
    """(fine, sentence, traceback, silent or hang; what was printed) of one command on one input."""
    item.apply(world.path)
    try:
        with contextlib.chdir(world.path):  # where commands write that are given a name alone
            outcome = run_command(reader.run(world.path))
    finally:
        world.restore()
    if outcome.kind == "fine" and item.is_bad and not reader.heals and (reader.says or item.file) not in outcome.text:
        return "silent", outcome.text
    return outcome.kind, outcome.text


def run_suite(world: World, inputs: Iterable[Input], show: bool = False) -> Table:
    """Every input through every command that reads it; an input is as bad as its worst outcome."""
    table = Table()
    order = ("fine", "sentence", *BAD)
    for item in inputs:
        worst = "fine"
        for reader in item.readers:
            begun = time.monotonic()
            kind, text = try_input(world, item, reader)
            worst = max(worst, kind, key=order.index)
            table.commands[item.kind] += 1
            if kind in BAD:
                table.complaints.append(f"{kind}: {item.name} ({reader.call})\n{text[-1500:]}")
            if show:
                print(f"{kind:9} {time.monotonic() - begun:5.2f} s  {item.name[:100]} ({reader.call})", flush=True)
        table.tried[item.kind] += 1
        table.found.setdefault(item.kind, collections.Counter())[worst] += 1
    return table


INPUTS: dict[str, Callable[[Path], Iterator[Input]]] = {
    "JSON files": json_inputs,
    "JSON lines": line_inputs,
    "binary files": binary_inputs,
    "command lines": command_inputs,
    "study files": study_inputs,
    "text sources": source_inputs,
}
"""By line of the table."""
MANY = {"JSON files": 20, "JSON lines": 3, "binary files": 3, "command lines": 4, "study files": 1, "text sources": 1}
"""One in so many, for the table and the slow tests."""


def some(inputs: Iterable[Input], every: int, seed: int = 0) -> Iterator[Input]:
    """One in so many, always the same ones; each through one of the commands that read it."""
    chance = random.Random(seed)
    for item in inputs:
        if chance.randrange(every) == 0:
            yield replace(item, readers=(chance.choice(item.readers),))


def _chosen(world: Path, args: argparse.Namespace) -> Iterator[Iterable[Input]]:
    for kind in args.kind:
        inputs = (item for item in INPUTS[kind](world) if args.word in item.name)
        yield inputs if args.all else some(inputs, MANY[kind], args.seed)


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="every input through every command that reads it: hours")
    parser.add_argument("--kind", choices=list(INPUTS), nargs="*", default=list(INPUTS), help="lines of the table")
    parser.add_argument("--word", default="", help="only inputs whose name has this word")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--show", action="store_true", help="print every input")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lerope-fuzz-"))
    try:
        world = World(home)
        begun = time.monotonic()
        table = run_suite(world, itertools.chain.from_iterable(_chosen(world.path, args)), args.show)
        print("\n\n".join(table.complaints))
        print(table.text())
        print(f"{time.monotonic() - begun:.0f} s")
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
