"""The needle test: prompts, answers and what is kept of them, against models whose answers are known."""

import io
import os
import random
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.numpy import load_file

from lerope.core.run import finished_run
from lerope.core.signals import Stopped
from lerope.data.tokenizer import Tokenizer
from lerope.evaluate.answers import DISTRACTOR, GOLD, OTHER, Place, ask, ask_all
from lerope.evaluate.filler import Filler, load_filler
from lerope.evaluate.haystack import Haystacks, Prompt
from lerope.evaluate.needle import NeedleRequest, needle, plan, wilson
from lerope.evaluate.scorer import Scorer
from lerope.evaluate.work import Work
from lerope.results import Needle
from lerope.train.parallel import Ranks
from tests.evaluate.copier import LENGTH, VOCAB_SIZE, copier, copier_tokenizer, random_model, write_run
from tests.ranks import run_ranks

NEEDLE = re.compile(r" The special magic number for ([a-z]+-[a-z]+) is (\d{7})\.")
ALONE = Ranks(0, 1, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    copier_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def haystacks(tokenizer_file):
    return Haystacks(Tokenizer(tokenizer_file), load_filler(), 0)


@pytest.fixture(scope="module")
def random_run(tmp_path_factory, tokenizer_file):
    return write_run(tmp_path_factory.mktemp("runs") / "random", random_model(), tokenizer_file)


class Stand:
    """A model given as a function from a prompt and the value's tokens so far to the next token."""

    def __init__(self, next_token):
        self.next_token, self.num_rows, self.lengths = next_token, 0, []

    def log_probabilities(self, rows, last, lengths=None):
        self.num_rows += len(rows)
        self.lengths += lengths
        found = []
        for row, count in zip(rows, last, strict=True):
            start = len(row) - count
            logits = torch.zeros(count, VOCAB_SIZE)
            for i in range(count):
                logits[i, self.next_token(row[:start].tobytes(), tuple(row[start : start + i].tolist()))] = 30.0
            found.append(logits.log_softmax(-1))
        return found


def says(answers):
    """A model that gives each prompt a fixed answer; off its way it says 0."""

    def next_token(prompt, before):
        answer = answers[prompt]
        return int(answer[len(before)]) if before == tuple(answer[: len(before)].tolist()) else 0

    return Stand(next_token)


def some_prompts(haystacks, num_distractors, count=12, length=LENGTH):
    return [haystacks.prompt(length, num_distractors, (i % 11) / 10, i) for i in range(count)]


def test_a_transformer_that_copies_is_always_right_and_its_result_is_kept(tmp_path, tokenizer_file):
    run = write_run(tmp_path / "copier", copier(), tokenizer_file)
    request = NeedleRequest(samples=1, distractors=(1, 7), depths=(0, 0.2, 0.5, 0.8, 1), device="cpu")
    found = needle(run, request)
    assert [(t["num_distractors"], t["num_samples"], t["rate"]) for t in found.totals] == [(1, 5, 1.0), (7, 5, 1.0)]
    assert all(cell["rate"] == 1 and cell["num_samples"] == 1 for cell in found.cells)
    assert [cell["depth"] for cell in found.cells] == 2 * [0, 0.2, 0.5, 0.8, 1]
    # The logit of the copied token is 32, that of others 0.
    assert all(t["margin"] == pytest.approx(32, abs=0.1) for t in found.totals)
    file = run / "results" / "needle-samples-1-distractors-1-7-depths-0-0.2-0.5-0.8-1.json"
    assert Needle.load(file) == found
    kept = load_file(file.with_suffix(".safetensors"))
    assert kept["outcome"].tolist() == [GOLD] * 10
    assert kept["num_distractors"].tolist() == [1] * 5 + [7] * 5
    assert sorted(path.name for path in (run / "results").glob("*needle*")) == [
        file.name,
        file.with_suffix(".safetensors").name,
    ]
    (run / "model" / "model.safetensors").unlink()
    assert needle(run, request) == found
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        needle(run, replace(request, seed=1))


def test_a_random_model_scores_chance(random_run):
    found = needle(random_run, NeedleRequest(samples=12, distractors=(1, 7), device="cpu"))
    for total in found.totals:
        assert total["num_samples"] == 132
        assert total["num_correct"] == total["distractor_rate"] == 0
        assert total["other_rate"] == 1
        assert abs(total["margin"]) < 4 * total["margin_error"]
        # Uniform is ln(383) = 5.95; logits of unit variance cost half a nat more.
        assert 5.6 < -total["gold_log_probability"] < 6.9


def test_a_model_that_copies_a_distractor_is_never_right(haystacks):
    prompts = some_prompts(haystacks, 7)
    scorer = says({p.tokens.tobytes(): p.distractors[i % 7] for i, p in enumerate(prompts)})
    records = ask(scorer, prompts)
    assert records[:, 0].tolist() == [DISTRACTOR] * len(prompts)
    assert records[:, 2].mean() < 0
    assert records[:, 3].tolist() == [-30] * len(prompts)


def test_a_model_that_copies_any_needle_is_right_as_often_as_it_chooses_gold(haystacks):
    prompts = some_prompts(haystacks, 3, 40)
    chosen = [random.Random(i).randrange(4) for i in range(40)]
    assert 0 < chosen.count(0) < 40
    values = [[p.gold, *p.distractors][choice] for p, choice in zip(prompts, chosen, strict=True)]
    scorer = says({p.tokens.tobytes(): value for p, value in zip(prompts, values, strict=True)})
    assert ask(scorer, prompts)[:, 0].tolist() == [DISTRACTOR if choice else GOLD for choice in chosen]


def test_the_answer_is_that_of_greedy_decoding(haystacks):
    """Models that go along with some value in the prompt for a while, decoded token by token."""
    prompts = some_prompts(haystacks, 15, 60, length=1024)
    values = {p.tokens.tobytes(): [tuple(v.tolist()) for v in (p.gold, *p.distractors)] for p in prompts}

    def next_token(prompt, before):
        chance = random.Random(f"{prompt[-80:]!r}{before}")
        going_on = [v[len(before)] for v in values[prompt] if v[: len(before)] == before]
        return chance.choice(going_on) if going_on and chance.random() < 0.95 else 5

    expected = []
    for prompt in prompts:
        answer = ()
        while len(answer) < len(prompt.gold):
            answer += (next_token(prompt.tokens.tobytes(), answer),)
        known = values[prompt.tokens.tobytes()]
        expected.append(OTHER if answer not in known else GOLD if answer == known[0] else DISTRACTOR)
    assert {OTHER, DISTRACTOR} <= set(expected)
    assert ask(Stand(next_token), prompts)[:, 0].tolist() == expected


def test_the_margin_is_the_log_odds_where_values_part():
    """Gold 5 6 7; one value parts at the first token, another at the last."""
    scores = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]).log()
    table = torch.full((3, 10), -50.0)
    table[:, 5:8] = scores

    class Fixed:
        def log_probabilities(self, rows, last, lengths=None):
            return [table]

    def prompt(distractors, absent):
        return Prompt(np.array([1, 2]), np.array([5, 6, 7]), distractors, absent, 5, 1)

    others = [np.array([6, 6, 7]), np.array([5, 6, 5])]
    expected = (np.log(0.5 / 0.2) + np.log(0.6 / 0.2)) / 2
    for given in (prompt(others, []), prompt([], others)):
        outcome, gold, margin, worst = ask(Fixed(), [given])[0]
        assert outcome == GOLD
        assert gold == pytest.approx(np.log(0.5 * 0.8 * 0.6) / 3, rel=1e-6)
        assert margin == pytest.approx(expected, rel=1e-6)
        assert worst == pytest.approx(np.log(0.5 / 0.2), rel=1e-6)


