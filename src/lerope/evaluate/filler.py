"""The text that needles are hidden in: English sentences, from the standard library's documentation or from a user."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lerope.data.sources import read_texts, sources_in_words

NEEDLE_LIKE = "special magic number"
_MAX_CHARACTERS = 400
_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]])) (?=[\"'(\[]?[A-Z])")
_PLAIN = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ", "\u2026": "..."}
# What a sentence of the documentation may hold: words, quoted names, and the punctuation of prose.
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()./-]+\.")
# Signs of code, grammar, tables and references within a sentence.
_NOT_PROSE = re.compile(r"__|::|\.\.|\w\(|\(\)|[a-z]\.[A-Za-z]|\"\"|\b(PEP|[Ss]ection|See|version)\b|\d{4}|\w/|: [A-Z]")
_BULLET = re.compile(r"^\s*(\*|\d+\.|\[\d+\])\s+")
_EMPHASIS = re.compile(r"(?<![\w\"*])\*{1,2}([^*\"\s][^*\"]*)\*{1,2}(?![\w\"*])")


@dataclass(frozen=True)
class Filler:
    """Sentences, each from its first letter to its full stop, and what a result says about them."""

    name: str
    sentences: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of the sentences."""
        return hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()


def load_filler(source: str | None = None) -> Filler:
    """The sentences of a file, folder or dataset (see `lerope.data.sources`), or the embedded ones."""
    if source is None:
        return Filler("python documentation", _documentation())
    found = _distinct(sentence for text in read_texts([source]) for sentence in _sentences(text))
    if not found:
        raise ValueError(
            f"filler {source!r} has no sentence of at most {_MAX_CHARACTERS} characters; name English prose."
        )
    return Filler(sources_in_words([source]), found)


def _documentation() -> tuple[str, ...]:
    """English sentences of the interpreter's help on topics such as the assignment statement."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError("this Python has no documentation (pydoc_data.topics); name text with --filler.") from None
    paragraphs = (paragraph for name in sorted(topics) for paragraph in _paragraphs(topics[name]))
    sentences = (sentence for paragraph in paragraphs for sentence in _sentences(paragraph))
    return _distinct(sentence for sentence in sentences if _is_prose(sentence))


def _paragraphs(topic: str) -> Iterator[str]:
    """Paragraphs and items of lists, each in one line; headings, code, grammar, tables and terms are left out."""
    for block in re.split(r"\n\s*\n", topic):
        lines = _BULLET.sub(lambda mark: " " * len(mark[0]), block, count=1).splitlines()
        indents = {len(line) - len(line.lstrip()) for line in lines}
        lines = [line.strip() for line in lines]
        if len(indents) > 1 or not lines[0][:1].isupper() or not lines[-1].endswith("."):
            continue
        text = ""
        for line in lines:
            text += line if not text or re.search(r"\w-$", text) else f" {line}"
        yield _EMPHASIS.sub(r"\1", text)


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a text, white space collapsed; very long ones and needles are left out."""
    for mark, plain in _PLAIN.items():
        text = text.replace(mark, plain)
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        if 0 < len(sentence) <= _MAX_CHARACTERS and NEEDLE_LIKE not in sentence.lower():
            yield sentence


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    quoted = sentence.count('"') / 2
    whole = _PROSE.fullmatch(sentence) is not None and _NOT_PROSE.search(sentence) is None
    balanced = sentence.count("(") == sentence.count(")") and sentence.count('"') % 2 == 0
    return whole and balanced and len(words) >= 5 and quoted <= len(words) / 5


def _distinct(sentences: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order: topics repeat one another."""
    return tuple(dict.fromkeys(sentences))
