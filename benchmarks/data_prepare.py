"""Speed and memory of `lerope data prepare` against SentencePiece alone, which encodes documents that it has in memory.

Exit code: 0 if every claim holds, 1 if one fails.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import sentencepiece
from reporting import conditions, save, show

from lerope.data import prepare as module
from lerope.data.sources import find_parts, read_part, sample
from lerope.data.tokenizer import VOCAB_SIZE, train_tokenizer
from lerope.data.tokenizer_training import SAMPLE_BYTES

RESULT = Path(__file__).parent / "results" / "data_prepare.json"
FILE_BYTES = 25_000_000
BATCH_CHARACTERS = 1 << 20
LEAST_SHARE = 0.8  # of the speed of SentencePiece alone
MOST_GROWTH = 1.1  # of the memory, from the smallest input to the largest
SAMPLE_SECONDS = 0.1

_batches: list[list[str]] = []
_model: Any


def write_input(source: str, folder: Path, num_bytes: int) -> None:
    """JSON lines of about the wanted size of text: the documents of the source, again and again, each time changed."""
    texts = [text for part in find_parts(source) for record in read_part(part) for text in record.texts if text]
    documents = (f"{text}\n{turn}" for turn in count() for text in texts)
    folder.mkdir()
    left, number = num_bytes, 0
    while left > 0:
        with (folder / f"{number:05}.jsonl").open("w") as file:
            until = max(left - FILE_BYTES, 0)
            while left > until:
                text = next(documents)
                left -= len(text.encode())
                file.write(json.dumps({"text": text}) + "\n")
        number += 1


def read_batches(folder: Path) -> Iterator[list[str]]:
    batch, size = [], 0
    for part in find_parts(str(folder)):
        for record in read_part(part):
            batch += record.texts
            size += sum(map(len, record.texts))
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def load_model(path: str) -> None:
    global _model
    _model = sentencepiece.SentencePieceProcessor(model_file=path)


def encode_raw(index: int) -> int:
    return sum(len(np.array(_model.encode(text), np.uint16)) for text in _batches[index])


def time_raw(tokenizer: Path, num_workers: int) -> float:
    """Seconds that forked processes, which have all documents in memory, take to encode them."""
    context = multiprocessing.get_context("fork")
    with context.Pool(num_workers, load_model, (str(tokenizer),)) as pool:
        pool.map(encode_raw, [0] * num_workers, chunksize=1)  # every process is up
        start = time.perf_counter()
        pool.map(encode_raw, range(len(_batches)), chunksize=1)
        return time.perf_counter() - start


def time_prepare(folder: Path, tokenizer: Path, num_workers: int, out: Path) -> tuple[float, float]:
    """Seconds of the encoding phase, from starting the workers to hashed shards, and of the whole job."""
    phases = []
    encode = module._encode

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        result = encode(*args)
        phases.append(time.perf_counter() - start)
        return result

    with patch.object(module, "_encode", timed):
        start = time.perf_counter()
        module.prepare([str(folder)], out, tokenizer=tokenizer, num_workers=num_workers)
        return phases[0], time.perf_counter() - start


def measure_speed(folder: Path, tokenizer: Path, options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Rounds of both, one after the other, so that noise and drift hit both alike."""
    _batches[:] = read_batches(folder)
    num_bytes = sum(len(text.encode()) for batch in _batches for text in batch)
    rows: list[dict[str, Any]] = []
    for number in range(options.rounds):
        raw = time_raw(tokenizer, options.workers)
        encoding, whole = time_prepare(folder, tokenizer, options.workers, work / f"out-{number}")
        speeds = {"raw_mb_s": num_bytes / 1e6 / raw, "encoding_mb_s": num_bytes / 1e6 / encoding}
        rows.append({**speeds, "whole_mb_s": num_bytes / 1e6 / whole, "encoding_over_raw": raw / encoding})
    _batches.clear()
    return rows


def measure_memory(folder: Path, tokenizer: Path, num_workers: int, out: Path) -> dict[str, float]:
    """The largest sum of memory over all processes of the command, in MB."""
    arguments = [str(folder), "--out", str(out), "--tokenizer", str(tokenizer), "--workers", str(num_workers)]
    command = [sys.executable, "-m", "lerope", "data", "prepare", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks = {"peak_pss_mb": 0.0, "peak_rss_mb": 0.0}
    while process.poll() is None:
        for peak, field in (("peak_pss_mb", "Pss:"), ("peak_rss_mb", "Rss:")):
            peaks[peak] = max(peaks[peak], sum(memory(pid, field) for pid in tree(process.pid)) / 1e3)
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}.")
    return peaks


def tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(below for child in children for below in tree(int(child)))]


def memory(pid: int, field: str) -> float:
    """kB; PSS counts what processes share once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    return sum(float(line.split()[1]) for line in lines if line.startswith(field))


def judge(speeds: list[dict[str, Any]], memories: list[dict[str, Any]]) -> list[dict[str, Any]]:
    share = statistics.median(row["encoding_over_raw"] for row in speeds)
    growth = memories[-1]["peak_pss_mb"] / memories[0]["peak_pss_mb"]
    sizes = f"{memories[0]['input_mb']:g} MB to {memories[-1]['input_mb']:g} MB"
    claims = [
        {"claim": "encoding, of the speed of SentencePiece alone", "value": share, "at_least": LEAST_SHARE},
        {"claim": f"memory, growth from {sizes}", "value": growth, "at_most": MOST_GROWTH},
    ]
    for claim in claims:
        holds = claim.get("at_least", 0.0) <= claim["value"] <= claim.get("at_most", float("inf"))
        claim["verdict"] = "holds" if holds else "FAILS"
    return claims


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed and memory of `lerope data prepare`.")
    parser.add_argument("--source", default="python:", help="documents to repeat")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--megabytes", type=int, default=100, help="of text, for the speed")
    parser.add_argument("--memory-megabytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--workers", type=int, default=module._num_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run: little text, writes no file")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.memory_megabytes, options.rounds = 20, [20, 60], 1
    if min(options.rounds, options.workers, options.megabytes, *options.memory_megabytes) < 1:
        parser.error("--rounds, --workers, --megabytes and --memory-megabytes must be 1 or more")
    return options


def main() -> int:
    options = parse()
    facts = {**conditions("sentencepiece", "numpy"), "cores": os.cpu_count(), **vars(options)}
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        tokenizer = work / "tokenizer.model"
        train_tokenizer(sample(find_parts(options.source), SAMPLE_BYTES), options.vocab_size, tokenizer)
        write_input(options.source, work / "speed", options.megabytes * 1_000_000)
        speeds = measure_speed(work / "speed", tokenizer, options, work)
        show("speed by round", speeds, ".2f")
        memories = []
        for size in sorted(options.memory_megabytes):
            write_input(options.source, work / f"{size}", size * 1_000_000)
            peaks = measure_memory(work / f"{size}", tokenizer, options.workers, work / f"out-{size}-mb")
            memories.append({"input_mb": float(size), **peaks})
        show("memory of all processes", memories, ".0f")
    claims = judge(speeds, memories)
    for claim in claims:
        bound = f"at least {claim['at_least']}" if "at_least" in claim else f"at most {claim['at_most']}"
        print(f"{claim['verdict']}  {claim['claim']}: {claim['value']:.2f}, claimed {bound}")
    if not options.quick:
        save(RESULT, {**facts, "speed": speeds, "memory": memories, "claims": claims})
    return int(any(claim["verdict"] == "FAILS" for claim in claims))


if __name__ == "__main__":
    sys.exit(main())
