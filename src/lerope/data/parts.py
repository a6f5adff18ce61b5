"""A corpus prepared in parts by as many machines, and put together into the bytes that one would have written."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lerope.core.files import differences, write_whole
from lerope.core.locks import locked
from lerope.core.run import TOKENIZER
from lerope.data.resume import full_disk_explained
from lerope.data.shards import (
    MANIFEST,
    SPLITS,
    Corpus,
    Manifest,
    SplitManifest,
    SplitName,
    SplitWriter,
    split_entropy,
    token_dtype,
)
from lerope.data.sources import Part

PARTS = "parts"

Parts = list[tuple[Part, SplitName | None]]
"""With the split that each belongs to; None where that is decided document by document."""


@dataclass(frozen=True)
class Share:
    """The `number`th, from 1, of `count` shares."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """2/4, or a sentence."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"part must be i/n with i from 1 to n, such as 2/4; got {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def folder(self, out: Path) -> Path:
        """Where the share is prepared: a corpus of its own."""
        return out / PARTS / f"{self.number}-of-{self.count}"

    def check(self, parts: Parts, settings: dict[str, Any]) -> None:
        """Raises where parts would not add up to what one machine prepares."""
        if settings["tokenizer"] is None:
            raise ValueError(
                "tokenizer must be given with --part, the same for all parts; make it with `lerope tokenizer train`."
            )
        for name in ("max_tokens", "max_validation_tokens"):
            if settings[name] is not None:
                raise ValueError(
                    f"{name} must be left out with --part, as no part knows how many tokens the others have; got "
                    f"{settings[name]:,}: name fewer files."
                )
        for part, _ in parts:
            if part.size is None:
                raise ValueError(
                    f"part must be of files, and {part.name} is one stream; download its files and name their folder."
                )

    def of(self, parts: Parts) -> Parts:
        """The files whose middle lies in this share of all bytes, in their order."""
        total = sum(part.size or 0 for part, _ in parts)
        chosen, before = [], 0
        for part, split in parts:
            middle = before + (part.size or 0) / 2
            before += part.size or 0
            if min(int(middle * self.count / max(total, 1)), self.count - 1) == self.number - 1:
                chosen.append((part, split))
        return chosen


def merge(out: Path) -> Manifest:
    """Puts the parts of a corpus together; once that is done, they can be deleted.

    Args:
        out: the folder that all parts were prepared for.
    """
    if not out.is_dir():  # a lock would make it
        raise ValueError(f"{out} does not exist; name the folder that the parts were prepared for.")
    with locked(out), full_disk_explained(out):
        if (out / MANIFEST).exists():
            print(f"{out} is complete.")
            return Manifest.load(out)
        corpora = _open_parts(out)
        first = corpora[0].manifest
        write_whole(out / TOKENIZER, corpora[0].tokenizer_path.read_bytes())
        manifest = replace(
            first,
            num_skipped=sum(each.manifest.num_skipped for each in corpora),
            code_share=_code_share(corpora),
            splits={split: _merge_split(out, split, corpora) for split in SPLITS},
            settings={name: value for name, value in first.settings.items() if name != "part"},
        )
        for split, found in manifest.splits.items():
            if not found.num_documents:
                raise ValueError(
                    f"the {split} split is empty in all parts; prepare them with another --validation-fraction or "
                    "other --validation sources, and another --out."
                )
        manifest.save(out)
        return manifest


def _code_share(corpora: list[Corpus]) -> float:
    """Of all training text. Shares are of whole bytes, which come back exactly."""
    sizes = [(each.manifest.code_share, each.manifest.splits["train"].num_bytes) for each in corpora]
    return sum(round(share * size) for share, size in sizes) / max(sum(size for _, size in sizes), 1)


def _open_parts(out: Path) -> list[Corpus]:
    """All parts in order, whole and of one and the same request."""
    counts = {int(path.name.partition("-of-")[2]) for path in (out / PARTS).glob("*-of-*")}
    if len(counts) != 1:
        found = f"parts of {' and of '.join(map(str, sorted(counts)))}" if counts else "none"
        raise ValueError(f"{out / PARTS} must hold the parts of one number of them; got {found}.")
    (count,) = counts
    folders = [Share(number, count).folder(out) for number in range(1, count + 1)]
    for number, folder in enumerate(folders, 1):
        if not (folder / MANIFEST).exists():
            raise ValueError(
                f"part {number}/{count} is not finished; give `lerope data prepare ... --part {number}/{count}`."
            )
    corpora = [Corpus(folder) for folder in folders]
    settings = [{**each.manifest.settings, "sources": each.manifest.sources, "part": None} for each in corpora]
    for number, other in enumerate(settings[1:], 2):
        for field, one, another in differences(settings[0], other):
            raise ValueError(
                f"parts must be prepared alike; got {field} {one!r} in part 1 and {another!r} in part {number}."
            )
    return corpora


def _merge_split(out: Path, split: SplitName, corpora: list[Corpus]) -> SplitManifest:
    vocab_size = corpora[0].manifest.vocab_size
    writer = SplitWriter(out, split, token_dtype(vocab_size))
    for corpus in corpora:
        for tokens, lengths in (corpus.train if split == "train" else corpus.validation).blocks():
            writer.append(tokens, lengths)
    writer.state()
    shards = writer.finish()
    found = [each.manifest.splits[split] for each in corpora]
    return SplitManifest(
        num_documents=sum(each.num_documents for each in found),
        num_tokens=sum(each.num_tokens for each in found),
        num_bytes=sum(each.num_bytes for each in found),
        unigram_entropy=split_entropy(out, shards, vocab_size),
        shards=shards,
    )