def test_prompts_read_as_they_should(haystacks):
    longest = max(len(tokens) for tokens in haystacks._sentences)
    for number, depth in ((0, 0.4), (1, 0.0), (3, 0.3), (7, 0.5), (7, 1.0)):
        for sample in range(5):
            prompt = haystacks.prompt(LENGTH, number, depth, sample)
            assert len(prompt.tokens) + len(prompt.gold) == LENGTH == prompt.length
            assert prompt.tokens[0] == haystacks.tokenizer.bos
            text = haystacks.tokenizer.decode(prompt.tokens)
            pairs = dict(NEEDLE.findall(text))
            assert len(pairs) == len(set(pairs.values())) == number + 1
            gold = haystacks.tokenizer.decode(prompt.gold).strip()
            key = next(key for key, value in pairs.items() if value == gold)
            assert text.endswith(f". The special magic number for {key} is")
            distractors = {haystacks.tokenizer.decode(value).strip() for value in prompt.distractors}
            assert distractors == set(pairs.values()) - {gold}
            assert not {haystacks.tokenizer.decode(value).strip() for value in prompt.absent} & set(pairs.values())
            assert len(prompt.absent) == (8 if number == 0 else 0)
            question = f" The special magic number for {key} is"
            assert haystacks.tokenizer.decode(prompt.tokens[prompt.gold_start :]).startswith(question)
            before = haystacks.tokenizer.decode(prompt.tokens[: prompt.gold_start])
            assert not before or before.endswith((".", "!", "?", '"', ")"))
            haystack = text.removesuffix(question).replace(f"{question} {gold}.", "", 1)
            assert abs(len(before) - depth * len(haystack)) < 6 * longest
            if depth in (0, 1):
                assert len(before) == depth * len(haystack)


