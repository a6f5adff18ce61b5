"""Runs inputs and counts: python -m tests.fuzz.suite [--every N] [--kind WORD] prints the table of docs/robustness.md."""

import argparse
import collections
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
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


def all_inputs(world: Path, num_bits: int = 40) -> Iterator[Input]:
    """Everything, in a fixed order."""
    yield from json_inputs(world)
    yield from line_inputs(world)
    yield from binary_inputs(world, num_bits)
    yield from command_inputs(world)
    yield from study_inputs()
    yield from source_inputs()


def some(inputs: Iterable[Input], every: int, seed: int = 0) -> list[Input]:
    """One in so many, always the same ones; each through one of the commands that read it."""
    chance = random.Random(seed)
    chosen = [item for item in inputs if chance.randrange(every) == 0]
    return [replace(item, readers=(chance.choice(item.readers),)) for item in chosen]


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="take one in so many inputs")
    parser.add_argument("--kind", default="", help="only inputs of a kind, or whose name has this word")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print every input")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lerope-fuzz-"))
    try:
        world = World(home)
        chosen = [i for i in all_inputs(world.path) if args.kind in i.kind or args.kind in i.name]
        begun = time.monotonic()
        table = run_suite(world, some(chosen, args.every, args.seed) if args.every > 1 else chosen, args.show)
        print("\n\n".join(table.complaints))
        print(table.text())
        print(f"{time.monotonic() - begun:.0f} s")
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
