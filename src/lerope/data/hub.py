"""Documents streamed from Hugging Face datasets: from the hub by name, or from a folder of data files."""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from lerope.data.readers import Record, documents, missing_field, missing_package


class Dataset(NamedTuple):
    """The arguments of `datasets.load_dataset`, and the field that holds the text."""

    name: str
    config: str | None = None
    data_dir: str | None = None
    field: str = "text"
    split: str = "train"
    code: bool | None = None
    """Whether it is source code; None if its content is to tell."""
    validation: str | None = None
    """Its validation split."""


VALIDATION_TOKENS = 10_000_000
"""How much of a known dataset is for validation, by default.

`lerope eval` reads all of it in float32: about 5 % of the time it takes to train the paper's smallest rung, 52M with
1.03 billion tokens. With all of C4's validation split it would be 77 %.
"""
_KNOWN = {
    "c4": Dataset("allenai/c4", config="en", code=False, validation="validation"),
    "starcoder": Dataset("bigcode/starcoderdata", data_dir="python", field="content", code=True),
}


def parse(source: str) -> Dataset:
    """NAME[:CONFIG[:SPLIT]]; for StarCoder, CONFIG is the programming language."""
    name, _, rest = source.partition(":")
    config, _, split = rest.partition(":")
    known = _known(name) or Dataset(name)
    changes: dict[str, Any] = {"data_dir" if known.data_dir else "config": config, "split": split}
    return known._replace(**{name: value for name, value in changes.items() if value})


def is_known(source: str) -> bool:
    """Whether a dataset is listed above, be it by its short name or its full one."""
    return _known(source.partition(":")[0]) is not None


def own_validation(source: str) -> str | None:
    """The validation split that goes with a dataset's training split, or None."""
    dataset = parse(source)
    if dataset.validation is None or dataset.split != "train":
        return None
    name, _, rest = source.partition(":")
    return f"{name}:{rest.partition(':')[0] or dataset.config or ''}:{dataset.validation}"


def read_dataset(source: str, start: int, field: str, skip_invalid: bool) -> Iterator[Record]:
    """The records of a dataset's split."""
    try:
        import datasets
    except ImportError:
        raise missing_package("datasets", f"hf:{source}") from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would report every attempt
    dataset = parse(source)
    rows: Iterator[Any]
    try:
        stream = datasets.load_dataset(
            dataset.name, dataset.config, data_dir=dataset.data_dir, split=dataset.split, streaming=True
        )
        rows = iter(stream.skip(start) if start else stream)
    except Exception as error:  # the library and its dependencies raise many kinds
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
                f"to continue from there."
            ) from None
        number += 1
        where = f"hf:{source}, document {number:,}"
        if field not in row:
            raise missing_field(field, row, where)
        yield Record(documents(row[field], field, where, skip_invalid), number, 0)


def _known(name: str) -> Dataset | None:
    return _KNOWN.get(name) or next((dataset for dataset in _KNOWN.values() if dataset.name == name), None)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}".strip().removesuffix(".")
