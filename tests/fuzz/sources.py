"""Texts that people bring: sources of `data prepare`, and study files with errors of their own."""

import gzip
import io
import lzma
import os
import random
from collections.abc import Iterator
from pathlib import Path

import zstandard

from tests.data.texts import made_up
from tests.fuzz.damage import to_bits
from tests.fuzz.inputs import Input, Reader, words

_IMPORTS = "from lerope.launch.study import Study, PlannedRun\n"


def _of(arguments: str) -> str:
    """A study file whose study has these arguments."""
    return f"{_IMPORTS}def study():\n    return Study({arguments})\n"


def _of_run(arguments: str) -> str:
    """A study file whose only run has these arguments."""
    return _of(f"name='x', sentence='y', runs=[PlannedRun({arguments})]")


STUDIES = {
    "an exception": "def study():\n    return 1 / 0\n",
    "an exception when imported": "raise RuntimeError('no')\n",
    "an exception of its own": "class Odd(Exception): pass\ndef study():\n    raise Odd\n",
    "a wrong type": "def study():\n    return 3\n",
    "None": "def study():\n    pass\n",
    "a missing argument": "def study(x):\n    return x\n",
    "a missing field": _of("name='x', sentence='y'"),
    "an unknown field": _of("name='x', sentence='y', runs=[], colour='red'"),
    "no runs": _of("name='x', sentence='y', runs=[]"),
    "runs that are None": _of("name='x', sentence='y', runs=None"),
    "runs of another type": _of("name='x', sentence='y', runs=[3]"),
    "a name of another type": _of("name=3, sentence=4, runs=[PlannedRun(rung='demo', encoding='rope')]"),
    "an unknown rung": _of_run("rung='x', encoding='rope'"),
    "a rung of another type": _of_run("rung=[], encoding='rope'"),
    "an encoding of another type": _of_run("rung='demo', encoding=3"),
    "an odd encoding": _of_run("rung='demo', encoding='..:x'"),
    "a seed of another type": _of_run("rung='demo', encoding='rope', seed='x'"),
    "changes of another type": _of_run("rung='demo', encoding='rope', changes=3"),
    "steps of another type": _of_run("rung='demo', encoding='rope', changes={'steps': 'x'}"),
    "steps of none": _of_run("rung='demo', encoding='rope', changes={'row_length': 0}"),
    "a measurement of another type": _of_run("rung='demo', encoding='rope', measure=3"),
    "a measurement that is empty": _of_run("rung='demo', encoding='rope', measure=((),)"),
    "markup": _of("name='[/b]', sentence='[/b]', runs=[PlannedRun(rung='demo', encoding='rope', suffix='[/b]')]"),
    "a slash in a name": _of("name='a/b', sentence='', runs=[PlannedRun(rung='demo', encoding='rope', suffix='../x')]"),
    "a syntax error": "def study(:\n",
    "an indentation error": "  def study():\n",
    "a null byte": "x = 1\0\n",
    "no function": "x = 1\n",
    "no callable": "study = 3\n",
    "a coding line that is none": "# coding: klingon\ndef study(): pass\n",
    "another coding": "# coding: rot13\nqrs fghql(): cnff\n",
    "an exit": "import sys\nsys.exit(3)\n",
    "an exit in the function": "def study():\n    raise SystemExit(4)\n",
    "a recursion": "def study():\n    return study()\n",
    "empty": "",
    "an import of what is not there": "import no_such_module\n",
    "an assertion": "def study():\n    assert False\n",
    "a key error": "def study():\n    return {}['x']\n",
    "a generator": "def study():\n    yield 3\n",
}  # fmt: skip


