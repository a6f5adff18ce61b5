"""What a model answers to prompts of the needle test."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lerope.evaluate.haystack import Prompt
from lerope.evaluate.scorer import Scorer
from lerope.evaluate.work import Floats, Work, in_batches

OTHER, GOLD, DISTRACTOR = 0, 1, 2

_NUM_FIELDS = 4


class Place(NamedTuple):
    """The coordinates of a prompt."""

    length: int
    num_distractors: int
    depth: float
    sample: int


def ask(scorer: Scorer, prompts: Sequence[Prompt]) -> Floats:
    """The outcome, gold's log-probability per token, the mean and the worst margin of each prompt: (prompts, 4).

    One pass over each prompt followed by its gold value tells whether the greedy answer is gold: it is if and only
    if every token of the value has the largest probability. If not, it shows where the greedy answer leaves gold, and
    by which token. As long as a distractor's value continues that way, the prompt is read again with that value.
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
    """For each other value the log-odds of gold's token against its own, at the first token where they differ."""
    found = []
    for other in prompt.distractors or prompt.absent:
        shared = min(len(other), len(prompt.gold))
        at = int((other[:shared] != prompt.gold[:shared]).argmax())
        found.append(float(scores[at, prompt.gold[at]]) - float(scores[at, other[at]]))
    return found


def ask_all(work: Work, scorer: Scorer, prompt: Callable[[Place], Prompt], places: Sequence[Place]) -> Floats:
    """The records of `ask` for the prompts at these places, in their order, on the main rank; nothing elsewhere."""

    def start(batch: list[int]) -> Callable[[], Floats]:
        records = ask(scorer, [prompt(places[index]) for index in batch])
        return records.ravel

    records = in_batches(work, [place.length for place in places], [_NUM_FIELDS] * len(places), start)
    return np.concatenate([np.zeros(0, np.float32), *records]).reshape(-1, _NUM_FIELDS)
