"""Sources to a corpus directory: tokenizer, shards, manifest. Can be stopped at any moment and resumed exactly."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lerope.core.files import write_whole
from lerope.core.locks import locked
from lerope.core.run import TOKENIZER
from lerope.core.signals import Signals, Stopped
from lerope.core.terminal import Display
from lerope.data.parts import Parts, Share
from lerope.data.resume import PROGRESS, Progress, Rate, compare, full_disk_explained
from lerope.data.shards import (
    MANIFEST,
    SPLITS,
    Manifest,
    Shard,
    SplitManifest,
    SplitName,
    SplitWriter,
    limit_in_words,
    split_entropy,
    token_dtype,
)
from lerope.data.sources import Part, default_validation, find_parts, left_out, parts_digest, read_part, sample
from lerope.data.tokenizer import VOCAB_SIZE, Tokenizer
from lerope.data.tokenizer_training import check_sources, check_vocab_size, train_in_child
from lerope.data.workers import Batch, Encoded, WorkerDied, encode_batches

VALIDATION_FRACTION = 0.01
_CHECKED_BYTES = 2_000_000
_BATCH_CHARACTERS = 1 << 20
_RECORD_CHARACTERS = 64  # added per record to its text, so that batches of tiny records stay small too
_SAVE_SECONDS = 5.0


def prepare(
    sources: Sequence[str],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    text_field: str | None = None,
    validation_fraction: float | None = None,
    validation: Sequence[str] = (),
    max_tokens: int | None = None,
    max_validation_tokens: int | None = None,
    skip_invalid: bool = False,
    num_workers: int | None = None,
    part: str | None = None,
) -> Manifest:
    """Prepares a corpus, or resumes; for a complete one, only checks the settings.

    Args:
        sources: see `lerope.data.sources`.
        out: the corpus directory.
        tokenizer: an existing SentencePiece model; by default, one is trained on a sample of the sources.
        vocab_size: pieces to train (32,000), or how many ids of the existing model to use (all).
        text_field: the field of JSON objects, rows or datasets that holds the text.
        validation_fraction: share of the documents, chosen by a hash of their text, for the validation split (0.01).
        validation: sources of the validation split, instead of a share of `sources`. With neither, a known dataset's
            own validation split, or else a share.
        max_tokens: ends the training split with the document that reaches this many tokens (all).
        max_validation_tokens: the same for the validation split (all; 10 million for known datasets with neither a
            fraction nor sources for validation).
        skip_invalid: skip documents that are not valid UTF-8, and count them.
        num_workers: processes that encode; by default, one per core. The result does not depend on it.
        part: "2/4" prepares the second of four shares of the files, in a folder below `out`, for `merge`.

    Raises:
        Stopped: after Ctrl-C or SIGTERM, with the progress saved.
    """
    check_sources(sources)
    for name, limit in (("max_tokens", max_tokens), ("max_validation_tokens", max_validation_tokens)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} must be 1 or more; got {limit:,}.")
    if not validation and validation_fraction is None:
        validation, most = default_validation(sources)
        max_validation_tokens = max_validation_tokens or most
    fraction = _fraction(validation_fraction, validation)
    if num_workers is not None and num_workers < 1:
        raise ValueError(f"workers must be 1 or more; got {num_workers}.")
    check_vocab_size(vocab_size)
    training = [part for source in sources for part in find_parts(source, text_field, skip_invalid)]
    held_out = [part for source in validation for part in find_parts(source, text_field, skip_invalid)]
    kept_apart = {part.location for part in held_out}
    training = [part for part in training if part.location not in kept_apart]
    if not training:
        raise ValueError("every file of the sources is also in validation; name different files for one of them.")
    settings = {
        "sources": list(sources),
        "validation": list(validation),
        "validation_fraction": fraction,
        "max_tokens": max_tokens,
        "max_validation_tokens": max_validation_tokens,
        "text_field": text_field,
        "skip_invalid": skip_invalid,
        "vocab_size": vocab_size,
        "tokenizer": None if tokenizer is None else Tokenizer(tokenizer, vocab_size).sha256,
        "files": parts_digest([*training, *held_out]),
    }
    parts: Parts = [(part, "train" if validation else None) for part in training]
    parts += [(part, "validation") for part in held_out]
    directory = Path(out)
    if part is not None:
        share = Share.parse(part)
        share.check(parts, settings)
        parts, settings["part"], directory = share.of(parts), part, share.folder(directory)
    return _prepare(directory, settings, parts, training, tokenizer, num_workers or _num_cores())


def _prepare(
    directory: Path,
    settings: dict[str, Any],
    parts: Parts,
    training: list[Part],
    tokenizer: str | os.PathLike[str] | None,
    num_workers: int,
) -> Manifest:
    """Prepares a corpus from these parts, from where an earlier start left it.

    Args:
        training: what a tokenizer is trained or tried on, however few of the parts are this machine's share.
    """
    with locked(directory), full_disk_explained(directory):
        if (directory / MANIFEST).exists():
            manifest = Manifest.load(directory)
            compare({"sources": manifest.sources, **manifest.settings}, settings, directory)
            (directory / PROGRESS).unlink(missing_ok=True)
            print(f"{directory} is complete.")
            return manifest
        with Signals() as signals, Display() as display:
            for source in (*settings["sources"], *settings["validation"]):
                if left := left_out(source, settings["text_field"]):
                    files = ", ".join(f"{count:,} {ending}" for ending, count in [*left.items()][:6])
                    display.say(f"Not read in {source}: {files}.")
            progress = Progress.open(directory, settings)
            progress.save(directory)
            model = _make_tokenizer(directory, progress, tokenizer, training, signals, display)
            splits = _encode(directory, progress, model, parts, num_workers, signals, display)
            return _finish(directory, progress, model, splits)


def _fraction(validation_fraction: float | None, validation: Sequence[str]) -> float:
    if validation:
        if validation_fraction is not None:
            raise ValueError(
                f"validation_fraction {validation_fraction:g} and validation sources are mutually exclusive; give one."
            )
        return 0.0
    fraction = VALIDATION_FRACTION if validation_fraction is None else validation_fraction
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction must be strictly between 0 and 1; got {fraction:g}.")
    return fraction


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_tokenizer(
    directory: Path,
    progress: Progress,
    given: str | os.PathLike[str] | None,
    parts: list[Part],
    signals: Signals,
    display: Display,
) -> Tokenizer:
    """Copies the given tokenizer or trains one; or loads the one from an earlier start."""
    path, vocab_size = directory / TOKENIZER, progress.settings["vocab_size"]
    if progress.tokenizer_sha256 is None:
        if given is None:
            fraction = progress.settings["validation_fraction"]
            train_in_child(parts, vocab_size or VOCAB_SIZE, path, fraction, signals, display)
        else:
            write_whole(path, Path(given).read_bytes())
            texts = list(sample(parts, _CHECKED_BYTES))
            if num_lossy := Tokenizer(path, vocab_size).num_lossy(texts):
                why = "decoding does not return their text, for example due to normalization or unknown characters"
                display.say(f"Warning: {given} alters {num_lossy:,} of {len(texts):,} sampled documents: {why}.")
    tokenizer = Tokenizer(path, vocab_size)
    if progress.tokenizer_sha256 not in (None, tokenizer.sha256):
        raise ValueError(f"{path} has changed since this corpus was started; restore it or delete {directory}.")
    progress.tokenizer_sha256 = tokenizer.sha256
    progress.save(directory)
    return tokenizer


def _encode(
    directory: Path,
    progress: Progress,
    tokenizer: Tokenizer,
    parts: Parts,
    num_workers: int,
    signals: Signals,
    display: Display,
) -> dict[SplitName, list[Shard]]:
    """Reads, encodes and writes all remaining documents: first for training, then for validation."""
    dtype = token_dtype(tokenizer.vocab_size)
    writers = {split: SplitWriter(directory, split, dtype, progress.shards[split]) for split in SPLITS}

    def save() -> None:
        progress.shards = {split: writer.state() for split, writer in writers.items()}
        progress.save(directory)

    sizes = [part.size for part, _ in parts]
    rate = Rate(progress, None if None in sizes else sum(size or 0 for size in sizes), _limit(progress, "train"))
    saved = time.monotonic()
    settings = (str(directory / TOKENIZER), tokenizer.vocab_size, progress.settings["validation_fraction"])
    num_training = sum(split != "validation" for _, split in parts)
    stages: list[tuple[SplitName, int, int]] = [("train", 0, num_training), ("validation", num_training, len(parts))]
    try:
        for wanted, begin, end in stages:
            if _is_full(progress, wanted):
                continue
            batches = _batches(parts[:end], *max((progress.part, progress.record), (begin, 0)))
            with closing(encode_batches(batches, *settings, num_workers)) as encoded:
                for batch, splits in encoded:
                    kept = {split: _up_to_limit(progress, split, done) for split, done in splits.items()}
                    for split, done in kept.items():
                        writers[split].append(done.tokens, done.lengths)
                    _count(progress, batch, splits, kept)
                    display.show(rate.describe(progress))
                    signals.check()
                    if time.monotonic() > saved + _SAVE_SECONDS:
                        save()
                        saved = time.monotonic()
                    if _is_full(progress, wanted):
                        break
    except WorkerDied:
        save()
        signals.check()  # a signal to the whole process group kills the workers too
        raise ValueError(
            "a worker process died, most likely because memory ran out; run the same command again, perhaps with fewer "
            "--workers, to continue from what is already prepared."
        ) from None
    except (Stopped, ValueError):  # raised between two batches, where shards and counts agree
        save()
        raise
    save()
    display.show("Hashing the shards")
    return {split: writer.finish() for split, writer in writers.items()}


def _batches(parts: Parts, first: int, record: int) -> Iterator[Batch]:
    """Documents from a position on, about 1 MB at a time; batch boundaries do not depend on that position."""
    texts: list[str] = []
    codes: list[bool | None] = []
    num_invalid = size = 0
    before = sum(part.size or 0 for part, _ in parts[:first])
    for index in range(first, len(parts)):
        part, split = parts[index]
        for read in read_part(part, record):
            texts += read.texts
            codes += [part.code] * len(read.texts)
            num_invalid += not read.texts
            size += sum(map(len, read.texts)) + _RECORD_CHARACTERS
            if size >= _BATCH_CHARACTERS:
                total = len(texts) + num_invalid
                yield Batch(texts, codes, split, index, read.stop, total, before + read.num_bytes_read)
                texts, codes, num_invalid, size = [], [], 0, 0
        before += part.size or 0
        record = 0
        if size and (index + 1 == len(parts) or parts[index + 1][1] != split):
            yield Batch(texts, codes, split, index + 1, 0, len(texts) + num_invalid, before)
            texts, codes, num_invalid, size = [], [], 0, 0


def _limit(progress: Progress, split: SplitName) -> int | None:
    limit: int | None = progress.settings["max_tokens" if split == "train" else "max_validation_tokens"]
    return limit


def _is_full(progress: Progress, split: SplitName) -> bool:
    limit = _limit(progress, split)
    return limit is not None and progress.num_tokens[split] >= limit


def _up_to_limit(progress: Progress, split: SplitName, done: Encoded) -> Encoded:
    """The documents that fit: what is left out depends only on the documents before it."""
    limit = _limit(progress, split)
    return done if limit is None else done.first(limit - progress.num_tokens[split])


def _count(progress: Progress, batch: Batch, splits: dict[SplitName, Encoded], kept: dict[SplitName, Encoded]) -> None:
    for split, done in kept.items():
        progress.num_documents[split] += len(done.lengths)
        progress.num_tokens[split] += len(done.tokens)
        progress.num_bytes[split] += int(done.num_bytes.sum())
        progress.num_code_bytes[split] += int(done.num_bytes[done.code].sum())
    progress.num_skipped += batch.num_documents - sum(len(done.lengths) for done in splits.values())
    progress.part, progress.record, progress.num_bytes_read = batch.part, batch.record, batch.num_bytes_read


def _finish(
    directory: Path, progress: Progress, tokenizer: Tokenizer, shards: dict[SplitName, list[Shard]]
) -> Manifest:
    """Writes the manifest, which completes the corpus."""
    settings = progress.settings
    total = sum(progress.num_documents.values())
    if not total and "part" not in settings:
        raise ValueError(
            f"the sources contain no document with text, {progress.num_skipped:,} are empty or invalid; name others "
            f"and another --out."
        )
    for split, count in progress.num_documents.items():
        if not count and "part" not in settings:
            fix = "--validation sources with text" if settings["validation"] else "another --validation-fraction"
            fix += "" if settings["validation"] or not settings["max_tokens"] else " or a larger --max-tokens"
            raise ValueError(
                f"the {split} split is empty, with all {total:,} documents in the other; give {fix} and another --out."
            )
    named = ", ".join(settings["validation"])
    made = named or f"{settings['validation_fraction']:g} of the documents, by a hash of their text"
    manifest = Manifest(
        sources=settings["sources"],
        validation=made + limit_in_words(progress.num_tokens["validation"], _limit(progress, "validation")),
        vocab_size=tokenizer.vocab_size,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        tokenizer_sha256=tokenizer.sha256,
        num_skipped=progress.num_skipped,
        code_share=progress.num_code_bytes["train"] / max(progress.num_bytes["train"], 1),
        splits={
            split: SplitManifest(
                num_documents=progress.num_documents[split],
                num_tokens=progress.num_tokens[split],
                num_bytes=progress.num_bytes[split],
                unigram_entropy=split_entropy(directory, shards[split], tokenizer.vocab_size),
                shards=shards[split],
                max_tokens=_limit(progress, split),
            )
            for split in SPLITS
        },
        settings={name: value for name, value in settings.items() if name != "sources"},
    )
    manifest.save(directory)
    (directory / PROGRESS).unlink()
    return manifest
