"""What a model answers to prompts of the needle test: stopped and gone on with at any point, shared by ranks."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lerope.data.display import Display, duration
from lerope.data.shards import Tokens
from lerope.data.signals import Signals, Stopped
from lerope.evaluate.haystack import Prompt
from lerope.train.parallel import Ranks

OTHER, GOLD, DISTRACTOR = 0, 1, 2

Floats = npt.NDArray[np.float32]

_NUM_FIELDS = 4


class Place(NamedTuple):
    """The coordinates of a prompt."""

    length: int
    num_distractors: int
    depth: float
    sample: int


class Predictor(Protocol):
    """What a Scorer does for the needle test."""

    def log_probabilities(
        self, rows: Sequence[Tokens], last: Sequence[int], lengths: Sequence[int] | None = None
    ) -> list[Tensor]:
        """The log-probabilities of all tokens where each row's last tokens stand: (last, vocab_size) a row."""
        ...


def ask(scorer: Predictor, prompts: Sequence[Prompt]) -> Floats:
    """The outcome, gold's log-probability a token, the mean and the worst margin of each prompt: (prompts, 4).

    One pass over each prompt with its gold value behind it tells whether the greedy answer is gold: it is if and only
    if every token of the value has the largest probability. If not, it shows where the greedy answer leaves gold, and
    by which token. As long as that is how a distractor's value goes on, the prompt is read again with that value.
    """
    records = np.zeros((len(prompts), _NUM_FIELDS), np.float32)
    paths = {index: prompt.gold for index, prompt in enumerate(prompts)}
    is_first = True
    while paths:
        asked, paths = paths, {}
        found = scorer.log_probabilities(
            [np.concatenate([prompts[index].tokens, value]) for index, value in asked.items()],
            [len(value) for value in asked.values()],
            [prompts[index].length for index in asked],
        )
        for (index, value), scores in zip(asked.items(), (each.numpy() for each in found), strict=True):
            prompt = prompts[index]
            if is_first:
                margins = _margins(prompt, scores)
                gold = scores[np.arange(len(value)), value].mean()
                records[index, 1:] = gold, math.fsum(margins) / len(margins), min(margins)
            greedy = scores.argmax(-1)
            if np.array_equal(greedy, value):
                records[index, 0] = GOLD if value is prompt.gold else DISTRACTOR
                continue
            start = greedy[: int((greedy != value).argmax()) + 1]
            following = [other for other in prompt.distractors if np.array_equal(other[: len(start)], start)]
            if following:
                paths[index] = following[0]
        is_first = False
    return records


def _margins(prompt: Prompt, scores: Floats) -> list[float]:
    """For each other value the log-odds of gold's token against its own, at the first token where they part."""
    found = []
    for other in prompt.distractors or prompt.absent:
        shared = min(len(other), len(prompt.gold))
        at = int((other[:shared] != prompt.gold[:shared]).argmax())
        found.append(float(scores[at, prompt.gold[at]]) - float(scores[at, other[at]]))
    return found


def ask_all(
    scorer: Predictor,
    prompt: Callable[[Place], Prompt],
    places: Sequence[Place],
    *,
    ranks: Ranks,
    partial: Path,
    label: str,
    batch_tokens: int,
) -> Floats:
    """The records of `ask` for the prompts at these places, in their order, on the main rank; nothing elsewhere.

    Args:
        partial: a file for records on their way; what it has is not asked again. The caller removes it.
        label: what to call the work while it goes on.
        batch_tokens: tokens that go through the model at once, on each rank.
    """
    order = sorted(range(len(places)), key=lambda index: -places[index].length)
    finished = ranks.first(lambda: _trim(partial))
    batches = list(_batches([places[index] for index in order[finished:]], batch_tokens))
    total, done, begun = sum(place.length for batch in batches for place in batch), 0, time.monotonic()
    with Signals() as signals, ExitStack() as held:
        display = held.enter_context(Display()) if ranks.is_main else None
        for first in range(0, len(batches), ranks.num_ranks):
            together = batches[first : first + ranks.num_ranks]
            mine = together[ranks.rank] if ranks.rank < len(together) else []
            parts = ranks.gather(ask(scorer, [prompt(place) for place in mine]))
            if ranks.is_main:
                with partial.open("ab") as file:
                    file.writelines(part.tobytes() for part in parts)
            asked = max(number or 0 for number in ranks.gather(signals.received))
            if asked:
                raise Stopped(asked)
            finished += sum(map(len, parts))
            done += sum(place.length for batch in together for place in batch)
            rate = done / max(time.monotonic() - begun, 1e-3)
            if display is not None:
                left = duration((total - done) / rate)
                share = f"{finished:,} of {len(places):,} prompts"
                display.show(f"{label}  {share}  {rate:,.0f} tokens/s  {left} left")
    if not ranks.is_main:
        return np.zeros((0, _NUM_FIELDS), np.float32)
    records = np.empty((len(places), _NUM_FIELDS), np.float32)
    records[order] = np.fromfile(partial, np.float32).reshape(-1, _NUM_FIELDS)
    return records


def _batches(places: list[Place], batch_tokens: int) -> Iterator[list[Place]]:
    """Neighbours together, as many as fit when all are as long as the first, which is the longest."""
    start = 0
    while start < len(places):
        count = max(1, batch_tokens // places[start].length)
        yield places[start : start + count]
        start += count


def _trim(partial: Path) -> int:
    """How many records the file has whole; what is there of the next is removed."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    size = 4 * _NUM_FIELDS
    with partial.open("ab") as file:
        finished = file.tell() // size
        file.truncate(finished * size)
    return finished
