"""Prompts of the needle test: sentences of filler with keys and values among them, and the question about one key.

BOS, haystack, " The special magic number for calm-river is", and the answer " 5032871"
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lerope.data.shards import Tokens
from lerope.data.tokenizer import Tokenizer
from lerope.evaluate.filler import Filler

_ADJECTIVES = """
amber ancient brave bright broad calm careful clever cold curious distant early eager fair famous fast fresh friendly
gentle golden grand green happy heavy hidden honest humble kind large lively lonely lucky mild modern narrow noble old
patient plain proud quick quiet rapid rich round sharp silent silver simple smooth soft steady strong sunny sweet tall
tender thin tidy warm wide wild wise young
"""
_NOUNS = """
anchor apple arrow basket bell bird boat book bottle bridge candle castle cloud coat corner desert door eagle engine
feather field flower forest garden gate hammer harbor hill horse house island jacket kettle kitchen ladder lake lamp
letter lion market meadow mirror mountain ocean orange paper pencil piano planet pocket river road school ship shirt
stone table tiger tower train tree valley village wagon window winter wolf
"""

# Values that stand in for the distractors' in the margin of a prompt that has none.
_NUM_ABSENT = 8
_MIN_KEYS = 100
# What must be left for filler: a prompt of only needles has no depths.
_FILLER_SHARE = 0.1
_LEAD = "Yes."
_MAX_DRAWS = 100


@dataclass(frozen=True)
class Prompt:
    """What a model reads, and the answers it may give."""

    tokens: Tokens
    """From BOS to the question's last token."""
    gold: Tokens
    """The tokens of the value asked for."""
    distractors: list[Tokens]
    """Those of the other values in the prompt."""
    absent: list[Tokens]
    """Those of values that are not in the prompt, where it has no distractors."""
    length: int
    """Tokens of the prompt and its answer."""
    gold_start: int
    """Where in the prompt the gold needle starts."""


