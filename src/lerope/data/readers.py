"""Documents streamed from files: memory does not grow with the input, and reading can begin at any record."""

import codecs
import gzip
import json
import lzma
import tokenize
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from lerope.core.extras import install

DOCUMENT_BYTES = 1 << 20
"""Longer texts are split into several documents."""
_BLOCK_BYTES = 1 << 18
_LINE_BYTES = 1 << 28
_PARQUET_ROWS = 64
_ZST_BYTES = 1 << 12  # little at a time, because its decompressed size cannot be bounded
SKIP = "or pass --skip-invalid to skip such documents"


class Record(NamedTuple):
    """The content of one line, row or file, or one stretch of a long text file."""

    texts: list[str]
    """Its documents: several if it is longer than DOCUMENT_BYTES, none if it was skipped as invalid."""
    stop: int
    """The number of the record to start from next time."""
    num_bytes_read: int
    """How much of the file on disk has been read."""


def missing_package(package: str, what: str) -> ValueError:
    """The error for a failed import."""
    return ValueError(f"{what} needs the package {package}; install it with `{install('data')}`.")


def documents(text: object, field: str, where: str, skip_invalid: bool) -> list[str]:
    """A field's text as documents: usually one, several if it is long, none if it is skipped."""
    if not isinstance(text, str):
        raise ValueError(f"{where}: field {field!r} must be a string; got {json.dumps(text, default=str)[:40]}.")
    if text.isascii() and len(text) <= DOCUMENT_BYTES:
        return [text]
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        if skip_invalid:
            return []
        code = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(
            f"{where}: field {field!r} is not valid UTF-8: character {error.start:,} is the lone surrogate {code}; "
            f"remove it, {SKIP}."
        ) from None
    return [text] if len(data) <= DOCUMENT_BYTES else [part.decode() for part in cut([data])]


def missing_field(field: str, fields: Iterable[str], where: str) -> ValueError:
    """The error for a missing text field."""
    there = ", ".join(map(repr, fields)) or "none"
    return ValueError(f"{where}: field {field!r} is missing, the fields are {there}; name one with --text-field.")


