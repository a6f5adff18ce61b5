"""Documents out of Hugging Face datasets, streamed: from the hub by name, or from a folder with data files."""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from lerope.data.readers import Record, documents, missing_field, missing_package


class Dataset(NamedTuple):
    """What `datasets.load_dataset` is called with, and the field that holds the text."""

    name: str
    config: str | None = None
    data_dir: str | None = None
    field: str = "text"
    split: str = "train"


_KNOWN = {
    "c4": Dataset("allenai/c4", config="en"),
    "starcoder": Dataset("bigcode/starcoderdata", data_dir="python", field="content"),
}


def parse(source: str) -> Dataset:
    """NAME[:CONFIG[:SPLIT]]; for StarCoder, CONFIG is the programming language."""
    name, _, rest = source.partition(":")
    config, _, split = rest.partition(":")
    known = _KNOWN.get(name, Dataset(name))
    changes = {"data_dir" if known.data_dir else "config": config, "split": split}
    return known._replace(**{name: value for name, value in changes.items() if value})


def read_dataset(source: str, start: int, field: str, skip_invalid: bool) -> Iterator[Record]:
    """The records of a dataset's split."""
    try:
        import datasets
    except ImportError:
        raise missing_package("datasets", f"hf:{source}") from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of every attempt
    dataset = parse(source)
    rows: Iterator[Any]
    try:
        stream = datasets.load_dataset(
            dataset.name, dataset.config, data_dir=dataset.data_dir, split=dataset.split, streaming=True
        )
        rows = iter(stream.skip(start) if start else stream)
    except Exception as error:  # the library and those below it have many kinds
        raise ValueError(
            f"hf:{source}: the dataset cannot be opened ({_reason(error)}); check its name, its configuration, that it "
            f"has a split {dataset.split!r}, and the network."
        ) from None
    number = start
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            raise ValueError(
                f"hf:{source}: reading stopped at document {number:,} ({_reason(error)}); run the same command again "
                f"to continue there."
            ) from None
        number += 1
        where = f"hf:{source}, document {number:,}"
        if field not in row:
            raise missing_field(field, row, where)
        yield Record(documents(row[field], field, where, skip_invalid), number, 0)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".strip().removesuffix(".")