class Haystacks:
    """Makes prompts. Each depends only on the tokenizer, the filler, the seed and its own coordinates.

    Args:
        tokenizer: digits and common words must survive it unchanged.
        filler: the sentences around needles.
        seed: a different one makes different prompts.
    """

    def __init__(self, tokenizer: Tokenizer, filler: Filler, seed: int) -> None:
        self.tokenizer, self.filler, self.seed = tokenizer, filler, seed
        self._lead = tokenizer.encode([_LEAD])[0][1:-1]
        found = (self._inside(f" {sentence}") for sentence in filler.sentences)
        self._sentences = [tokens for tokens in found if len(tokens)]
        self._by_size: dict[int, list[Tokens]] = defaultdict(list)
        for tokens in self._sentences:
            self._by_size[len(tokens)].append(tokens)

    def prompt(self, length: int, num_distractors: int, depth: float, sample: int) -> Prompt:
        """Builds the prompt with these coordinates.

        Args:
            length: tokens of prompt and answer together; exact.
            num_distractors: other needles, at random sentence boundaries.
            depth: where the gold needle is, from 0, before everything, to 1, right before the question.
            sample: a number from 0.
        """
        chance = random.Random(f"{self.seed}/{length}/{num_distractors}/{depth:.6f}/{sample}")
        num_needles = 1 + num_distractors
        keys = chance.sample(self._keys, num_needles)
        values = self._values(chance, num_needles if num_distractors else 1 + _NUM_ABSENT)
        needles = [self._needle(key, value) for key, value in zip(keys, values, strict=False)]
        question = self._questions[keys[0]]
        rest = length - 1 - len(question) - len(values[0]) - sum(map(len, needles))
        if rest < 0:
            raise ValueError(f"length {length} is too short for {num_needles} needles; name fewer distractors.")
        units = self._fill(rest, chance)
        for needle in needles[1:]:
            units.insert(chance.randint(0, len(units)), needle)
        ends = np.cumsum([0, *map(len, units)])
        place = int(np.abs(ends - depth * ends[-1]).argmin())
        units.insert(place, needles[0])
        tokens = np.concatenate([[self.tokenizer.bos], *units, question]).astype(question.dtype)
        others = values[1:]
        return Prompt(
            tokens=tokens,
            gold=values[0],
            distractors=others if num_distractors else [],
            absent=[] if num_distractors else others,
            length=length,
            gold_start=1 + int(ends[place]),
        )

    def fits(self, length: int, num_distractors: int) -> bool:
        """Whether this many needles leave room for filler."""
        longest_value = max(map(len, self._values(random.Random(0), 100)))
        longest = max(map(len, self._questions.values()))
        needles = (1 + num_distractors) * (longest + longest_value + len(self._full_stop))
        taken = 1 + needles + longest + longest_value
        return num_distractors < len(self._keys) and taken + _FILLER_SHARE * length <= length

    @property
    def num_filler_tokens(self) -> int:
        """Tokens of all filler; a longer haystack goes through the sentences more than once."""
        return sum(map(len, self._sentences))

    def _fill(self, num_tokens: int, chance: random.Random) -> list[Tokens]:
        """Sentences of this many tokens: consecutive ones from a random start, and one of the right size at the end.

        Where no sentence has the right size, the first one loses its beginning.
        """
        at = chance.randrange(len(self._sentences))
        chosen: list[Tokens] = []
        while num_tokens >= len(following := self._sentences[at % len(self._sentences)]):
            chosen.append(following)
            num_tokens -= len(following)
            at += 1
        for _ in range(4):
            if num_tokens in self._by_size or not num_tokens or not chosen:
                break
            num_tokens += len(chosen.pop())
        if num_tokens in self._by_size:
            return [*chosen, chance.choice(self._by_size[num_tokens])]
        while num_tokens:
            following = self._sentences[at % len(self._sentences)][-num_tokens:]
            chosen.insert(0, following)
            num_tokens -= len(following)
            at += 1
        return chosen

    def _needle(self, key: str, value: Tokens) -> Tokens:
        return np.concatenate([self._questions[key], value, self._full_stop])

    def _values(self, chance: random.Random, count: int) -> list[Tokens]:
        """The tokens of distinct seven-digit numbers that are the same before a full stop and at the end."""
        found: dict[int, Tokens] = {}
        for _ in range(_MAX_DRAWS * count):
            number = chance.randrange(1_000_000, 10_000_000)
            value = self._inside(f" is {number}")[len(self._is) :]
            stopped = self._inside(f" is {number}.")[len(self._is) :]
            if np.array_equal(stopped, np.concatenate([value, self._full_stop])):
                found[number] = value
            if len(found) == count:
                return list(found.values())
        raise ValueError("the tokenizer joins digits with a full stop; the needle test needs them apart.")

    @cached_property
    def _is(self) -> Tokens:
        return self._inside(" is")

    @cached_property
    def _full_stop(self) -> Tokens:
        return self._inside(" is.")[len(self._is) :]

    @cached_property
    def _questions(self) -> dict[str, Tokens]:
        """The tokens of " The special magic number for KEY is" for each key that survives the tokenizer."""
        found = {}
        for key in (f"{adjective}-{noun}" for adjective in _ADJECTIVES.split() for noun in _NOUNS.split()):
            text = f" The special magic number for {key} is"
            tokens = self._inside(text)
            if self.tokenizer.decode(tokens).strip() == text.strip():
                found[key] = tokens
        digits = " is 9081726354."
        if len(found) < _MIN_KEYS or self.tokenizer.decode(self._inside(digits)).strip() != digits.strip():
            raise ValueError("the tokenizer loses English words or digits; the needle test needs one that keeps them.")
        return found

    @cached_property
    def _keys(self) -> Sequence[str]:
        return list(self._questions)

    def _inside(self, text: str) -> Tokens:
        """The tokens of a text after the end of a sentence: some tokenizers add a space at the start of a text."""
        tokens = self.tokenizer.encode([_LEAD + text])[0][1:-1]
        if not np.array_equal(tokens[: len(self._lead)], self._lead):
            raise ValueError("the tokenizer joins a full stop with what follows; the needle test needs them apart.")
        return tokens[len(self._lead) :]
