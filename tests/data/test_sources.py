"""Every kind of source gives its documents back, from any record on, in bounded pieces."""

import ast
import csv
import json
import random
import re
import sysconfig
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerope.data import field_readers, readers
from lerope.data.html_text import html_text
from lerope.data.readers import DOCUMENT_BYTES, cut
from lerope.data.sources import find_parts, left_out, parts_digest, read_part, sample
from tests.data.texts import made_up, write_jsonl, write_parquet

TEXTS = made_up(35)


def texts_of(source, start=0, **options):
    parts = find_parts(str(source), **options)
    return [text for part in parts for record in read_part(part, start) for text in record.texts]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".parquet"])
@pytest.mark.parametrize("field", [None, "body"])
def test_tables_give_every_text_from_any_record_on(tmp_path, ending, field):
    path = tmp_path / f"x{ending}"
    (write_parquet if ending == ".parquet" else write_jsonl)(path, TEXTS, field or "text")
    assert texts_of(path, text_field=field) == TEXTS
    (part,) = find_parts(str(path), field)
    assert part.size == path.stat().st_size
    records = list(read_part(part))
    assert records[-1].num_bytes_read == part.size
    for number in (0, 1, 9, 10, 11, 34, 35):
        assert texts_of(path, number, text_field=field) == TEXTS[number:]
        assert number == 0 or records[number - 1].stop == number


def test_blank_lines_and_a_missing_last_line_end_are_no_documents(tmp_path):
    (tmp_path / "x.jsonl").write_text('\n{"text": "a"}\r\n\n  \n{"text": "b\\n"}')
    assert texts_of(tmp_path / "x.jsonl") == ["a", "b\n"]
    assert texts_of(tmp_path / "x.jsonl", 2) == ["b\n"]


def test_frames_and_members_one_after_another_are_one_file(tmp_path):
    for ending in ("jsonl.gz", "jsonl.xz", "jsonl.zst"):
        halves = [write_jsonl(tmp_path / f"{i}.{ending}", TEXTS[i::2]).read_bytes() for i in (0, 1)]
        (tmp_path / f"whole.{ending}").write_bytes(b"".join(halves))
        assert texts_of(tmp_path / f"whole.{ending}") == TEXTS[0::2] + TEXTS[1::2]


def test_lines_longer_than_a_block_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 7)
    write_jsonl(tmp_path / "x.jsonl", TEXTS)
    assert texts_of(tmp_path / "x.jsonl") == TEXTS


