"""Training a tokenizer on a bounded sample of sources, in a separate process."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from lerope.core.signals import Signals
from lerope.core.terminal import Display
from lerope.data.sources import Part, find_parts, sample
from lerope.data.tokenizer import VOCAB_SIZE, Tokenizer, train_tokenizer
from lerope.data.workers import WorkerDied, run_in_child, split_of

SAMPLE_BYTES = 50_000_000
"""Maximum bytes of text."""
_LEAST_VOCAB_SIZE = 3 + 256 + 1


def train_on_sources(
    sources: Sequence[str],
    out: str | os.PathLike[str],
    vocab_size: int = VOCAB_SIZE,
    text_field: str | None = None,
    skip_invalid: bool = False,
) -> Tokenizer:
    """Trains a tokenizer and writes it to the file `out`.

    Raises:
        Stopped: after Ctrl-C or SIGTERM; no file is written.
    """
    check_sources(sources)
    check_vocab_size(vocab_size)
    path = Path(out)
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"out must be a file in an existing folder; got {path}.")
    parts = [part for source in sources for part in find_parts(source, text_field, skip_invalid)]
    with Signals() as signals, Display() as display:
        train_in_child(parts, vocab_size, path, 0.0, signals, display)
    return Tokenizer(path)


def train_in_child(
    parts: list[Part], vocab_size: int, path: Path, validation_fraction: float, signals: Signals, display: Display
) -> None:
    """Trains on a sample of the parts without validation documents; a signal stops it."""
    begun = time.monotonic()
    display.say(f"Training a tokenizer with {vocab_size:,} pieces.")

    def wait() -> None:
        signals.check()
        display.show(f"Training a tokenizer with {vocab_size:,} pieces, {time.monotonic() - begun:.0f} s")

    try:
        run_in_child(_train, parts, vocab_size, path, validation_fraction, wait=wait)
    except WorkerDied:
        signals.check()
        raise ValueError(
            "the tokenizer training process died, most likely because memory ran out; free some and run the "
            "same command again."
        ) from None


def check_sources(sources: Sequence[str]) -> None:
    """Raises if there are none."""
    if not sources:
        raise ValueError("sources must name at least one file, folder, python: or hf:NAME; got none.")


def check_vocab_size(vocab_size: int | None) -> None:
    """Raises if not even the bytes fit."""
    if vocab_size is not None and vocab_size < _LEAST_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be {_LEAST_VOCAB_SIZE} or more, including 256 bytes; got {vocab_size:,}.")


def _train(parts: list[Part], vocab_size: int, path: Path, validation_fraction: float) -> None:
    texts = sample(parts, SAMPLE_BYTES)
    train_tokenizer((text for text in texts if split_of(text, validation_fraction) == "train"), vocab_size, path)
