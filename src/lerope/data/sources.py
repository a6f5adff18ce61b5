"""Where text comes from. A SOURCE is one of

* a file or a folder of files: text as it is (.txt .md .rst .tex .py), the text of pages (.html .htm), a field of every
  line (.jsonl .jsonl.gz .jsonl.xz .jsonl.zst, and .json.gz, as C4's files are), row (.parquet .csv) or object (.json),
* `python:`, the Python sources of the running interpreter,
* `hf:NAME[:CONFIG[:SPLIT]]`, a Hugging Face dataset (`hf:c4` and `hf:starcoder` are known by these names and by
  their full ones, `hf:allenai/c4` and `hf:bigcode/starcoderdata`).
"""

import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lerope.data import hub
from lerope.data.field_readers import read_csv, read_html, read_json
from lerope.data.readers import Record, read_jsonl, read_parquet, read_text

_TEXT = (".txt", ".md", ".rst", ".tex", ".py")
_HTML = (".html", ".htm")
_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".json.gz")
# Settings and tables as often as text, so a folder's are read only where their field is named.
_PERHAPS = (".json", ".csv")
ENDINGS = (*_TEXT, *_HTML, *_JSONL, ".parquet", *_PERHAPS)
# Folders without library code, or with deliberately odd code.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class Part(NamedTuple):
    """A file or a dataset; its records are read in order and numbered from 0."""

    name: str
    """Its name within the source, independent of where the source is."""
    location: str
    field: str
    skip_invalid: bool
    size: int | None
    """Bytes on disk; None if unknown."""
    code: bool | None
    """Whether it is source code; None if its content is to tell."""


def find_parts(source: str, text_field: str | None = None, skip_invalid: bool = False) -> list[Part]:
    """The parts of a source, in reading order.

    Args:
        source: see above.
        text_field: the field of a JSON object, row or dataset that holds the text; `text` or a known dataset's.
        skip_invalid: skip documents that are not valid UTF-8 instead of raising.
    """
    if source.startswith("hf:"):
        dataset = hub.parse(source[3:])
        return [Part(source, source, text_field or dataset.field, skip_invalid, None, dataset.code)]
    field = text_field or "text"
    if source == "python:":
        library = Path(sysconfig.get_path("stdlib"))
        found = [path for path in _files(library, _NOT_LIBRARY) if path.suffix == ".py"]
        return [_part(path, library, field, True) for path in found]
    path = Path(source)
    if not path.exists():
        raise ValueError(f"source {source!r} does not exist; name a file, a folder, python: or hf:NAME.")
    endings = " ".join(ENDINGS)
    if not path.is_dir():
        if not path.is_file():
            raise ValueError(f"source {source!r} must be a file or a folder; got something else, which may never end.")
        if not path.name.endswith(ENDINGS):
            raise ValueError(f"source {source!r} has an unknown ending; it must be one of {endings}.")
        return [_part(path, path.parent, field, skip_invalid)]
    found, left = _folder(path, text_field)
    if not found:
        named = f" ({' '.join(_PERHAPS)} only with --text-field)" if left.keys() & set(_PERHAPS) else ""
        raise ValueError(f"source {source!r} is a folder with no {endings} files{named}.")
    return [_part(file, path, field, skip_invalid) for file in found]


def left_out(source: str, text_field: str | None = None) -> dict[str, int]:
    """How many files of a folder are not read, by ending, the most frequent first."""
    return dict(_folder(Path(source), text_field)[1].most_common()) if Path(source).is_dir() else {}


def _folder(path: Path, text_field: str | None) -> tuple[list[Path], Counter[str]]:
    """The files of a folder that are read, and how many are not, by ending."""
    endings = tuple(ending for ending in ENDINGS if text_field is not None or ending not in _PERHAPS)
    files = list(_files(path, set()))
    found = [file for file in files if file.name.endswith(endings)]
    return found, Counter(file.suffix or "without an ending" for file in files if not file.name.endswith(endings))


def default_validation(sources: Sequence[str]) -> tuple[list[str], int | None]:
    """The default sources of the validation split, and its maximum number of tokens.

    No sources means documents held out from the others. Without a known dataset there is no limit either, because
    the first documents of, say, a folder may differ in kind from the rest.
    """
    names = [source[3:] for source in sources if source.startswith("hf:") and hub.is_known(source[3:])]
    if len(names) < len(sources):
        return [], None
    own = [hub.own_validation(name) for name in names]
    return [] if None in own else [f"hf:{name}" for name in own], hub.VALIDATION_TOKENS


def read_part(part: Part, start: int = 0) -> Iterator[Record]:
    """The records of a part, from number `start` on; any problem raises one ValueError that says where."""
    if part.location.startswith("hf:"):
        return hub.read_dataset(part.location[3:], start, part.field, part.skip_invalid)
    path = Path(part.location)
    if path.name.endswith(_TEXT):
        return read_text(path, start, part.skip_invalid)
    if path.suffix in _HTML:
        return read_html(path, start, part.skip_invalid)
    read = {".parquet": read_parquet, ".json": read_json, ".csv": read_csv}.get(path.suffix, read_jsonl)
    return read(path, start, part.field, part.skip_invalid)


def read_texts(sources: Iterable[str]) -> Iterator[str]:
    """The documents of some sources, in order, without empty ones."""
    for source in sources:
        for part in find_parts(source):
            for record in read_part(part):
                yield from filter(None, record.texts)


def sources_in_words(sources: Iterable[str]) -> str:
    """What to call sources: files and folders by their names alone."""
    return ", ".join(Path(source).name if Path(source).exists() else source for source in sources)


def parts_digest(parts: Iterable[Part]) -> str:
    """A hash of names and sizes, to detect that a source has changed."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(f"{part.name}\0{part.size}\0".encode(errors="surrogateescape"))
    return hasher.hexdigest()


def sample(parts: list[Part], max_bytes: int) -> Iterator[str]:
    """Documents of up to `max_bytes` in total, always the same ones, spread over and within the parts.

    A source that is not much larger is used whole. In a larger one, every part gives its share, and a large file
    every k-th record, from at most the first 8 times its share.
    """
    total = sum(part.size or 0 for part in parts)
    everything = total <= max_bytes
    share = max(max_bytes // max(len(parts), 1), 1 << 20)
    left = max_bytes
    for part in sorted(parts, key=lambda part: hashlib.sha256(os.fsencode(part.name)).digest()):
        limit = left if everything else min(left, share)
        step = 1 if everything else min(8, (part.size or 0) // share + 1)
        for number, record in enumerate(read_part(part)):
            if limit <= 0:
                break
            if number % step:
                continue
            for text in record.texts:
                size = len(text.encode())
                limit, left = limit - size, left - size
                yield text
        if left <= 0:
            return


def _part(path: Path, root: Path, field: str, skip_invalid: bool) -> Part:
    name, size = path.relative_to(root).as_posix(), path.stat().st_size
    code = path.suffix == ".py" if path.suffix in (*_TEXT, *_HTML) else None
    return Part(name, str(path), field, skip_invalid, size, code)


def _files(root: Path, without: set[str]) -> Iterator[Path]:
    """All non-hidden files below a folder, in a fixed order."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in without)
        paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())
