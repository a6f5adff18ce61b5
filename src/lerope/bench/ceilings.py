"""What the device can do at most, measured: the yardstick for everything else."""

from collections.abc import Iterator

import torch

from lerope.bench.bench import Bench
from lerope.bench.timing import Candidate, Parts, Times
from lerope.results import Ceiling
from lerope.train.engine import Moment

MATMUL, COPY, SUSTAINED = "matmul", "copy", "matmul for 2 s"


def measure(bench: Bench) -> Iterator[Ceiling]:
    """A large matrix product and a large copy; the bench keeps the rates they reached."""
    size, num_bytes = bench.sizes.matmul, bench.sizes.copy_bytes
    candidates = [
        Candidate(MATMUL, lambda: _matmul(bench, size)),
        Candidate(COPY, lambda: _copy(bench, num_bytes)),
    ]
    found = bench.watch.measure("ceilings", candidates, ["whole"])
    work = {MATMUL: 2.0 * size**3, COPY: 2.0 * num_bytes}
    what = {
        MATMUL: f"{str(bench.dtype).removeprefix('torch.')} matrix product of {size:,} x {size:,} x {size:,}",
        COPY: f"copy of {num_bytes / 1e9:.3g} GB on the device, read and written",
    }
    rates = {}
    for name in (MATMUL, COPY):
        times = found[name, "whole"]
        rates[name] = None if times.median is None else work[name] / times.median
        yield {
            "name": name,
            "what": what[name],
            "work": work[name],
            "rate": rates[name],
            "unit": "FLOP/s" if name == MATMUL else "B/s",
            **times.timing,
        }
    bench.matmul_rate, bench.copy_rate = rates[MATMUL], rates[COPY]
    if bench.device.type == "cuda":
        yield _sustained(bench, size)


def _sustained(bench: Bench, size: int) -> Ceiling:
    """The same product until the GPU is as warm as in training; not used as a ceiling."""
    multiply = _matmul(bench, size)["whole"][0]
    count, taken = 0, 0.0
    start = Moment(bench.device)
    while taken < 2.0:
        for _ in range(100):
            multiply()
        end = Moment(bench.device)
        end.wait()
        count, taken = count + 100, end.seconds_since(start)
    each = taken / count
    work = 2.0 * size**3
    what = f"as above, {count:,} in a row"
    row = {"name": SUSTAINED, "what": what, "work": work, "rate": work / each, "unit": "FLOP/s"}
    return {**row, **Times((each,)).timing}  # type: ignore[typeddict-item]


def _matmul(bench: Bench, size: int) -> Parts:
    a, b = bench.random(size, size), bench.random(size, size)
    out = torch.empty_like(a)
    return {"whole": [lambda: torch.mm(a, b, out=out)]}


def _copy(bench: Bench, num_bytes: int) -> Parts:
    source = torch.empty(num_bytes // 4, dtype=torch.int32, device=bench.device).random_()
    target = torch.empty_like(source)
    return {"whole": [lambda: target.copy_(source)]}
