"""SentencePiece tokenizers: training one that reproduces every text exactly, and using any that has BOS and EOS."""

import codecs
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lerope.core.files import write_whole
from lerope.data.readers import missing_package
from lerope.data.shards import Tokens, token_dtype

VOCAB_SIZE = 32_000
_SPACE = "\u2581"  # SentencePiece writes a space as this character
_UNKNOWN = "\u2585"  # and skips training texts that contain this one
_SENTENCE_CHARACTERS = 1 << 14


def train_tokenizer(texts: Iterable[str], vocab_size: int, path: Path) -> None:
    """Trains a BPE vocabulary with byte fallback, so that no text is unknown or changed.

    Args:
        texts: what to learn from; held in memory.
        vocab_size: total pieces, including 3 special ones and 256 bytes.
        path: the SentencePiece model to write.
    """
    model = io.BytesIO()
    problems: list[ValueError] = []

    def sentences() -> Iterator[str]:
        try:
            yield from _sentences(texts)
        except ValueError as error:  # SentencePiece would wrap it in its own message
            problems.append(error)

    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=0.9995,
            byte_fallback=True,
            split_digits=True,
            allow_whitespace_only_pieces=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            max_sentence_length=4 * _SENTENCE_CHARACTERS,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise problems[0] if problems else ValueError(_training_sentence(str(error), vocab_size)) from None
    if problems:
        raise problems[0]
    write_whole(path, model.getvalue())


def _training_sentence(message: str, vocab_size: int) -> str:
    if found := re.search(r"too high .* value <= (\d+)", message):
        most = int(found[1])
        # As many as it yields would be whole documents rather than parts of words.
        fix = f"it yields at most {most:,} pieces, pass --vocab-size {min(most, 2048)} or more text"
        return f"vocab_size {vocab_size:,} is too large for this text; {fix}."
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        least = int(found[1])
        fix = f"bytes and characters alone take {least:,} pieces, pass --vocab-size {least} or more"
        return f"vocab_size {vocab_size:,} is too small for this text; {fix}."
    if "sentences_.empty()" in message:
        return "the sources contain no text to train a tokenizer on; name sources with text."
    return f"the tokenizer cannot be trained ({' '.join(message.split())}); try another --vocab-size."


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Texts in stretches: SentencePiece kills the whole process at a word of more than 65,535 characters."""
    for text in texts:
        text = text.replace(_UNKNOWN, " ").replace(_SPACE, " ")
        start = 0
        while start < len(text):
            stop = start + _SENTENCE_CHARACTERS
            stop = text.rfind("\n", start, stop) + 1 or stop if stop < len(text) else stop
            yield text[start:stop]
            start = stop


class Tokenizer:
    """A SentencePiece model: texts to tokens with BOS and EOS, and back."""

    def __init__(self, path: str | os.PathLike[str], vocab_size: int | None = None) -> None:
        """Loads a model.

        Args:
            path: the `.model` file.
            vocab_size: use fewer ids than the model has pieces; the others become unknown.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"tokenizer {path} cannot be read ({error.strerror}); give a .model file.") from None
        self._model: Any = _sentencepiece().SentencePieceProcessor()
        try:
            if not content:
                raise RuntimeError
            self._model.LoadFromSerializedProto(content)
        except RuntimeError:
            raise ValueError(f"tokenizer {path} is not a SentencePiece model; give a .model file.") from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.num_pieces: int = self._model.get_piece_size()
        self.vocab_size = self.num_pieces if vocab_size is None else vocab_size
        self.bos: int = self._model.bos_id()
        self.eos: int = self._model.eos_id()
        self.unknown: int = self._model.unk_id()
        for name, special in (("BOS", self.bos), ("EOS", self.eos)):
            if special < 0:
                raise ValueError(f"tokenizer {path} has no {name} piece; use one trained with BOS and EOS.")
        least = max(self.bos, self.eos, self.unknown) + 1
        if not least <= self.vocab_size <= self.num_pieces:
            raise ValueError(
                f"vocab_size must be {least:,} to {self.num_pieces:,}, the pieces of {path}; got {self.vocab_size:,}."
            )
        in_bytes = [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]
        adds_space = self._model.encode("a", out_type=str)[0].startswith(_SPACE)
        self._space_in_bytes = None if self.unknown in in_bytes or adds_space else in_bytes

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, from BOS to EOS."""
        return [self._array(ids) for ids in map(self._ids, texts)]

    def decode(self, tokens: Tokens | Sequence[int]) -> str:
        """The text of tokens."""
        special = (self.bos, self.eos)
        return str(self._model.decode([int(token) for token in tokens if token not in special]))

    def piece(self, token: int) -> str:
        """The piece of a token."""
        return str(self._model.id_to_piece(token))

    def stream(self) -> "TextStream":
        """The text of tokens that come one by one."""
        return TextStream(self._model)

    def num_lossy(self, texts: Iterable[str]) -> int:
        """How many texts decoding does not return exactly."""
        return sum(self.decode(tokens) != text for text in texts for tokens in self.encode([text]))

    def _ids(self, text: str) -> list[int]:
        if self._space_in_bytes is None or _SPACE not in text:
            return list(self._model.encode(text))
        # The character that stands for a space in pieces would decode to a space, unless it is spelled in bytes.
        first, *others = self._model.encode(text.split(_SPACE), num_threads=1)
        ids = list(first)
        for other in others:
            ids += self._space_in_bytes
            ids += other
        return ids

    def _array(self, ids: list[int]) -> Tokens:
        tokens: Tokens = np.array([self.bos, *ids, self.eos], token_dtype(self.num_pieces))
        if self.vocab_size < self.num_pieces:
            tokens[tokens >= self.vocab_size] = self.unknown
        return tokens.astype(token_dtype(self.vocab_size), copy=False)


class TextStream:
    """The text of tokens as they come, in whole characters: bytes wait until they make one."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The characters that a token completes."""
        if self._model.is_byte(token):
            return self._bytes.decode(bytes([int(self._model.id_to_piece(token)[3:-1], 16)]))
        text = self.end()
        if self._model.is_control(token):
            return text
        if self._model.is_unknown(token):
            return text + str(self._model.decode([token]))
        return text + str(self._model.id_to_piece(token)).replace(_SPACE, " ")

    def end(self) -> str:
        """What bytes that never made a character come to: U+FFFD."""
        return self._bytes.decode(b"", final=True)


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise missing_package("sentencepiece", "A tokenizer") from None
    return sentencepiece
