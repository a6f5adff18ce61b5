"""lerope needle RUN ...: whether a run finds values hidden in text."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from lerope.cli.eval import check_runs, tell
from lerope.cli.options import AsOptions, Json, Runs, Whole
from lerope.cli.stopping import stoppable
from lerope.cli.tables import new_table
from lerope.core.terminal import Console
from lerope.evaluate.needle import NeedleRequest

if TYPE_CHECKING:
    from lerope.evaluate.haystack import Haystacks, Prompt
    from lerope.results import Needle, NeedleCell

# Tokens of a prompt to show: all, or this many at its start, before and after the gold needle, and at its end.
_SHOWN_TOKENS, _SHOWN_START, _SHOWN_BEFORE, _SHOWN_AFTER, _SHOWN_END = 400, 80, 40, 80, 80


def needle(
    runs: Runs,
    *,
    request: AsOptions[NeedleRequest] = NeedleRequest(),  # noqa: B008
    show: Whole = None,
    json_: Json = False,
) -> None:
    """Hide numbers under keys in English text and ask finished runs for one of them; all get the same prompts.

    Example: lerope needle runs/52M-rope-42 runs/52M-lerope-42

    One needle beyond the train length: lerope needle runs/52M-lerope-42 --to 32768 --method yarn

    Show some prompts: lerope needle runs/52M-lerope-42 --show 3

    On all GPUs of a machine: torchrun --nproc-per-node=8 -m lerope needle runs/217M-lerope-42

    Args:
        runs: finished run directories.
        show: Print this many prompts and run no model.
        json_: Print JSON.
    """
    from lerope.evaluate.needle import needle as carry_out
    from lerope.train.parallel import start_ranks

    check_runs(runs)
    if show is not None:
        _show_prompts(runs[0], request, show)
        return
    with stoppable(quiet=json_):
        results = [carry_out(run, request) for run in runs]
    tell(results, start_ranks(request.device), json_, _show)


def _show_prompts(path: Path, request: NeedleRequest, count: int) -> None:
    from lerope.core.checks import check_count
    from lerope.core.run import finished_run
    from lerope.evaluate.needle import plan

    work = plan(finished_run(path), request)
    number = min(check_count("show", count), len(work.places))
    console = Console()
    for index in range(number):
        place = work.places[index * len(work.places) // number]
        prompt = work.prompt(place)
        others = f"{place.num_distractors} distractor{'s' * (place.num_distractors != 1)}"
        title = f"{place.length:,} tokens, {others}, depth {place.depth:g}"
        console.print(f"{title}, sample {place.sample}", style="bold")
        console.print(_readable(work.haystacks, prompt), soft_wrap=True)
        console.print(f"Answer:{work.haystacks.tokenizer.decode(prompt.gold)}\n", soft_wrap=True)


def _readable(haystacks: "Haystacks", prompt: "Prompt") -> str:
    """The text of a prompt; for a long one, its start, the text around the gold needle, and its end."""
    spans = [(0, len(prompt.tokens))]
    if len(prompt.tokens) > _SHOWN_TOKENS:
        around = (max(0, prompt.gold_start - _SHOWN_BEFORE), prompt.gold_start + _SHOWN_AFTER)
        spans = [(0, _SHOWN_START), around, (len(prompt.tokens) - _SHOWN_END, len(prompt.tokens))]
    merged: list[tuple[int, int]] = []
    for start, stop in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], min(max(stop, merged[-1][1]), len(prompt.tokens)))
        else:
            merged.append((start, stop))
    return " [...] ".join(haystacks.tokenizer.decode(prompt.tokens[start:stop]).strip() for start, stop in merged)


def _show(results: list["Needle"]) -> None:
    console = Console()
    settings = results[0].settings
    if "method" in settings:
        kind = f"Needles up to {settings['to']:,} tokens with {settings['method']}"
    else:
        kind = f"Needles within {settings['train_length']:,} tokens"
    prompts = f"{settings['samples']} prompt{'s' * (settings['samples'] != 1)} per depth"
    title = f"{kind}, {prompts}, in {settings['filler']}"
    console.print(title, style="bold", soft_wrap=True)
    meanings: dict[str, list[str]] = {}
    for result in results:
        name = result.run["name"]
        console.print(f"\n{name}", style="italic", soft_wrap=True)
        console.print(_totals(result))
        console.print(f"{'Margin' if result.at_floor else 'Exact match in %'} by depth")
        console.print(_map(result))
        meanings.setdefault(_meaning(result), []).append(name)
    notes = [*_notes(results[0]), *(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())]
    for note in notes:
        console.print(note, soft_wrap=True)


def _totals(result: "Needle") -> Table:
    """All depths together, with a row for each length and number of distractors."""
    table = new_table(_kinds(result), "exact match", "95 %", "distractor", "nats", "margin", text=())
    for total in result.totals:
        error = "" if total["margin_error"] is None else f" ± {total['margin_error']:.2f}"
        table.add_row(
            _kind(result, total),
            f"{total['rate']:.1%}",
            f"{100 * total['low']:.1f} to {total['high']:.1%}",
            f"{total['distractor_rate']:.1%}",
            f"{abs(total['gold_log_probability']):.2f}",
            f"{total['margin']:+.2f}{error}",
        )
    return table


def _map(result: "Needle") -> Table:
    """Exact match (the margin, at the floor) by depth, with a column for each length and number of distractors."""
    # So wide that columns of percentages and of log-odds look alike.
    kinds = [f"{_kind(result, total):>5}" for total in result.totals]
    table = new_table(f"depth \\ {_kinds(result)}", *kinds, text=())
    for depth in result.settings["depths"]:
        cells = [cell for cell in result.cells if cell["depth"] == depth]
        shown = (f"{cell['margin']:+.2f}" if result.at_floor else f"{100 * cell['rate']:.0f}" for cell in cells)
        table.add_row(f"{depth:g}", *shown)
    return table


def _kinds(result: "Needle") -> str:
    """What distinguishes the kinds of prompts in a result."""
    several = len({total["num_distractors"] for total in result.totals}) > 1
    return "distractors" if "method" not in result.settings else "tokens, distractors" if several else "tokens"


def _kind(result: "Needle", cell: "NeedleCell") -> str:
    """The name of a kind of prompt, starred if the filler repeats."""
    values = {"tokens": f"{cell['length']:,}", "distractors": str(cell["num_distractors"])}
    return ", ".join(values[name] for name in _kinds(result).split(", ")) + "*" * (cell["length"] in result.repeated)


def _notes(result: "Needle") -> list[str]:
    found = []
    for length in dict.fromkeys(each["length"] for each in result.left_out):
        numbers = [str(each["num_distractors"]) for each in result.left_out if each["length"] == length]
        found.append(f"Left out, because they do not fit in {length:,} tokens: {', '.join(numbers)} distractors.")
    if result.repeated:
        num_filler_tokens = result.settings["num_filler_tokens"]
        found.append(f"* The filler has {num_filler_tokens:,} tokens: these haystacks repeat sentences.")
    return found


def _meaning(result: "Needle") -> str:
    """What the numbers say, in one sentence."""
    first, last = result.totals[0], result.totals[-1]
    if result.at_floor:
        clear = [t for t in result.totals if t["margin_error"] is not None and t["margin"] > 3 * t["margin_error"]]
        return (
            "at the floor, too small or trained too little to copy seven digits; compare margins: chance is 0, and "
            f"these are {'clearly' if clear else 'not clearly'} above it."
        )
    change = f"exact match is {first['rate']:.1%}"
    if first["length"] != last["length"]:
        change += f" at {first['length']:,} tokens and {last['rate']:.1%} at {last['length']:,}"
    elif first is not last:
        change += f" with {first['num_distractors']} and {last['rate']:.1%} with {last['num_distractors']} distractors"
    wrong, others = (
        sum(total[name] * total["num_samples"] for total in result.totals if total["num_distractors"])
        for name in ("other_rate", "distractor_rate")
    )
    if not wrong + others:
        return f"{change}."
    return f"{change}; {others / (wrong + others):.0%} of wrong answers are another key's value."


COMMAND = needle
