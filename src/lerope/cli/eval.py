"""lerope eval RUN ...: loss and perplexity over unpacked documents."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from lerope.cli.stopping import leave, stoppable
from lerope.core.terminal import Console
from lerope.evaluate.perplexity import EvalRequest
from lerope.results import RunResult

if TYPE_CHECKING:
    from lerope.results import Evaluation

Kind = TypeVar("Kind", bound=RunResult)

_SHOWN_BINS = 8


def evaluate(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")],
    *,
    request: Annotated[EvalRequest, OmitArgPrefixes, arg(name="")] = EvalRequest(),  # noqa: B008
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Score finished runs on validation documents or any text; every token's loss is kept for `lerope compare`.

    Example: lerope eval runs/52M-rope-42 runs/52M-lerope-42

    External text: lerope eval runs/52M-lerope-42 --text essay.txt

    On all GPUs of a machine: torchrun --nproc-per-node=8 -m lerope eval runs/217M-lerope-42

    Args:
        runs: finished run directories.
        json_: Print JSON.
    """
    from lerope.evaluate.perplexity import evaluate as carry_out
    from lerope.train.parallel import start_ranks

    check_runs(runs)
    with stoppable(quiet=json_):
        results = [carry_out(run, request) for run in runs]
    if start_ranks(request.device).is_main:
        if json_:
            print(json.dumps([result.as_dict() for result in results], indent=1))
        else:
            for group in alike(results):
                _show(group)
    leave(0)


def check_runs(runs: tuple[Path, ...]) -> None:
    """Raises unless there are runs and all of them are finished: better now than after hours."""
    from lerope.core.run import finished_run

    if not runs:
        raise ValueError("name at least one finished run; got none.")
    for run in runs:
        finished_run(run)


def alike(results: list[Kind], besides: tuple[str, ...] = ()) -> list[list[Kind]]:
    """Results grouped by settings, for one table per group.

    Args:
        besides: settings that may differ.
    """
    groups: dict[str, list[Kind]] = {}
    for result in results:
        same = {name: value for name, value in result.settings.items() if name not in besides}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(result)
    return list(groups.values())


def _show(results: list["Evaluation"]) -> None:
    settings = results[0].settings
    console = Console()
    cut = "first windows" if settings["truncate"] else "windows"
    title = f"{settings['documents']}: {cut} of {settings['length']:,} tokens"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("run", "docs", "tokens", "nats", "perplexity", "bits/byte", "doc mean"):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for result in results:
        table.add_row(
            result.run["name"],
            f"{result.num_documents:,}",
            f"{result.num_tokens:,}",
            f"{result.loss:.4f}",
            f"{result.perplexity:,.4f}",
            "" if result.bits_per_byte is None else f"{result.bits_per_byte:.4f}",
            f"{result.document_mean_loss:.4f}",
        )
    console.print(table)
    console.print(_positions(results))


def _positions(results: list["Evaluation"]) -> Table:
    table = Table(title="nats by position in the window", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("position", justify="right")
    for result in results:
        table.add_column(result.run["name"], justify="right", overflow="fold")
    bins = results[0].by_position
    width = math.ceil(len(bins) / _SHOWN_BINS)
    for start in range(0, len(bins), width):
        group = slice(start, start + width)
        cells = []
        for result in results:
            some = result.by_position[group]
            number = sum(each["num_tokens"] for each in some)
            cells.append(f"{sum(each['num_tokens'] * each['loss'] for each in some) / number:.4f}" if number else "")
        table.add_row(f"{bins[group][0]['start']:,} to {bins[group][-1]['stop'] - 1:,}", *cells)
    return table


COMMAND = evaluate
