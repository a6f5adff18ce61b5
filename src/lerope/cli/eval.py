"""lerope eval RUN ...: loss and perplexity over unpacked documents."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rich.table import Table

from lerope.cli.options import AsOptions, Json, Runs
from lerope.cli.stopping import leave, stoppable
from lerope.cli.tables import new_table
from lerope.core.grouping import grouped
from lerope.core.terminal import Console
from lerope.evaluate.perplexity import EvalRequest
from lerope.results import RunResult

if TYPE_CHECKING:
    from lerope.results import Evaluation
    from lerope.train.parallel import Ranks

Kind = TypeVar("Kind", bound=RunResult)

_SHOWN_BINS = 8


def evaluate(
    runs: Runs,
    *,
    request: AsOptions[EvalRequest] = EvalRequest(),  # noqa: B008
    json_: Json = False,
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
    tell(results, start_ranks(request.device), json_, _show)


def check_runs(runs: tuple[Path, ...]) -> None:
    """Raises unless there are runs and all of them are finished: better now than after hours."""
    from lerope.core.run import finished_run

    if not runs:
        raise ValueError("name at least one finished run; got none.")
    for run in runs:
        finished_run(run)


def tell(
    results: list[Kind],
    ranks: "Ranks",
    as_json: bool,
    show: Callable[[list[Kind]], None],
    besides: tuple[str, ...] = (),
) -> NoReturn:
    """Prints results, on one of several ranks, and ends the command.

    Args:
        show: prints results whose settings are the same.
        besides: settings that may differ.
    """

    def same(result: Kind) -> str:
        return json.dumps({k: v for k, v in result.settings.items() if k not in besides}, sort_keys=True)

    if ranks.is_main and as_json:
        print(json.dumps([result.as_dict() for result in results], indent=1))
    elif ranks.is_main:
        for alike in grouped(results, same).values():
            show(alike)
    leave(0)


def _show(results: list["Evaluation"]) -> None:
    settings = results[0].settings
    console = Console()
    cut = "first windows" if settings["truncate"] else "windows"
    title = f"{settings['documents']}: {cut} of {settings['length']:,} tokens"
    table = new_table("run", "docs", "tokens", "nats", "perplexity", "bits/byte", "doc mean", title=title)
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
    names = [result.run["name"] for result in results]
    table = new_table("position", *names, title="nats by position in the window", text=())
    bins = results[0].by_position
    width = math.ceil(len(bins) / _SHOWN_BINS)
    for start in range(0, len(bins), width):
        some = slice(start, start + width)
        cells = []
        for result in results:
            found = result.by_position[some]
            number = sum(each["num_tokens"] for each in found)
            cells.append(f"{sum(each['num_tokens'] * each['loss'] for each in found) / number:.4f}" if number else "")
        table.add_row(f"{bins[some][0]['start']:,} to {bins[some][-1]['stop'] - 1:,}", *cells)
    return table


COMMAND = evaluate
