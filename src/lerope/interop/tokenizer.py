"""A SentencePiece model in forms that others read: tokenizer.json for transformers and engines, lists for GGUF."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerope.core.extras import install

SPACE = "\u2581"  # SentencePiece writes a space as this character
BPE = 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# Texts on which a converted tokenizer must give SentencePiece's own tokens.
PROBES = (
    "Hello world, how are you?",
    "  two spaces,\n\nempty lines\tand tabs  ",
    "def f(x):\n        return x ** 2  # squared\n\n\nclass A:\n    pass\n",
    "0123456789 3.14 1e-30",
    "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f642 \u200d \u00a0",
    "".join(map(chr, range(128))),
    " " * 37 + "x" + " " * 5,
    "aaaaaaaaaaaaaaaaaaaa bababababab",
)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What a SentencePiece model holds."""

    path: Path
    content: bytes
    """The file itself."""
    pieces: list[str]
    scores: list[float]
    types: list[int]
    model_type: int
    unknown: int
    bos: int
    eos: int
    pad: int
    """The unknown piece where there is none to pad with: texts hardly ever hold it."""
    adds_space: bool
    """Whether a space is put before a text."""
    trims_spaces: bool
    normalizer: bytes
    """A table of characters; empty if texts stay as they are."""

    @classmethod
    def load(cls, path: Path, vocab_size: int) -> "Pieces":
        """Reads a .model file for a model with this vocabulary; anything wrong raises one ValueError."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"tokenizer {path} cannot be read ({error.strerror}); name a .model file.") from None
        _model_proto()
        from google.protobuf.message import DecodeError

        try:
            loaded = cls._parsed(path, content)
        except (DecodeError, UnicodeDecodeError):
            loaded = None
        if loaded is None or not loaded.pieces:
            raise ValueError(f"tokenizer {path} is not a SentencePiece model; name a .model file.")
        if loaded.model_type != BPE:
            raise ValueError(f"tokenizer {path} must be a BPE model to be exported; got another kind of SentencePiece.")
        if min(loaded.bos, loaded.eos) < 0:
            raise ValueError(f"tokenizer {path} has no BOS or EOS piece; use one that was trained with both.")
        if len(loaded.pieces) > vocab_size:
            raise ValueError(
                f"tokenizer {path} has {len(loaded.pieces):,} pieces but the model has a vocabulary of {vocab_size:,}: "
                "engines would read beyond it; train with all pieces to export."
            )
        return loaded

    @classmethod
    def _parsed(cls, path: Path, content: bytes) -> "Pieces":
        model = _model_proto().FromString(content)
        trainer, normalizer = model.trainer_spec, model.normalizer_spec
        return cls(
            path=path,
            content=content,
            pieces=[piece.piece for piece in model.pieces],
            scores=[piece.score for piece in model.pieces],
            types=[piece.type for piece in model.pieces],
            model_type=trainer.model_type,
            unknown=trainer.unk_id,
            bos=trainer.bos_id,
            eos=trainer.eos_id,
            pad=trainer.unk_id if trainer.pad_id < 0 else trainer.pad_id,
            adds_space=normalizer.add_dummy_prefix,
            trims_spaces=normalizer.remove_extra_whitespaces,
            normalizer=normalizer.precompiled_charsmap,
        )


def _model_proto() -> Any:
    """The message type of a .model file, by SentencePiece's own description."""
    try:
        from sentencepiece.sentencepiece_model_pb2 import ModelProto
    except ImportError:
        fix = install("data", "sentencepiece", "protobuf")
        raise ValueError(f"Reading a tokenizer needs the packages sentencepiece and protobuf: {fix}.") from None
    return ModelProto


def tokenizer_files(pieces: Pieces, max_length: int) -> dict[str, str]:
    """The files with which AutoTokenizer gives SentencePiece's tokens, BOS before them, by name.

    Two things differ from SentencePiece, as in every tokenizer of this kind: the names of special pieces are special in
    texts as well, and the character that stands for a space counts as one.
    """
    built = _build(pieces)
    special = {name: pieces.pieces[token] for name, token in _special(pieces).items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": piece for name, piece in special.items()},
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "padding_side": "left",
    }
    return {
        "tokenizer.json": built.to_str(),
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False),
        "special_tokens_map.json": json.dumps({f"{name}_token": piece for name, piece in special.items()}, indent=1),
    }


def processor(content: bytes) -> Any:
    """SentencePiece itself, for the content of a .model file."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise ValueError(f"A tokenizer needs the package sentencepiece: {install('data', 'sentencepiece')}.") from None
    return SentencePieceProcessor(model_proto=content)


def _special(pieces: Pieces) -> dict[str, int]:
    return {"bos": pieces.bos, "eos": pieces.eos, "unk": pieces.unknown, "pad": pieces.pad}


def _build(pieces: Pieces) -> Any:
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    except ImportError:
        raise ValueError(
            f"A tokenizer for transformers needs the package tokenizers: {install('hf', 'transformers')}."
        ) from None
    vocab = {piece: token for token, piece in enumerate(pieces.pieces)}
    unknown, bos = pieces.pieces[pieces.unknown], pieces.pieces[pieces.bos]
    in_bytes = BYTE in pieces.types
    model = models.BPE(vocab, _merges(pieces), unk_token=unknown, fuse_unk=True, byte_fallback=in_bytes)
    tokenizer = Tokenizer(model)
    steps: list[Any] = [normalizers.Precompiled(pieces.normalizer)] if pieces.normalizer else []
    if pieces.trims_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(_regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(SPACE)] if pieces.adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    parts: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if pieces.adds_space else parts)
    start = [(bos, pieces.bos)]
    tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", start)
    special = [
        AddedToken(pieces.pieces[token], normalized=False, special=True) for token in {*_special(pieces).values()}
    ]
    tokenizer.add_special_tokens(sorted(special, key=lambda added: vocab[added.content]))
    defined = [piece for piece, kind in zip(pieces.pieces, pieces.types, strict=True) if kind == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in defined])
    _check(pieces, tokenizer)
    return tokenizer


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, in the order in which SentencePiece would join them."""
    scores = {
        piece: score
        for piece, score, kind in zip(pieces.pieces, pieces.scores, pieces.types, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    }
    found = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        cuts = range(len(piece) - 1, 0, -1)
        found += [(piece[:at], piece[at:]) for at in cuts if piece[:at] in scores and piece[at:] in scores]
    return found


def _check(pieces: Pieces, tokenizer: Any) -> None:
    """Raises if the converted tokenizer disagrees with SentencePiece on any probe."""
    original = processor(pieces.content)
    for text in PROBES:
        wanted = original.encode(text)
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if found != wanted:
            raise ValueError(
                f"tokenizer {pieces.path} cannot be written for transformers: {text[:40]!r} would become other tokens; "
                "use a tokenizer that `lerope tokenizer train` makes."
            )


def _regex(pattern: str) -> Any:
    from tokenizers import Regex

    return Regex(pattern)
