"""lerope tokenizer: train a tokenizer, or look at one."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lerope.cli.stopping import stoppable
from lerope.data.summary import printable
from lerope.data.tokenizer import VOCAB_SIZE, Tokenizer
from lerope.data.tokenizer_training import train_on_sources


def train(
    sources: Annotated[Positional[list[str]], arg(metavar="SOURCE...", help_behavior_hint="")],
    out: Annotated[Path, arg(metavar="FILE")],
    vocab_size: int = VOCAB_SIZE,
    text_field: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: text)")] = None,
    skip_invalid: bool = False,
) -> None:
    """Train a SentencePiece BPE tokenizer that reproduces every text exactly.

    Example: lerope tokenizer train my-text/ --out my.model --vocab-size 8000

    Args:
        sources: What `lerope data prepare` takes; large ones are sampled.
        out: The .model file to write.
        vocab_size: Pieces, including 256 bytes.
        text_field: The field that holds the text in JSON, Parquet and datasets.
        skip_invalid: Skip documents that are not valid UTF-8.
    """
    with stoppable():
        tokenizer = train_on_sources(sources, out, vocab_size, text_field, skip_invalid)
    print(f"{out}: {tokenizer.num_pieces:,} pieces, sha256 {tokenizer.sha256}")


def show(
    file: Annotated[Positional[Path], arg(metavar="FILE")],
    text: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None,
) -> None:
    """Describe a tokenizer and show how it splits a text.

    Example: lerope tokenizer show data/my-text/tokenizer.model --text "Hello, world"

    Args:
        file: A SentencePiece .model file.
        text: A text to split.
    """
    tokenizer = Tokenizer(file)
    print(f"{file}: {tokenizer.num_pieces:,} pieces, BOS {tokenizer.bos}, EOS {tokenizer.eos}")
    print(f"sha256 {tokenizer.sha256}")
    if text is not None:
        tokens = tokenizer.encode([text])[0]
        print(" ".join(f"{token}:{printable(tokenizer.piece(int(token)))}" for token in tokens))
        same = "decoding returns the text" if tokenizer.decode(tokens) == text else "decoding does not return the text"
        print(f"{len(tokens)} tokens, {same}")


COMMAND = {"train": train, "show": show}