def test_prompts_are_those_of_their_seed_and_stay_the_same(haystacks, tokenizer_file):
    again = Haystacks(Tokenizer(tokenizer_file), load_filler(), 0)
    other = Haystacks(Tokenizer(tokenizer_file), load_filler(), 1)
    place = (LENGTH, 3, 0.5, 2)
    assert np.array_equal(again.prompt(*place).tokens, haystacks.prompt(*place).tokens)
    assert not np.array_equal(other.prompt(*place).tokens, haystacks.prompt(*place).tokens)
    first = haystacks.prompt(256, 1, 0.0, 0)
    # Results of this version would not be comparable with those before if these changed.
    assert haystacks.tokenizer.decode(first.gold) == " 5759728"
    assert haystacks.tokenizer.decode(first.distractors[0]) == " 8141272"
    text = haystacks.tokenizer.decode(first.tokens)
    assert text.endswith(" The special magic number for smooth-tower is")


def test_lengths_beyond_the_filler_and_fillers_that_do_not_divide(haystacks, tokenizer_file):
    long = haystacks.prompt(90_000, 0, 0.5, 0)
    assert len(long.tokens) + len(long.gold) == 90_000
    assert haystacks.num_filler_tokens < 90_000
    one = Haystacks(Tokenizer(tokenizer_file), Filler("one", ("A sentence of one length alone.",)), 0)
    prompts = [one.prompt(length, 1, 0.5, 0) for length in range(200, 220)]
    assert [len(p.tokens) + len(p.gold) for p in prompts] == list(range(200, 220))
    texts = [one.tokenizer.decode(p.tokens) for p in prompts]
    assert all(len(NEEDLE.findall(text)) == 2 for text in texts)
    assert any("length alone. A sentence" in text for text in texts)


@pytest.mark.parametrize("split_digits", [True, False])
def test_a_tokenizer_that_adds_a_space_and_joins_digits(tmp_path, split_digits):
    model = io.BytesIO()
    digits = random.Random(0)
    texts = [*load_filler().sentences, *(f"It is {digits.randrange(10**7)}." for _ in range(3000))]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=900,
        split_digits=split_digits,
        character_coverage=1.0,
        minloglevel=2,
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    haystacks = Haystacks(Tokenizer(tmp_path / "other.model"), load_filler(), 0)
    for sample in range(20):
        prompt = haystacks.prompt(600, 3, 0.5, sample)
        assert len(prompt.tokens) + len(prompt.gold) == 600
        text = haystacks.tokenizer.decode(prompt.tokens)
        gold = haystacks.tokenizer.decode(prompt.gold).strip()
        assert len(NEEDLE.findall(text)) == 4 - text.startswith("The special")
        # What the model reads is what the tokenizer makes of the text as a whole.
        assert np.array_equal(haystacks.tokenizer.encode([text])[0][:-1], prompt.tokens)
        assert re.fullmatch(r"\d{7}", gold)