def study_inputs(world: Path) -> Iterator[Input]:
    """Study files with errors, through what reads them."""
    calls = {
        "ladder --status": ("ladder", "@own.py:study", "--status", "--out", "@study"),
        "ladder --print": ("ladder", "@own.py:study", "--print", "--data", "@data"),
        "ladder": ("ladder", "@own.py:study", "--data", "@data", "--out", "@out", "--demo"),
        "plan": ("plan", "@own.py:study"),
    }
    for name, text in STUDIES.items():
        found = tuple(Reader(call, own=words(*arguments)) for call, arguments in calls.items() if _quick(call, text))
        yield Input(
            "study files", name, lambda world, text=text: _write(world / "own.py", text.encode()), found, "", False
        )  # type: ignore[misc]
    for name, spec in (
        ("a folder", "@runs:study"),
        ("nothing", "@nothing.py:study"),
        ("dots", "..:x"),
        ("markup", "[/b]:x"),
    ):
        found = tuple(
            Reader("ladder", own=words("ladder", spec, *more))
            for more in (("--status",), ("--print", "--data", "@data"))
        )
        yield Input("study files", name, lambda world: None, found, "", False)


def _quick(call: str, text: str) -> bool:
    """A study that is right would be trained."""
    return call != "ladder" or "PlannedRun(rung='demo', encoding='rope'" not in text


