"""Corpora that end early, and datasets with a validation split of their own, through the code that loads C4."""

import json
import signal
import time

import pytest

from lerope.core.signals import Signals, Stopped
from lerope.data import hub, shards
from lerope.data import prepare as module
from lerope.data.prepare import prepare
from lerope.data.resume import Progress, Rate
from lerope.data.shards import Corpus, Manifest
from lerope.data.sources import default_validation, find_parts, sample
from lerope.data.tokenizer import Tokenizer
from lerope.data.workers import split_of
from tests.data.test_prepare import content, progress_of, start, wait_for
from tests.data.texts import made_up, write_jsonl

TRAIN, VALIDATION = made_up(3000), made_up(400, seed=1)
LIMITS = {"max_tokens": 200_000, "max_validation_tokens": 40_000}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset with the splits train and validation, in a folder."""
    folder = tmp_path_factory.mktemp("dataset")
    write_jsonl(folder / "train.jsonl", TRAIN)
    write_jsonl(folder / "validation.jsonl", VALIDATION)
    return folder


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Small batches, so that a limit is reached after many, and a cache of one's own for `datasets`."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100_000)


@pytest.fixture
def known(dataset, monkeypatch, in_this_process):
    """The dataset under the names of those that are known: one with a validation split, one with training alone."""
    monkeypatch.setitem(hub._KNOWN, "c4", hub.Dataset(str(dataset), validation="validation"))
    monkeypatch.setitem(hub._KNOWN, "starcoder", hub.Dataset(str(dataset)))


@pytest.fixture(scope="module")
def options(dataset, small_tokenizer):
    """Options of a corpus with two limits; both splits are cut short."""
    return {"tokenizer": small_tokenizer, "validation": [f"hf:{dataset}::validation"], **LIMITS}


@pytest.fixture(scope="module")
def reference(dataset, options, tmp_path_factory):
    """The corpus that a process with small batches makes: its folder, and the arguments that made it."""
    out = tmp_path_factory.mktemp("reference") / "out"
    arguments = [f"hf:{dataset}", "--tokenizer", str(options["tokenizer"]), "--validation", *options["validation"]]
    for name, limit in LIMITS.items():
        arguments += [f"--{name.replace('_', '-')}", str(limit)]
    assert start([*arguments, "--workers", "2"], out).wait(60) == 0
    return out, arguments


def texts_of(out, split):
    corpus = Corpus(out)
    documents, tokenizer = getattr(corpus, split), Tokenizer(corpus.tokenizer_path)
    return [tokenizer.decode(documents.document(i)) for i in range(len(documents))]


def up_to(texts, tokenizer, limit):
    """Texts up to the one with which there are `limit` tokens, one by one."""
    found, total = [], 0
    for text in texts:
        if total >= limit:
            break
        found.append(text)
        total += len(tokenizer.encode([text])[0])
    return found, total


def test_a_split_ends_with_the_document_that_reaches_its_limit(reference, small_tokenizer):
    out, _ = reference
    tokenizer = Tokenizer(small_tokenizer)
    manifest = json.loads((out / "manifest.json").read_text())
    for split, texts, limit in zip(("train", "validation"), (TRAIN, VALIDATION), LIMITS.values(), strict=True):
        want, num_tokens = up_to(texts, tokenizer, limit)
        assert 100 < len(want) < len(texts)
        assert texts_of(out, split) == want
        facts = manifest["splits"][split]
        assert (facts["num_documents"], facts["num_tokens"]) == (len(want), num_tokens)
        assert facts["num_bytes"] == sum(len(text.encode()) for text in want)
        assert facts["max_tokens"] == limit
    assert manifest["validation"].endswith("::validation, cut short by the limit of 40,000 tokens")
    assert {name: manifest["settings"][name] for name in LIMITS} == LIMITS


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same_bytes(dataset, options, reference, tmp_path, num_workers):
    prepare([f"hf:{dataset}"], tmp_path / "out", **options, num_workers=num_workers)
    assert content(tmp_path / "out") == content(reference[0])


@pytest.mark.usefixtures("in_this_process")
def test_stopped_after_every_batch_it_ends_with_the_same_bytes(dataset, options, reference, tmp_path, monkeypatch):
    """Also after the batch in which a limit is reached, and before and after the first one for validation."""
    out, stops = tmp_path / "out", 0
    monkeypatch.setattr(Signals, "check", lambda self: (_ for _ in ()).throw(Stopped(signal.SIGTERM)))
    while not (out / "manifest.json").exists():
        try:
            prepare([f"hf:{dataset}"], out, **options, num_workers=1)
        except Stopped:
            stops += 1
    assert content(out) == content(reference[0])
    assert stops > 10


@pytest.mark.slow
def test_killed_in_either_split_it_ends_with_the_same_bytes(reference, tmp_path):
    want, arguments = reference
    out = tmp_path / "out"

    def done(split):
        return ((progress_of(out) or {}).get("num_tokens") or {split: 0})[split]

    for split in ("train", "train", "validation"):
        before = done(split)
        process = start(arguments, out)
        wait_for(lambda: done(split) > before, process)  # noqa: B023
        process.kill()
        process.communicate(timeout=10)
        assert not (out / "manifest.json").exists()
        assert before < done(split)
    assert start(arguments, out).wait(60) == 0
    assert content(out) == content(want)


def test_no_more_is_read_than_it_takes(dataset, options, tmp_path, monkeypatch):
    read, taken = hub.read_dataset, {}

    def counting(source, *arguments):
        for record in read(source, *arguments):
            taken[source] = taken.get(source, 0) + 1
            yield record

    monkeypatch.setattr(hub, "read_dataset", counting)
    monkeypatch.setattr(module, "_CHECKED_BYTES", 1000)
    assert len(list(sample(find_parts(f"hf:{dataset}"), 50_000))) == taken.pop(str(dataset)) - 1
    prepare([f"hf:{dataset}"], tmp_path / "out", **options, num_workers=1)
    assert taken[str(dataset)] < len(TRAIN) / 2
    assert taken[f"{dataset}::validation"] < len(VALIDATION)


def test_a_document_beyond_the_limit_may_be_anything(tmp_path, small_tokenizer, monkeypatch):
    """However many batches are read ahead of those that are encoded; one has fifty documents."""
    monkeypatch.setattr(module, "_CHECKED_BYTES", 1000)
    lines = write_jsonl(tmp_path / "x.jsonl", TRAIN[:1000]).read_bytes().splitlines(keepends=True)
    (tmp_path / "x.jsonl").write_bytes(b"".join([*lines[:400], b'{"text": 3}\n', *lines[400:]]))
    write_jsonl(tmp_path / "y.jsonl", VALIDATION)
    _, num_tokens = up_to(TRAIN[:300], Tokenizer(small_tokenizer), 10**9)
    settings = {"tokenizer": small_tokenizer, "validation": [str(tmp_path / "y.jsonl")], "max_tokens": num_tokens}
    for num_workers in (1, 3):
        out = tmp_path / str(num_workers)
        manifest = prepare([str(tmp_path / "x.jsonl")], out, **settings, num_workers=num_workers)
        assert [manifest.splits[split].num_documents for split in ("train", "validation")] == [300, len(VALIDATION)]
    settings["max_tokens"] *= 2
    with pytest.raises(ValueError, match="line 401: field 'text' must be a string; got 3"):
        prepare([str(tmp_path / "x.jsonl")], tmp_path / "more", **settings, num_workers=3)


def test_a_known_dataset_gives_its_own_validation_split(known, tmp_path, small_tokenizer, monkeypatch):
    manifest = prepare(["hf:c4"], tmp_path / "whole", tokenizer=small_tokenizer)
    assert texts_of(tmp_path / "whole", "train") == TRAIN
    assert texts_of(tmp_path / "whole", "validation") == VALIDATION
    assert manifest.validation == "hf:c4::validation, below the limit of 10,000,000 tokens"
    assert [manifest.splits[split].max_tokens for split in ("train", "validation")] == [None, 10_000_000]

    monkeypatch.setattr(hub, "VALIDATION_TOKENS", 5_000)
    manifest = prepare(["hf:c4"], tmp_path / "capped", tokenizer=small_tokenizer)
    want, num_tokens = up_to(VALIDATION, Tokenizer(small_tokenizer), 5_000)
    assert texts_of(tmp_path / "capped", "validation") == want
    assert manifest.splits["validation"].num_tokens == num_tokens
    assert manifest.validation == "hf:c4::validation, cut short by the limit of 5,000 tokens"
    manifest = prepare(["hf:c4"], tmp_path / "asked", tokenizer=small_tokenizer, max_validation_tokens=7_000)
    assert manifest.splits["validation"].max_tokens == 7_000


def test_what_is_asked_for_goes_before_the_default(known, dataset, tmp_path, small_tokenizer, monkeypatch):
    monkeypatch.setattr(hub, "VALIDATION_TOKENS", 100)
    held_out = prepare(["hf:c4"], tmp_path / "fraction", tokenizer=small_tokenizer, validation_fraction=0.1)
    assert held_out.splits["validation"].num_documents == sum(split_of(text, 0.1) == "validation" for text in TRAIN)
    own = [str(dataset / "validation.jsonl")]
    named = prepare(["hf:c4"], tmp_path / "named", tokenizer=small_tokenizer, validation=own)
    assert named.splits["validation"].num_documents == len(VALIDATION)
    assert {split.max_tokens for made in (held_out, named) for split in made.splits.values()} == {None}


def test_without_a_validation_split_documents_are_held_out_up_to_the_limit(known, tmp_path, small_tokenizer):
    """What is held out and has no room is in neither split."""
    options = {"tokenizer": small_tokenizer, "max_tokens": 200_000, "max_validation_tokens": 500}
    manifest = prepare(["hf:starcoder"], tmp_path / "out", **options)
    sides = {side: [text for text in TRAIN if split_of(text, 0.01) == side] for side in ("train", "validation")}
    for (side, texts), limit in zip(sides.items(), (200_000, 500), strict=True):
        assert texts_of(tmp_path / "out", side) == up_to(texts, Tokenizer(small_tokenizer), limit)[0]
        assert manifest.splits[side].num_documents < len(texts)
    cut = "cut short by the limit of 500 tokens"
    assert manifest.validation == f"0.01 of the documents, by a hash of their text, {cut}"
    assert (
        prepare(["hf:starcoder"], tmp_path / "all", tokenizer=small_tokenizer).splits["validation"].max_tokens == 10**7
    )


@pytest.mark.parametrize(
    ("sources", "validation", "limit"),
    [
        (["hf:c4"], ["hf:c4:en:validation"], 10_000_000),
        (["hf:c4:realnewslike"], ["hf:c4:realnewslike:validation"], 10_000_000),
        (["hf:c4:en:train"], ["hf:c4:en:validation"], 10_000_000),
        (["hf:c4:en:validation"], [], 10_000_000),
        (["hf:starcoder:rust"], [], 10_000_000),
        (["hf:c4", "hf:starcoder"], [], 10_000_000),
        (["hf:c4", "essays/"], [], None),
        (["hf:somebody/c4"], [], None),
        (["hf:allenai/c4"], ["hf:allenai/c4:en:validation"], 10_000_000),
        (["hf:allenai/c4:realnewslike"], ["hf:allenai/c4:realnewslike:validation"], 10_000_000),
        (["hf:bigcode/starcoderdata"], [], 10_000_000),
    ],
)
def test_what_validation_is_unless_someone_says(sources, validation, limit):
    assert default_validation(sources) == (validation, limit)


def test_corpora_from_before_there_were_limits_are_read(reference, tmp_path):
    content = json.loads((reference[0] / "manifest.json").read_text())
    for split in content["splits"].values():
        del split["max_tokens"]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    manifest = Manifest.load(tmp_path)
    assert {split.max_tokens for split in manifest.splits.values()} == {None}
    assert manifest.fingerprint() == Manifest.load(reference[0]).fingerprint()


def test_the_time_left_is_that_to_the_limit(monkeypatch):
    progress = Progress(settings={})
    rate = Rate(progress, 10_000, 400)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    progress.num_tokens["train"], progress.num_bytes_read = 100, 50
    assert rate.describe(progress).endswith(", 25%, 3 min 0 s left")
