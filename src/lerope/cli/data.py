"""lerope data: prepare text for training, or look at prepared data."""

import json
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lerope.cli.options import File, Json, Whole
from lerope.cli.stopping import stoppable
from lerope.data.parts import merge as merge_parts
from lerope.data.prepare import prepare as prepare_corpus
from lerope.data.shards import Manifest, limit_in_words
from lerope.data.summary import describe, summarize


def prepare(
    sources: Annotated[Positional[list[str]], arg(metavar="SOURCE...", help_behavior_hint="")],
    out: Annotated[Path, arg(metavar="DIR")],
    tokenizer: File = None,
    vocab_size: Whole = None,
    text_field: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: text)")] = None,
    validation_fraction: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: 0.01)")] = None,
    validation: Annotated[tuple[str, ...], arg(metavar="SOURCE...", help_behavior_hint="")] = (),
    max_tokens: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all)")] = None,
    max_validation_tokens: Whole = None,
    skip_invalid: bool = False,
    workers: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: one per core)")] = None,
    part: Annotated[str | None, arg(metavar="I/N", help_behavior_hint="")] = None,
) -> None:
    """Turn text into a tokenizer, token shards and a manifest.

    If stopped at any moment, the same command resumes; the result is the same for any number of workers.

    Example: lerope data prepare my-text/ --out data/my-text

    For a run of 1 billion tokens: lerope data prepare hf:c4 --max-tokens 1033000000 --out data/c4

    On ten machines, the third of them: lerope data prepare c4/ --tokenizer c4.model --part 3/10 --out data/c4

    Args:
        sources: Files or folders of .txt .md .rst .tex .py .html .jsonl .jsonl.gz .jsonl.xz .jsonl.zst .json.gz (C4's)
            .parquet .json .csv (these two in a folder only with --text-field); python: for the sources of this
            Python; hf:NAME[:CONFIG[:SPLIT]] for a Hugging Face dataset (hf:c4, hf:starcoder).
        out: The folder to create.
        tokenizer: An existing SentencePiece model; by default, one is trained on a sample of the sources.
        vocab_size: Pieces to train, by default 32,000; with --tokenizer, how many of its ids to use.
        text_field: The field that holds the text in JSON, CSV, Parquet and datasets.
        validation_fraction: Share of the documents, by a hash of their text, for validation.
        validation: Sources for validation, instead of a share of the documents; for hf:c4 with neither, its own
            validation split.
        max_tokens: Stop after the document that reaches this many training tokens.
        max_validation_tokens: The same for validation, all of which `lerope eval` reads. All by default; for hf:c4
            and hf:starcoder 10,000,000 if neither --validation nor --validation-fraction is given, so that evaluation
            takes about 5 % of the training time at 52M and less above.
        skip_invalid: Skip documents that are not valid UTF-8, and count them.
        workers: Processes that encode.
        part: Prepare only the I-th of N shares of the files, for `lerope data merge`; needs --tokenizer.
    """
    with stoppable():
        manifest = prepare_corpus(
            sources,
            out,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            text_field=text_field,
            validation_fraction=validation_fraction,
            validation=validation,
            max_tokens=max_tokens,
            max_validation_tokens=max_validation_tokens,
            skip_invalid=skip_invalid,
            num_workers=workers,
            part=part,
        )
    _show(manifest)


def merge(directory: Annotated[Positional[Path], arg(metavar="DIR")]) -> None:
    """Put parts together that `lerope data prepare --part` made: the same bytes as if one machine had prepared all.

    Example: lerope data merge data/c4

    Args:
        directory: What all parts had as --out. When it is done, its folder parts/ can be deleted.
    """
    _show(merge_parts(directory))


def _show(manifest: Manifest) -> None:
    for name, split in manifest.splits.items():
        size = f"{split.num_tokens:,} tokens, {split.num_bytes / 1e6:,.1f} MB of text"
        print(
            f"{name:10}  {split.num_documents:,} documents, {size}{limit_in_words(split.num_tokens, split.max_tokens)}"
        )
    print(f"skipped     {manifest.num_skipped:,} documents, empty or invalid")
    print(f"fingerprint {manifest.fingerprint()}")


def inspect(
    directory: Annotated[Positional[Path], arg(metavar="DIR")],
    samples: int = 3,
    json_: Json = False,
) -> None:
    """Check prepared data and show what is in it: counts, lengths, unigram entropy, samples.

    Example: lerope data inspect data/my-text --samples 5

    Args:
        directory: What `lerope data prepare` wrote.
        samples: How many documents of each split to show the start of.
        json_: Print JSON.
    """
    summary = summarize(directory, samples)
    print(json.dumps(summary, indent=1) if json_ else describe(summary))


COMMAND = {"prepare": prepare, "merge": merge, "inspect": inspect}