def cut(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cuts a stream of UTF-8 into parts of at most DOCUMENT_BYTES that join to the stream.

    Cuts are made in the second half of a part: after a blank line, else after a line, else between two characters.
    """
    buffer = bytearray()
    for block in blocks:
        buffer += block
        while len(buffer) > DOCUMENT_BYTES:
            at = _place(buffer)
            yield bytes(buffer[:at])
            del buffer[:at]
    yield bytes(buffer)


def _place(buffer: bytearray) -> int:
    half = DOCUMENT_BYTES // 2
    ends = [buffer.rfind(blank, half, DOCUMENT_BYTES) + len(blank) for blank in (b"\n\n", b"\n\r\n")]
    at = max(ends)
    if at <= half:
        at = buffer.rfind(b"\n", half, DOCUMENT_BYTES) + 1
    if at <= half:
        at = DOCUMENT_BYTES
        while at > DOCUMENT_BYTES - 4 and buffer[at] & 0xC0 == 0x80:  # inside a character
            at -= 1
    return at


def read_text(path: Path, start: int, skip_invalid: bool) -> Iterator[Record]:
    """A text file: one document, or several if it is long."""
    with path.open("rb") as file:
        encoding = _python_encoding(file, skip_invalid) if path.suffix == ".py" else "utf-8"
        if encoding is None:
            yield Record([], 1, path.stat().st_size)
            return
        offset = 0
        for number, data in enumerate(cut(_utf8_blocks(file, encoding))):
            try:
                texts = [data.decode("utf-8" if number else "utf-8-sig")] if number >= start else []
            except UnicodeDecodeError as error:
                if not skip_invalid:
                    at = error.start + (3 if number == 0 and data.startswith(codecs.BOM_UTF8) else 0)
                    what = f"UTF-8 at byte {offset + at:,} (0x{data[at]:02x})"
                    what = what if encoding == "utf-8" else f"{encoding}, the encoding it declares"
                    raise ValueError(f"{path} is not valid {what}; convert it, {SKIP}.") from None
                texts = []
            offset += len(data)
            if number >= start:
                yield Record(texts, number + 1, file.tell())


def _utf8_blocks(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    blocks = iter(lambda: file.read(_BLOCK_BYTES), b"")
    if encoding == "utf-8":
        return blocks
    # Bytes the encoding does not have become lone surrogates, which are not valid UTF-8 either.
    decoder = codecs.getincrementaldecoder(encoding)(errors="surrogateescape")
    return (_decoded(decoder, block) for group in (blocks, [b""]) for block in group)


def _decoded(decoder: codecs.IncrementalDecoder, block: bytes) -> bytes:
    """A block as UTF-8, or as a byte that no UTF-8 has if the encoding cannot stand it."""
    try:
        return decoder.decode(block, final=not block).encode(errors="surrogatepass")
    except UnicodeError:
        return b"\xff"


def _python_encoding(file: IO[bytes], skip_invalid: bool) -> str | None:
    """The encoding that a Python source declares (PEP 263); None if it is unknown and the file is to be skipped."""
    try:
        encoding = tokenize.detect_encoding(file.readline)[0]
    except SyntaxError as error:
        unknown = "unknown encoding" in str(error)
        if unknown and not skip_invalid:
            raise ValueError(f"{file.name}: {error.msg}; convert it, {SKIP}.") from None
        encoding = "" if unknown else "utf-8"  # if it is not valid UTF-8, the decoder will say where
    file.seek(0)
    encoding = encoding.removesuffix("-sig")
    try:
        b" ".decode(encoding or "utf-8")
        codecs.getincrementaldecoder(encoding or "utf-8")
    except (LookupError, UnicodeError):  # rot13, hex, base64 ... are no encodings of text; some have no decoder
        if not skip_invalid:
            raise ValueError(f"{file.name} declares {encoding}, no encoding of text; convert it, {SKIP}.") from None
        return None
    return encoding or None


def read_jsonl(path: Path, start: int, field: str, skip_invalid: bool) -> Iterator[Record]:
    """One document per line, in a field of a JSON object; the file may be compressed."""
    for number, (line, num_bytes_read) in enumerate(_lines(path)):
        if number < start or not line.strip():
            continue
        where = f"{path}, line {number + 1:,}"
        try:
            content = json.loads(line.decode())
        except UnicodeDecodeError as error:
            if skip_invalid:
                yield Record([], number + 1, num_bytes_read)
                continue
            at = f"at byte {error.start:,} of the line (0x{line[error.start]:02x})"
            raise ValueError(f"{where} is not valid UTF-8 {at}; convert it, {SKIP}.") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON ({error}); every line must be a JSON object.") from None
        yield Record(object_texts(content, field, where, skip_invalid), number + 1, num_bytes_read)


def object_texts(content: object, field: str, where: str, skip_invalid: bool) -> list[str]:
    """The documents in a field of a JSON object."""
    if not isinstance(content, dict):
        shown = json.dumps(content)[:40]
        raise ValueError(f"{where} must be a JSON object with the text in a field; got {shown}.")
    if field not in content:
        raise missing_field(field, content, where)
    return documents(content[field], field, where, skip_invalid)


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    rest, size = [b""], 0  # an unfinished line, in blocks: joining at each block would take quadratic time
    read = 0
    for block, read in _blocks(path):
        first, *more = block.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > _LINE_BYTES:
            raise ValueError(
                f"{path} has a line of more than {_LINE_BYTES:,} bytes; split it into lines of one JSON object each."
            )
        if more:
            yield b"".join(rest), read
            yield from ((line, read) for line in more[:-1])
            rest, size = [more[-1]], len(more[-1])
    yield b"".join(rest), read


def _blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Uncompressed content, and how much of the file on disk has been read so far."""
    with path.open("rb") as raw:
        try:
            if path.suffix == ".zst":
                blocks = _zst_blocks(raw)
            else:
                open_as: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
                file = open_as[path.suffix](raw) if path.suffix in open_as else raw
                blocks = iter(lambda: file.read(_BLOCK_BYTES), b"")
            for block in blocks:
                yield block, raw.tell()
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise _damaged(path, error) from None


def _zst_blocks(raw: IO[bytes]) -> Iterator[bytes]:
    """Frame by frame; zstandard's own reader would mistake a truncated file for a whole one."""
    try:
        import zstandard
    except ImportError:
        raise missing_package("zstandard", f"{raw.name}:") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    while block := raw.read(_ZST_BYTES):
        while block:
            frame = frame or decompressor.decompressobj()
            try:
                content = frame.decompress(block)
            except zstandard.ZstdError as error:
                raise EOFError(error) from None
            if content:
                yield content
            block, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("it ends mid-frame")


def _damaged(path: Path, error: BaseException) -> ValueError:
    reason = " ".join(str(error).split()).removesuffix(".")
    return ValueError(f"{path} is damaged or truncated ({reason}); download it again or restore it.")


def read_parquet(path: Path, start: int, field: str, skip_invalid: bool) -> Iterator[Record]:
    """One document per row, in a string column; no other column is read."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise missing_package("pyarrow", f"{path}: Parquet") from None
    try:
        # Without these, a whole row group's column would be in memory at once.
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BLOCK_BYTES)
        if field not in file.schema_arrow.names:
            raise missing_field(field, file.schema_arrow.names, str(path))
        kind = file.schema_arrow.field(field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(
            is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        ):
            raise ValueError(f"{path}: field {field!r} must hold strings; got {kind}, name another with --text-field.")
        row, size, total = 0, path.stat().st_size, max(file.metadata.num_rows, 1)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row + rows <= start:
                row += rows
                continue
            for batch in file.iter_batches(_PARQUET_ROWS, row_groups=[group], columns=[field]):
                for value in batch.column(0).cast(pa.large_string(), safe=False).cast(pa.large_binary()).to_pylist():
                    row += 1
                    if row > start:
                        yield Record(_row(value, field, path, row, skip_invalid), row, size * row // total)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _row(value: bytes | None, field: str, path: Path, row: int, skip_invalid: bool) -> list[str]:
    where = f"{path}, row {row:,}"
    try:
        return documents(None if value is None else value.decode(), field, where, skip_invalid)
    except UnicodeDecodeError as error:
        if skip_invalid:
            return []
        at = f"at byte {error.start:,} of its text"
        raise ValueError(f"{where} is not valid UTF-8 {at}; convert it, {SKIP}.") from None
