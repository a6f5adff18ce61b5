"""Documents in a field: objects of JSON files and rows of CSV files, streamed; web pages, which have none."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lerope.data.html_text import html_text
from lerope.data.readers import SKIP, Record, cut, documents, missing_field, object_texts

_BLOCK_CHARACTERS = 1 << 18
_MOST_CHARACTERS = 1 << 28
_BETWEEN = re.compile(r"[\s,]*")
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_PRESCAN_BYTES = 1 << 10


def read_json(path: Path, start: int, field: str, skip_invalid: bool) -> Iterator[Record]:
    """One document per object: of a list, of a file that is one object, or of objects one after the other."""
    with path.open("rb") as raw:
        for number, value in enumerate(_values(path, raw)):
            if number >= start:
                where = f"{path}, object {number + 1:,}"
                yield Record(object_texts(value, field, where, skip_invalid), number + 1, raw.tell())


def _values(path: Path, raw: IO[bytes]) -> Iterator[Any]:
    """Values one by one; only what has not been given yet is in memory."""
    # What is not valid UTF-8 becomes lone surrogates, which `documents` finds.
    file = io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape")
    decoder, text, at, is_list, number = json.JSONDecoder(), "", 0, False, 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("[", at) and not number and not is_list:
            is_list, at = True, at + 1
            continue
        if is_list and text.startswith("]", at):
            if (text[at + 1 :] + file.read(_BLOCK_CHARACTERS)).strip():
                raise ValueError(f"{path} goes on after its list has ended; it must be one list, or objects alone.")
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            text, at = text[at:], 0
            # Perhaps there is only a part of it yet; twice as much each time, so that no value is read often.
            more = "" if len(text) > _MOST_CHARACTERS else file.read(max(_BLOCK_CHARACTERS, len(text)))
            if not more and not text and not is_list:
                return
            if not more or isinstance(error, RecursionError):
                reason = " ".join(str(error).split())
                raise ValueError(f"{path}, object {number + 1:,} is not JSON ({reason}); restore or mend it.") from None
            text += more
            continue
        yield value
        number += 1


def read_csv(path: Path, start: int, field: str, skip_invalid: bool) -> Iterator[Record]:
    """One document per row, in a column that the first row names."""
    csv.field_size_limit(_MOST_CHARACTERS)
    with path.open("rb") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline=""), strict=True)
        number = 0
        try:
            header = next(rows, [])
            if header and header.count(field) != 1:
                raise missing_field(field, header, str(path))
            for number, row in enumerate(filter(None, rows), 1):
                where = f"{path}, row {number:,}"
                if len(row) != len(header):
                    raise ValueError(f"{where} must have {len(header)} fields as the first row has; got {len(row)}.")
                if number > start:
                    found = documents(row[header.index(field)], field, where, skip_invalid)
                    yield Record(found, number, raw.tell())
        except csv.Error as error:
            raise ValueError(f"{path} is no CSV after row {number:,} ({error}); restore or mend it.") from None


def read_html(path: Path, start: int, skip_invalid: bool) -> Iterator[Record]:
    """A web page: one document, or several if it is long; of its text only what a reader sees."""
    data = path.read_bytes()
    declared = _CHARSET.search(data[:_PRESCAN_BYTES])
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        text = html_text(data.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding))
    except (UnicodeError, LookupError) as error:
        if not skip_invalid:
            raise ValueError(f"{path} is not valid text in {encoding} ({error}); convert it, {SKIP}.") from None
        yield Record([], 1, len(data))
        return
    for number, part in enumerate(cut([text.encode(errors="replace")])):
        if number >= start:
            yield Record([part.decode()], number + 1, len(data))