def test_the_filler_is_english_and_holds_no_needle(tmp_path):
    filler = load_filler()
    assert len(filler.sentences) > 500
    assert len(set(filler.sentences)) == len(filler.sentences)
    for sentence in filler.sentences:
        assert re.fullmatch(r"[A-Z][^*_=<>{}\[\]`|\\]*\.", sentence), sentence
    (tmp_path / "a.txt").write_text(
        'One sentence here.  Another\none "there." The special magic number for x is 1. (A third.) Too' + 500 * " long"
    )
    mine = load_filler(str(tmp_path / "a.txt"))
    assert mine.sentences == ("One sentence here.", 'Another one "there."', "(A third.)")
    assert mine.name == "a.txt"
    assert mine.fingerprint != filler.fingerprint
    (tmp_path / "b.txt").write_text(500 * "long ")
    with pytest.raises(ValueError, match="has no sentence of at most 400 characters; name English prose"):
        load_filler(str(tmp_path / "b.txt"))


def test_needles_that_do_not_fit_are_left_out(random_run):
    run = finished_run(random_run)
    work = plan(run, NeedleRequest(samples=1))
    assert work.left_out == [{"length": LENGTH, "num_distractors": n} for n in (15, 31)]
    assert {place.num_distractors for place in work.places} == {1, 3, 7}
    with pytest.raises(ValueError, match=f"15 distractors do not fit in {LENGTH} tokens, the rows of .*; name fewer"):
        plan(run, NeedleRequest(samples=1, distractors=(31, 15)))


def test_one_needle_beyond_the_train_length(random_run, haystacks):
    found = needle(random_run, NeedleRequest(samples=1, depths=(0.5,), to=1500, device="cpu"))
    assert [(t["length"], t["num_distractors"]) for t in found.totals] == [(512, 0), (1024, 0), (1500, 0)]
    assert (found.settings["method"], found.settings["temperature"]) == ("yarn", 0.1)
    request = NeedleRequest(samples=1, depths=(0.5,), to=1500, method="none", device="cpu")
    plain = needle(random_run, request)
    names = {path.name for path in (random_run / "results").glob("needle-long*.json")}
    assert names == {"needle-long-1500-samples-1-depths-0.5.json", "needle-long-1500-none-samples-1-depths-0.5.json"}
    # Within the train length nothing is stretched, beyond it something is.
    assert found.totals[0] == plain.totals[0]
    assert found.totals[1]["margin"] != plain.totals[1]["margin"]
    # The oracle: frequencies stretched by hand to prompt and answer, in a model of its own.
    prompt = haystacks.prompt(1024, 0, 0.5, 0)
    row = np.concatenate([prompt.tokens, prompt.gold]).astype("int64")
    model = random_model()
    model.encoding.theta.copy_(model.encoding.theta * _yarn(model.encoding.theta, 512, 1024))
    for block in model.blocks:
        block.attention.q_norm.weight.data.mul_((0.1 * np.log(2) + 1) ** 2)
    with torch.no_grad():
        scores = model(torch.from_numpy(row[None, :-1]))[0, -len(prompt.gold) :].log_softmax(-1)
    gold = scores[torch.arange(len(prompt.gold)), torch.from_numpy(prompt.gold.astype("int64"))].mean()
    assert found.totals[1]["gold_log_probability"] == pytest.approx(float(gold), abs=1e-4)


def _yarn(theta, train_length, length):
    turns = theta * train_length / (2 * np.pi)
    kept = ((turns - 1) / 31).clamp(0, 1)
    return kept + (1 - kept) * train_length / length


def test_lengths_double():
    assert NeedleRequest(to=32768).lengths(2048) == [2048, 4096, 8192, 16384, 32768]
    assert NeedleRequest(to=3000).lengths(2048) == [2048, 3000]
    assert NeedleRequest(to=2048).lengths(2048) == [2048]
    assert NeedleRequest().lengths(2048) == [2048]
    with pytest.raises(ValueError, match=r"to must be at least the train length of 2,048; got 1,000\."):
        NeedleRequest(to=1000).lengths(2048)