def source_inputs(world: Path) -> Iterator[Input]:
    """Files of every ending, damaged or odd."""
    chance = random.Random(0)
    text = "\n".join(made_up(20)).encode()
    coded = b"print('caf\xc3\xa9')\n" * 5
    cases: dict[str, bytes] = {f"noise{ending}": chance.randbytes(2000) for ending in ENDINGS}
    cases |= {f"empty{ending}": b"" for ending in ENDINGS}
    for codec in CODECS:
        cases[f"{codec}.py"] = f"# -*- coding: {codec} -*-\n".encode() + coded
        cases[f"{codec} noise.py"] = f"# coding: {codec}\n".encode() + chance.randbytes(300)
    for number, (mark, name) in enumerate(
        ((b"\xff\xfe", "utf-16"), (b"\xef\xbb\xbf", "utf-8"), (b"\0\0\xfe\xff", "utf-32"))
    ):
        for ending in (".txt", ".py", ".jsonl"):
            cases[f"mark {name} {number}{ending}"] = mark + text[:400]
            cases[f"text in {name}{ending}"] = text[:2000].decode(errors="ignore").encode(name)
    cases["nulls.txt"] = b"\0" * 5000
    cases["one line.txt"] = b"x" * 3_000_000
    cases["deep.jsonl"] = b'{"text": ' + b"[" * 100_000 + b"\n"
    cases["huge number.jsonl"] = b'{"text": ' + b"9" * 10_000 + b"}\n"
    cases["surrogate.jsonl"] = b'{"text": "\\ud800"}\n'
    cases["two objects.jsonl"] = b'{"text": "a"}{"text": "b"}\n'
    cases["twice.jsonl"] = b'{"text": "a", "text": "b"}\n'
    for value in (b"3", b"null", b"[]", b"{}", b"true", b'["x"]'):
        cases[f"text is {value.decode()}.jsonl"] = b'{"text": ' + value + b"}\n"
    cases |= _pages_and_tables(chance)
    for name, content in cases.items():
        yield _source(name, lambda path, content=content: _write(path, content), False)  # type: ignore[misc]
    for ending in (".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".parquet"):
        whole = _packed(ending)
        damages = [*to_bits(whole, 3, 15)]
        for damage in damages:
            # gzip's header has bits that nobody reads, and a flipped bit in it changes no text.
            yield _source(
                f"{damage.name}{ending}", damage.apply, ending != ".parquet" and "byte more" not in damage.name
            )
    table = b'[{"text": "one"},\n {"text": "two"}]'
    for name, content in {
        "half.json": table[:-1],
        "more.json": table + b"[",
        "half.csv": b'text\r\n"one',
        **ROWS,
    }.items():
        yield _source(name, lambda path, content=content: _write(path, content), True)  # type: ignore[misc]
    yield _source("fifo.txt", lambda path: os.mkfifo(path), True)
    yield _source("fifo.jsonl", lambda path: os.mkfifo(path), True)
    yield _source("fifo.jsonl.zst", lambda path: os.mkfifo(path), True)
    yield _source("device.txt", lambda path: path.symlink_to("/dev/zero"), True)
    yield _source("folder.txt", lambda path: path.mkdir(), True)
    yield _source("loop.txt", lambda path: path.symlink_to(path), True)


ENDINGS = (
    *(".txt", ".md", ".rst", ".tex", ".py", ".html", ".htm", ".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst"),
    *(".json", ".csv", ".parquet", ".pdf", ""),
)
CODECS = (
    *(
        "rot13",
        "hex",
        "base64",
        "bz2",
        "zlib",
        "uu",
        "quopri",
        "idna",
        "punycode",
        "unicode_escape",
        "raw_unicode_escape",
    ),
    *("utf-7", "utf-16", "utf-32", "utf-8-sig", "latin-1", "ascii", "cp1252", "shift_jis", "gb18030", "big5", "mbcs"),
    *("undefined", "klingon", "[/b]", "utf8", "palmos", "hz", "iso2022_jp", "euc_kr", "cp037", "charmap"),
)


ROWS = {
    "short row.csv": b"id,text\n1,a\n2\n",
    "long row.csv": b"id,text\n1,a\n2,b,c\n",
    "no column.csv": b"id,body\n1,a\n",
    "twice.csv": b"text,text\na,b\n",
    "quotes.csv": b'text\n"a"b\n',
    "no field.json": b'{"body": "a"}',
    "a list of numbers.json": b"[1, 2]",
    "a text.json": b'"x"',
}


def _pages_and_tables(chance: random.Random) -> dict[str, bytes]:
    """Web pages with odd markup, JSON and CSV with odd values."""
    cases = {f"{codec}.html": f"<meta charset='{codec}'><p>caf\u00e9".encode() for codec in CODECS}
    cases |= {f"{codec} noise.html": f"<meta charset={codec}>".encode() + chance.randbytes(300) for codec in CODECS}
    marks = (
        "<",
        "</",
        "<!",
        "<![",
        "<![x[",
        "<!--",
        "<!DOCTYPE [",
        "<?",
        "&",
        "&#",
        "&#xD800;",
        "<p",
        "<script>",
        "<a b='",
    )
    for number, mark in enumerate(marks):
        cases[f"mark {number}.html"] = mark.encode()
        cases[f"many of mark {number}.html"] = mark.encode() * 20_000
        cases[f"text after mark {number}.html"] = f"<p>before{mark}after</p>".encode()
    signs = "<>!-[]/='\"&#;pre scriptdv\n"
    for number in range(20):
        cases[f"random {number}.html"] = "".join(chance.choices(signs, k=2000)).encode()
        cases[f"random {number}.json"] = "".join(chance.choices('{}[],:"text01 \\n', k=60)).encode()
        cases[f"random {number}.csv"] = b"text,id\n" + "".join(chance.choices('",\n\r a', k=60)).encode()
    cases["deep.json"] = b"[" * 100_000
    cases["deep object.json"] = b'{"text": ' + b"[" * 100_000
    cases["huge number.json"] = b'{"text": ' + b"9" * 10_000 + b"}"
    cases["surrogate.json"] = b'{"text": "\\ud800"}'
    cases["not utf-8.json"] = b'[{"text": "\xff"}]'
    cases["not utf-8.csv"] = b"text\n\xff\n"
    cases["nulls.csv"] = b"text\n\0\n"
    cases["one value.csv"] = b"text\n" + b"x" * 3_000_000
    return cases


def _packed(ending: str) -> bytes:
    folder = io.BytesIO()
    lines = "".join('{"text": "' + "".join(c for c in text if c.isalnum()) + '"}\n' for text in made_up(30)).encode()
    if ending == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"text": made_up(30)}), folder)
        return folder.getvalue()
    pack = {
        ".jsonl.gz": gzip.compress,
        ".jsonl.xz": lzma.compress,
        ".jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    }
    return pack[ending](lines)


def _source(name: str, write: object, is_bad: bool) -> Input:
    def apply(world: Path) -> None:
        write(world / f"source {name}".replace("/", "_"))  # type: ignore[operator]

    file = f"source {name}".replace("/", "_")
    common = ("--out", "@out", "--tokenizer", "@given.model", "--workers", "1", "--validation-fraction", "0.5")
    found = (
        Reader("data prepare", own=words("data", "prepare", f"@{file}", *common)),
        Reader("--skip-invalid", own=words("data", "prepare", f"@{file}", *common, "--skip-invalid")),
    )
    return Input("text sources", file, apply, found, "source" if is_bad else "", is_bad)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
