"""Every text comes back from its tokens, and nothing but the text decides them."""

import io

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lerope.data.tokenizer import Tokenizer, train_tokenizer
from tests.data.texts import made_up

ODD = ["\0", "\ufeff", "😀", "é", "語", "\u2581", "\u2585", "\u2047", "\u00a0", "\u3000", "\t", "\r\n", "\\n"]
PIECES = ["def ", "    ", "\n", "x_1 = 42", "'", "# ", "<s>", "</s>", "<unk>", "<0x0A>", "<0xE2>", "12345", *ODD]
CODE = st.lists(st.sampled_from(PIECES)).map("".join)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer):
    return Tokenizer(small_tokenizer)


@given(st.one_of(TEXT, CODE, st.tuples(TEXT, CODE, TEXT).map("".join)))
@example("\u2581")
@example(" \u2581\u2581 é\u2581")
@example("  leading and trailing  ")
@example("\ufeff<s>\0\r\n\t</s><0x0A>")
@example("🧑‍🚀\U0010ffff\ufffd\ufffe\u2028\x85")
@settings(max_examples=500, deadline=None)
def test_every_text_comes_back(tokenizer, text):
    (tokens,) = tokenizer.encode([text])
    assert tokens.dtype == np.uint16
    assert (tokens[0], tokens[-1]) == (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert not {0, 1, 2} & set(tokens[1:-1].tolist())  # no text is unknown, or taken for a special piece
    assert tokenizer.decode(tokens) == text


def test_a_text_has_the_tokens_that_sentencepiece_gives_it(tokenizer, small_tokenizer):
    model = sentencepiece.SentencePieceProcessor(model_file=str(small_tokenizer))
    texts = [text.replace("\u2581", "") for text in made_up(40, seed=1)]
    for text, tokens in zip(texts, tokenizer.encode(texts), strict=True):
        assert tokens.tolist() == [1, *model.encode(text), 2]


def test_training_is_deterministic_and_learns_indentation_newlines_and_digits(tmp_path):
    texts = ["def f(x):\n        return 12345\n\n" * 20, *made_up(100)]
    for name in ("a", "b"):
        train_tokenizer(iter(texts), 350, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    tokenizer = Tokenizer(tmp_path / "a")
    pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
    assert "\u2581" * 4 in pieces
    assert any("\n" in piece for piece in pieces)
    assert not [piece for piece in pieces if len(piece) > 1 and any(c.isdigit() for c in piece) and "<0x" not in piece]
    assert tokenizer.num_pieces == 350


def test_words_without_end_do_not_end_the_process(tmp_path):
    """SentencePiece aborts at a word of more than 65,535 characters."""
    texts = ["ab" * 60_000, " " * 150_000, "\u2581" * 70_000, "\n" * 70_000, "\u2585 abc" * 100, *made_up(100)]
    train_tokenizer(texts, 330, tmp_path / "x.model")
    tokenizer = Tokenizer(tmp_path / "x.model")
    assert tokenizer.num_lossy(texts) == 0


def test_training_is_quiet(tmp_path, capfd):
    train_tokenizer(made_up(100), 300, tmp_path / "x.model")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("texts", "vocab_size", "message"),
    [
        (["a few words"] * 9, 32_000, r"vocab_size 32,000 is too large for this text; .*pass --vocab-size \d+ or more"),
        (made_up(50), 260, r"vocab_size 260 is too small for this text; .*pass --vocab-size \d+ or more"),
        ([], 400, "no text to train a tokenizer on"),
        (["", ""], 400, "no text to train a tokenizer on"),
    ],
)
def test_a_vocabulary_that_does_not_fit_the_text(tmp_path, texts, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(texts, vocab_size, tmp_path / "x.model")
    assert list(tmp_path.iterdir()) == []


def test_the_advised_vocabulary_size_works(tmp_path):
    with pytest.raises(ValueError, match="too large") as caught:
        train_tokenizer(made_up(20), 32_000, tmp_path / "x.model")
    advised = int(str(caught.value).split("--vocab-size ")[1].split()[0])
    train_tokenizer(made_up(20), advised, tmp_path / "x.model")
    assert Tokenizer(tmp_path / "x.model").vocab_size == advised


def other_model(path, **options):
    model = io.BytesIO()
    options = {"vocab_size": 120, "minloglevel": 2, "model_type": "bpe", **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(made_up(200)), model_writer=model, **options)
    path.write_bytes(model.getvalue())
    return path


def test_ids_beyond_the_vocabulary_become_unknown(small_tokenizer):
    whole, part = Tokenizer(small_tokenizer), Tokenizer(small_tokenizer, 300)
    texts = made_up(20)
    num_unknown = 0
    for text in texts:
        (a,), (b,) = whole.encode([text]), part.encode([text])
        assert np.array_equal(b, np.where(a < 300, a, 0))
        num_unknown += (b == 0).sum()
    assert num_unknown > 0
    assert part.num_lossy(texts) == len(texts)


def test_a_tokenizer_that_normalizes_is_seen_to_lose(tmp_path):
    tokenizer = Tokenizer(other_model(tmp_path / "x.model"))
    assert tokenizer.num_lossy(["a b c", "a  b c"]) == 1


def test_tokenizers_that_cannot_be_used(tmp_path, small_tokenizer):
    (tmp_path / "no.model").write_bytes(b"this is no model at all")
    (tmp_path / "empty.model").write_bytes(b"")
    cases = [
        (tmp_path / "no.model", None, "no.model is not a SentencePiece model"),
        (tmp_path / "empty.model", None, "empty.model is not a SentencePiece model"),
        (tmp_path / "missing.model", None, "missing.model cannot be read"),
        (tmp_path, None, "cannot be read"),
        (other_model(tmp_path / "b.model", bos_id=-1), None, "b.model has no BOS piece"),
        (other_model(tmp_path / "e.model", eos_id=-1), None, "e.model has no EOS piece"),
        (small_tokenizer, 401, "vocab_size must be 3 to 400"),
        (small_tokenizer, 2, "vocab_size must be 3 to 400"),
    ]
    for path, vocab_size, message in cases:
        with pytest.raises(ValueError, match=message):
            Tokenizer(path, vocab_size)


@given(st.one_of(TEXT, CODE, st.tuples(TEXT, CODE, TEXT).map("".join)))
@example("🧑‍🚀 \u2581é語\U0010ffff")
@settings(max_examples=300, deadline=None)
def test_a_stream_gives_every_text_in_whole_characters(tokenizer, text):
    (tokens,) = tokenizer.encode([text])
    stream = tokenizer.stream()
    pieces = [stream.add(int(token)) for token in tokens]
    assert "".join([*pieces, stream.end()]) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_stream_of_broken_bytes_goes_on(tokenizer):
    byte = {value: next(i for i in range(600) if tokenizer.piece(i) == f"<0x{value:02X}>") for value in (0xE2, 0x82)}
    stream = tokenizer.stream()
    letter = int(tokenizer.encode(["a"])[0][1])
    assert [stream.add(token) for token in (byte[0xE2], byte[0x82], letter)] == ["", "", "\ufffda"]
    assert stream.add(byte[0xE2]) == ""
    assert stream.end() == "\ufffd"
    assert stream.add(0) == tokenizer.decode([0])  # what is unknown looks as it does elsewhere