def test_every_reading_has_the_length_of_prompt_and_answer(haystacks):
    prompts = some_prompts(haystacks, 7, 4)
    scorer = says({p.tokens.tobytes(): p.distractors[0] for p in prompts})
    ask(scorer, prompts)
    assert scorer.num_rows > len(prompts)
    assert set(scorer.lengths) == {LENGTH}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_work_goes_on_where_it_was(tmp_path, haystacks, number):
    places = [Place(length, 1, depth, i) for length in (200, 300) for depth in (0.0, 1.0) for i in range(5)]

    digits = sorted({int(token) for i in range(5) for token in haystacks.prompt(200, 1, 0.0, i).gold})

    def scorer():
        return Stand(lambda prompt, before: random.Random(f"{prompt!r}{before}").choice(digits))

    def go(scorer, partial):
        work = Work(ranks=ALONE, partial=tmp_path / partial, label="test", batch_tokens=600)
        return ask_all(work, scorer, lambda place: haystacks.prompt(*place), places)

    whole = go(scorer(), "whole")
    stopping = scorer()
    next_token, sent = stopping.next_token, []

    def stop(prompt, before):
        if stopping.num_rows == 6 and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return next_token(prompt, before)

    stopping.next_token = stop
    with pytest.raises(Stopped):
        go(stopping, "part")
    assert (tmp_path / "part").stat().st_size == 6 * 16
    with (tmp_path / "part").open("ab") as file:
        file.write(b"cut")
    rest = scorer()
    assert np.array_equal(go(rest, "part"), whole)
    assert stopping.num_rows == 6
    assert rest.num_rows == 14
    assert len(set(map(tuple, whole))) > 4
    assert not np.array_equal(whole, whole[::-1])


def _share(rank, folder, tokenizer_file):
    haystacks = Haystacks(Tokenizer(tokenizer_file), load_filler(), 0)
    places = [Place(length, 1, 0.5, i) for length in (200, 260) for i in range(4)]
    ranks = Ranks(rank, 2, 2, torch.device("cpu"))
    work = Work(ranks=ranks, partial=folder / "two", label="test", batch_tokens=600)
    found = ask_all(work, Scorer(random_model(), train_length=260), lambda place: haystacks.prompt(*place), places)
    if rank == 0:
        np.save(folder / "two.npy", found)
    assert len(found) == (8 if rank == 0 else 0)


def test_ranks_share_prompts(tmp_path, tokenizer_file, haystacks):
    run_ranks(_share, tmp_path, tmp_path, tokenizer_file)
    places = [Place(length, 1, 0.5, i) for length in (200, 260) for i in range(4)]
    alone = ask(Scorer(random_model(), train_length=260), [haystacks.prompt(*place) for place in places])
    assert np.load(tmp_path / "two.npy") == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    # As scipy.stats.binomtest(count, total).proportion_ci(method="wilson") gives them.
    [(0, 10, 0.0, 0.277533), (5, 10, 0.236593, 0.763407), (1, 29, 0.006113, 0.171755), (100, 100, 0.963007, 1.0)],
)
def test_wilson(count, total, low, high):
    assert wilson(count, total) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": 0}, "samples must be a positive whole number; got 0"),
        ({"distractors": ()}, "distractors must be one or more distinct numbers; got []"),
        ({"distractors": (3, 3)}, "distractors must be one or more distinct numbers; got [3, 3]"),
        ({"distractors": (-1,)}, "distractors must be 0 or more; got -1"),
        ({"depths": (0.5, 1.5)}, "depths must be 0 to 1; got 1.5"),
        ({"depths": (float("nan"),)}, "depths must be a finite number; got nan"),
        ({"to": 0}, "to must be a positive whole number; got 0"),
        ({"method": "pi"}, "method pi acts beyond the train length; say how far with --to"),
        ({"method": "stretch", "to": 100}, "method must be one of none, pi"),
        ({"method": "dominant_band", "to": 100}, "dominant_band and method dominant_band belong together"),
        ({"dominant_band": 3, "to": 100}, "dominant_band and method dominant_band belong together"),
        ({"temperature": -1.0}, "temperature must be 0 or more; got -1.0"),
    ],
)
def test_bad_input(changes, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        NeedleRequest(**changes)