def test_other_string_columns(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        parquet.write_table(pa.table({"text": pa.array(TEXTS).cast(kind)}), tmp_path / "x.parquet")
        assert texts_of(tmp_path / "x.parquet") == TEXTS


def test_a_folder_is_read_in_a_fixed_order_without_hidden_and_unknown_files(tmp_path):
    for name in ("b.txt", "a.md", "c/d.py", "c/a.txt", "B/x.txt", ".hidden.txt", ".git/x.txt", "image.png", "c/.x.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts_of(tmp_path) == ["a.md", "b.txt", "B/x.txt", "c/a.txt", "c/d.py"]
    digest = parts_digest(find_parts(str(tmp_path)))
    assert digest == parts_digest(find_parts(f"{tmp_path}/./"))
    (tmp_path / "c/a.txt").write_text("other size")
    assert digest != parts_digest(find_parts(str(tmp_path)))


def test_text_is_kept_to_the_byte_but_for_a_byte_order_mark(tmp_path):
    text = "a\r\nb\rc\0\x1a\t\n\n"
    (tmp_path / "x.txt").write_bytes(text.encode())
    assert texts_of(tmp_path / "x.txt") == [text]
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert texts_of(tmp_path / "x.txt") == [text]
    (tmp_path / "x.txt").write_bytes(b"")
    assert texts_of(tmp_path / "x.txt") == [""]


def test_python_files_have_the_encoding_they_declare(tmp_path):
    source = "# -*- coding: {} -*-\nx = 'déjà vu'\n"
    for encoding in ("latin-1", "cp1252", "utf-8", "utf-8-sig"):
        text = source.format(encoding.removesuffix("-sig"))
        (tmp_path / "x.py").write_bytes(text.encode(encoding))
        assert texts_of(tmp_path / "x.py") == [text]
    text = source.format("latin-1") + "# é\n" * 500_000
    (tmp_path / "x.py").write_bytes(text.encode("latin-1"))
    found = texts_of(tmp_path / "x.py")
    assert len(found) > 1
    assert "".join(found) == text


def test_long_files_are_cut_at_blank_lines(tmp_path):
    paragraphs = [f"{i} " + "word " * 2000 + "\nand more\n\n" for i in range(500)]
    (tmp_path / "x.txt").write_text("".join(paragraphs))
    found = texts_of(tmp_path / "x.txt")
    assert len(found) > 4
    assert "".join(found) == "".join(paragraphs)
    assert all(text.endswith("\n\n") and len(text.encode()) <= DOCUMENT_BYTES for text in found)
    assert texts_of(tmp_path / "x.txt", 3) == found[3:]


@given(
    st.lists(st.sampled_from(["a", "é", "語", "😀", "\n", "\n\n", "\r\n\r\n", "word"]), max_size=300),
    st.integers(1, 50),
)
@settings(max_examples=100, deadline=None)
def test_cuts_lose_nothing_and_fall_between_characters(pieces, block):
    text = "".join(pieces)
    data = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "DOCUMENT_BYTES", 32)
        found = list(cut(data[i : i + block] for i in range(0, len(data), block)))
    assert all(len(part) <= 32 for part in found)
    assert "".join(part.decode() for part in found) == text


def test_long_texts_of_tables_are_cut_and_stay_one_record(tmp_path):
    text = "x é\n" * 400_000
    path = write_jsonl(tmp_path / "x.jsonl", ["first", text, "last"])
    (part,) = find_parts(str(path))
    sizes = [len(record.texts) for record in read_part(part)]
    assert sizes == [1, 2, 1]
    assert "".join(texts_of(path)[1:-1]) == text


def test_python_is_the_standard_library():
    parts = find_parts("python:")
    names = [part.name for part in parts]
    assert names == [part.name for part in find_parts("python:")]
    assert {"ast.py", "json/decoder.py", "asyncio/events.py"} <= set(names)
    assert not [name for name in names if {"test", "tests", "idle_test", "site-packages"} & set(name.split("/")[:-1])]
    part = next(part for part in parts if part.name == "ast.py")
    ((text,),) = [record.texts for record in read_part(part)]
    assert text == Path(sysconfig.get_path("stdlib"), "ast.py").read_text()
    ast.parse(text)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_hugging_face_dataset_in_a_folder(tmp_path, ending, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "dataset"
    folder.mkdir()
    (write_parquet if ending == ".parquet" else write_jsonl)(folder / f"train{ending}", TEXTS)
    assert texts_of(f"hf:{folder}") == TEXTS
    assert texts_of(f"hf:{folder}:default", 30) == TEXTS[30:]


def test_known_datasets_have_their_fields(monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.IterableDataset.from_generator(lambda: iter([{"text": "t", "content": "c"}]))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [texts_of(source) for source in ("hf:c4", "hf:starcoder", "hf:starcoder:rust")] == [["t"], ["c"], ["c"]]
    assert [(args, kwargs["data_dir"]) for args, kwargs in calls] == [
        (("allenai/c4", "en"), None),
        (("bigcode/starcoderdata", None), "python"),
        (("bigcode/starcoderdata", None), "rust"),
    ]
    assert all(kwargs["streaming"] for _, kwargs in calls)
    assert texts_of("hf:c4", text_field="content") == ["c"]


def test_invalid_documents_are_skipped_and_counted_where_asked(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "caf\xe9"}\n{"text": "\\ud800"}\n{"text": "\\ud83d\\ude00"}\n')
    (tmp_path / "c.py").write_bytes(b"# coding: klingon\n")
    (tmp_path / "d.py").write_bytes(b"# coding: ascii\nx = '\xc3\xa9'\n")
    parts = find_parts(str(tmp_path), skip_invalid=True)
    assert [record.texts for part in parts for record in read_part(part)] == [[], [], [], ["😀"], [], []]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".parquet", ".txt"])
def test_memory_does_not_grow_with_the_file(tmp_path, ending):
    rng = random.Random(0)
    texts = [rng.randbytes(100_000).hex() + "\n" for _ in range(80)]
    peaks = []
    for count in (20, 80):
        path = tmp_path / f"{count}{ending}"
        if ending == ".txt":
            path.write_text("".join(texts[:count]))
        else:
            (write_parquet if ending == ".parquet" else write_jsonl)(path, texts[:count])
        (part,) = find_parts(str(path))
        tracemalloc.start()
        assert sum(len(text) for record in read_part(part) for text in record.texts) == 200_001 * count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Half as much again for the allocator's chance; all of the text would be 12 MB more.
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 8_000_000


def test_a_sample_is_bounded_spread_and_always_the_same(tmp_path):
    for number in range(20):
        write_jsonl(tmp_path / f"{number:02}.jsonl", [f"{number} {i} " + "x" * 20_000 for i in range(200)])
    parts = find_parts(str(tmp_path))
    found = list(sample(parts, 20 << 20))
    assert found == list(sample(parts, 20 << 20))
    assert 15 << 20 < sum(map(len, found)) < 21 << 20
    assert {text.split()[0] for text in found} == {str(number) for number in range(20)}
    assert max(int(text.split()[1]) for text in found) > 150
    assert sorted(sample(parts[:2], 1 << 30)) == sorted(
        t for part in parts[:2] for r in read_part(part) for t in r.texts
    )


def write_json(path, texts, field, shape):
    rows = [{"id": number, field: text} for number, text in enumerate(texts)]
    objects = [json.dumps(row, indent=1 if shape == "indented" else None) for row in rows]
    path.write_text(f"[{','.join(objects)}]\n" if shape == "list" else "\n".join(objects))


@pytest.mark.parametrize("shape", ["list", "lines", "indented"])
@pytest.mark.parametrize("field", [None, "body"])
@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_objects_of_a_json_file(tmp_path, shape, field, block, monkeypatch):
    monkeypatch.setattr(field_readers, "_BLOCK_CHARACTERS", block)
    path = tmp_path / "x.json"
    write_json(path, TEXTS, field or "text", shape)
    assert texts_of(path, text_field=field) == TEXTS
    for number in (1, 10, 34, 35):
        assert texts_of(path, number, text_field=field) == TEXTS[number:]
    assert [record.stop for record in read_part(find_parts(str(path), field)[0])] == list(range(1, 36))


def test_rows_of_a_csv_file(tmp_path):
    path = tmp_path / "x.csv"
    texts = [*TEXTS, 'say "so", twice\r\nand\non', "x" * 200_000]
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["id", "body"], *enumerate(texts)])
    assert texts_of(path, text_field="body") == texts
    for number in (1, 10, 36, 37):
        assert texts_of(path, number, text_field="body") == texts[number:]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.json", '[{"text": "a"}', "object 2 is not JSON"),
        ("x.json", '[{"text": "a"}] x', "goes on"),
        ("x.json", '[{"body": "a"}]', "field 'text' is missing, the fields are 'body'"),
        ("x.json", "[3]", "must be a JSON object"),
        ("x.csv", "id,body\n1,a\n", "field 'text' is missing, the fields are 'id', 'body'"),
        ("x.csv", "id,text\n1,a\n2\n", "row 2 must have 2 fields"),
        ("x.csv", 'text\n"a', "row 0"),
        ("x.html", b"<p>caf\xe9", "not valid text in utf-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        texts_of(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>One  two\nthree.</p><p>Four</p>", "One two three.\n\nFour"),
        ("<title>x</title><style>p{}</style><h1>Head</h1>text<script>if (a < b) {}</script> more", "Head\n\ntext more"),
        ("a<br>b<ul><li>one<li>two</ul>c", "a\nb\n\none\ntwo\n\nc"),
        ("<table><tr><td>1<td>2<tr><td>3</td><td>4</td></table>", "1\t2\n3\t4"),
        ("<pre>def f():\n    return  1\n</pre>x", "def f():\n    return  1\n\n\nx"),
        ("caf&eacute; &lt;tag&gt; a&nbsp;b &#xD800;", "café <tag> a\u00a0b \ufffd"),
        ("some <b>bold</b><i>er</i> words <!-- not --> here", "some bolder words here"),
        ("<svg><svg><text>a</text></svg>b</svg>c", "c"),
        ("<html><head><meta charset=utf-8><body>no end tags", "no end tags"),
        ("<a title='a > b' rel=x>link</a> 1 < 2 <3 <? php ?>a<!DOCTYPE x>b", "link 1 < 2 <3 ab"),
        ("it's <b it's>here</b>", "it's here"),
        ("<SCRIPT>a</Script>b<![CDATA[c]]>d<!-- e", "bd"),
        ("", ""),
    ],
)
def test_the_text_of_a_page_is_what_a_reader_sees(tmp_path, page, text):
    (tmp_path / "x.html").write_text(page)
    assert texts_of(tmp_path / "x.html") == [text]


