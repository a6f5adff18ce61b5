"""`lerope bench` from start to finish: sections in order, and whatever was measured if stopped."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lerope.bench import attention, ceilings, head, rotary, step
from lerope.bench.bench import FULL, QUICK, Bench
from lerope.bench.documents import Documents
from lerope.bench.timing import Stopwatch, free
from lerope.core.checks import check_count
from lerope.core.ladder import rung
from lerope.core.signals import Signals, Stopped
from lerope.core.terminal import Display
from lerope.model.kernels.packages import version
from lerope.results import Benchmark
from lerope.train.rundir import provenance

SECTIONS = ("ceilings", "rotary", "attention", "head", "step")
_PACKAGES = ("triton", "flash-attn-4", "quack-kernels", "liger-kernel", "flash-attn", "rotary-embedding-torch")


Report = Callable[[str, Benchmark], None]


def run(
    sections: Sequence[str] = (),
    report: Report = lambda section, found: None,
    *,
    quick: bool = False,
    rungs: Sequence[str] = (),
    rounds: int | None = None,
    data: Path | None = None,
    nanogpt: Path | None = None,
) -> Benchmark:
    """Measures; Ctrl-C ends it with the measurements so far.

    Args:
        sections: some of SECTIONS, by default all; ceilings are always measured.
        report: called after each section with its name and all measurements so far.
        quick: sizes and rounds that only show that everything runs; always on for a CPU.
        rungs: whose attention, head and steps to measure; by default 52M and 217M, or demo if quick.
        rounds: samples of each candidate; by default 30, or 3 if quick.
        data: a prepared corpus whose documents to pack; by default, made-up ones.
        nanogpt: a folder with nanoGPT's model.py.
    """
    for section in sections:
        if section not in SECTIONS:
            raise ValueError(f"section must be one of {', '.join(SECTIONS)}; got {section!r}.")
    wanted = [section for section in SECTIONS if section in (sections or SECTIONS) or section == "ceilings"]
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    quick = quick or device.type == "cpu"
    sizes = QUICK if quick else FULL
    rungs = tuple(rungs) or (("demo",) if quick else ("52M", "217M"))
    for name in rungs:
        rung(name)
    rounds = check_count("rounds", (3 if quick else 30) if rounds is None else rounds)
    if nanogpt is not None:
        step.check_nanogpt(nanogpt)
    with tempfile.TemporaryDirectory(prefix="lerope-bench-") as folder, Signals() as signals, Display() as display:
        documents = Documents(data, Path(folder), sizes.corpus_tokens)
        documents.check(sizes.row_length)
        bench = Bench(
            device=device,
            sizes=sizes,
            rungs=rungs,
            nanogpt=nanogpt,
            watch=Stopwatch(device, rounds, signals, display),
            documents=documents,
            folder=Path(folder),
        )
        found = Benchmark(
            settings={
                "sections": wanted,
                "quick": quick,
                "rungs": list(rungs),
                "rounds": rounds,
                "row_length": sizes.row_length,
                "documents": documents.source,
                "data": documents.fingerprint,
                "nanogpt": nanogpt is not None,
            },
            provenance=_provenance(device),
            stopped=True,
            ceilings=[],
            rotary=[],
            layouts=[],
            attention=[],
            head=[],
            steps=[],
            step_ratios=[],
        )
        for section in wanted:
            try:
                signals.check()
                _carry_out(section, bench, found)
            except (Stopped, KeyboardInterrupt):
                report(section, found)
                return found
            if section == wanted[-1] and signals.received is None:
                found = replace(found, stopped=False)
            report(section, found)
            free(device)
    return found


def _carry_out(section: str, bench: Bench, found: Benchmark) -> None:
    """Adds rows as they come: `extend` keeps those that came before an error."""
    if section == "ceilings":
        found.ceilings.extend(ceilings.measure(bench))
    elif section == "rotary":
        found.rotary.extend(rotary.measure(bench))
        found.layouts.extend(rotary.measure_layouts(bench))
    elif section == "attention":
        found.attention.extend(attention.measure(bench))
    elif section == "head":
        found.head.extend(head.measure(bench))
    else:
        for steps, ratios in step.measure(bench):
            found.steps.extend(steps)
            found.step_ratios.extend(ratios)


def _provenance(device: torch.device) -> dict[str, Any]:
    """The machine, and the versions of everything measured."""
    facts = {**provenance(), "cuda": torch.version.cuda, "packages": {name: version(name) for name in _PACKAGES}}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["gpu_memory_bytes"] = properties.total_memory
        facts["gpu_processors"] = properties.multi_processor_count
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts
