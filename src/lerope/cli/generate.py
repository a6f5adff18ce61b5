"""lerope generate RUN PROMPT: what a run writes."""

import json
import os
import re
import warnings
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.cells import cell_len, set_cell_size
from tyro.conf import Positional, arg

from lerope.cli.columns import lines
from lerope.cli.options import AsOptions, Json
from lerope.core.terminal import Console
from lerope.evaluate.generate import GenerateRequest

if TYPE_CHECKING:
    from lerope.evaluate.generate import Passage

# What would move a terminal's cursor or change its colours.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_GAP = "  │  "


def generate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    prompt: Annotated[Positional[str], arg(metavar="PROMPT")],
    *,
    beside: Path | None = None,
    request: AsOptions[GenerateRequest] = GenerateRequest(),  # noqa: B008
    json_: Json = False,
) -> None:
    """Let a finished run continue a prompt.

    Example: lerope generate runs/52M-lerope-42 "Once upon a time"

    Two runs side by side: lerope generate runs/52M-rope-42 "Once upon a time" --beside runs/52M-lerope-42

    Beyond the train length: lerope generate runs/52M-lerope-42 "Once upon a time" --tokens 4000 --extend yarn

    Args:
        run: a finished run directory.
        prompt: the text to continue.
        beside: another finished run, which continues the same prompt in a second column, with the same seed.
        json_: Print JSON once all is written.
    """
    from lerope.core.run import finished_run

    runs = [run] if beside is None else [run, beside]
    for each in runs:
        finished_run(each)
    _leave_busy_cores()
    warnings.filterwarnings("ignore", "Mismatch dtype")  # torch, of norms in float32 between layers in bf16
    passages = [_passage(each, prompt, request) for each in runs]
    try:
        if json_:
            for passage in passages:
                for _ in passage:
                    pass
            print(json.dumps([passage.as_dict() for passage in passages], indent=1))
            return
        if len(passages) == 1:
            _stream(passages[0])
        else:
            _side_by_side(passages)
    finally:
        if not json_:  # after Ctrl-C too
            for passage in passages:
                _say(_tally(passage))


def _passage(run: Path, prompt: str, request: GenerateRequest) -> "Passage":
    from lerope.evaluate.generate import Writer

    if request.extend == "dominant_band" and request.dominant_band is None:
        from lerope.cli.extrapolate import dominant_band_of
        from lerope.evaluate.perplexity import EvalRequest
        from lerope.train.parallel import start_ranks

        band = dominant_band_of(run, EvalRequest(), start_ranks(request.device).device)
        request = replace(request, dominant_band=0 if band is None else band)  # where no band turns, any will do
    return Writer(run, request).passage(prompt)


def _leave_busy_cores() -> None:
    """As many threads as there are cores that nothing else keeps busy.

    Threads that wait for each other on busy cores read a token ten times slower than one thread does.
    """
    if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "getloadavg"):
        import torch

        free = (os.cpu_count() or 1) - round(os.getloadavg()[0])
        torch.set_num_threads(max(1, min(free, torch.get_num_threads())))


def _stream(passage: "Passage") -> None:
    """Prints a text while it is written, and says where it leaves what the run was trained on."""
    Console(soft_wrap=True).print(_visible(passage.prompt), style="bold", end="")
    is_told = False
    try:
        for piece in passage:
            if passage.is_beyond and not is_told:
                is_told = True
                _say(f"\n[{_beyond(passage)}]")
            print(_visible(piece), end="", flush=True)
    finally:
        print(flush=True)


def _side_by_side(passages: "list[Passage]") -> None:
    """Prints texts in columns, a line as soon as all have it."""
    console = Console()
    width = max(20, (console.width - len(_GAP) * (len(passages) - 1)) // len(passages))
    console.print(_GAP.join(set_cell_size(passage.writer.run.name, width) for passage in passages), style="bold")
    columns = [lines(map(_visible, chain([passage.prompt], passage)), width) for passage in passages]
    for row in zip_longest(*columns, fillvalue=""):
        print(_GAP.join(line + " " * (width - cell_len(line)) for line in row).rstrip(), flush=True)
    for passage in passages:
        if passage.is_beyond:
            _say(f"{passage.writer.run.name}: {_beyond(passage)}")


def _beyond(passage: "Passage") -> str:
    """What became of a text that is longer than rows in training."""
    words = f"beyond the train length of {passage.writer.train_length:,} tokens"
    if passage.writer.request.extend == "none":
        return f"{words}, with nothing adapted; --extend yarn adapts frequencies"
    return f"{words}, with {passage.writer.request.extend}"


def _tally(passage: "Passage") -> str:
    """How much was written, how fast, and what of the request had no effect."""
    writer = passage.writer
    words = [f"{writer.run.name}: {passage.num_tokens:,} tokens"]
    if passage.tokens_per_second is not None:
        words.append(f"{passage.tokens_per_second:.0f} per second")
    if passage.is_ended:
        words.append("the run ended its document")
    whole = passage.num_prompt_tokens + writer.request.tokens
    if writer.request.extend != "none" and whole <= writer.train_length:
        words.append(f"{writer.request.extend} changes nothing up to the train length of {writer.train_length:,}")
    return ", ".join(words)


def _visible(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _say(text: str) -> None:
    """On standard error, so that the output is the text alone."""
    Console(stderr=True, soft_wrap=True).print(text, style="dim")


COMMAND = generate