@pytest.mark.parametrize("mark", ["<", "<a b='", "<a b=\"'", "<!--", "<!", "</", "<script>", "&#", "<a>'\"", "<p "])
def test_odd_pages_take_no_time(mark):
    begun = time.process_time()
    html_text(mark * 200_000)
    assert time.process_time() - begun < 20  # quadratic time would be hours


def test_a_page_has_the_encoding_it_declares(tmp_path):
    (tmp_path / "x.htm").write_bytes("<meta http-equiv=x content='text/html; charset=latin-1'>café".encode("latin-1"))
    assert texts_of(tmp_path / "x.htm") == ["café"]
    (tmp_path / "long.html").write_text("<p>word</p>" * 200_000)
    parts = texts_of(tmp_path / "long.html")
    assert len(parts) > 1
    assert "".join(parts) == "\n\n".join(["word"] * 200_000)
    assert texts_of(tmp_path / "long.html", 1) == parts[1:]


def test_a_folder_of_mixed_files(tmp_path):
    (tmp_path / "a.rst").write_text("Title\n=====\n")
    (tmp_path / "b.tex").write_text("\\section{x}")
    (tmp_path / "c.html").write_text("<p>page")
    (tmp_path / "d.json").write_text('{"text": "object"}')
    (tmp_path / "e.csv").write_text("text\nrow\n")
    for name in ("x.pdf", "y.pdf", "LICENSE"):
        (tmp_path / name).write_text("x")
    assert texts_of(tmp_path) == ["Title\n=====\n", "\\section{x}", "page"]
    assert left_out(str(tmp_path)) == {".pdf": 2, "without an ending": 1, ".json": 1, ".csv": 1}
    assert texts_of(tmp_path, text_field="text")[-2:] == ["object", "row"]
    assert left_out(str(tmp_path), "text") == {".pdf": 2, "without an ending": 1}
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "package.json").write_text("{}")
    with pytest.raises(ValueError, match="--text-field"):
        find_parts(str(settings))
