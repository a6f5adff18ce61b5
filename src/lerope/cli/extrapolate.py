"""lerope extrapolate RUN --to LENGTH ...: loss beyond the train length."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from lerope.cli.eval import check_runs, tell
from lerope.cli.options import Folder, Json, Runs, Whole
from lerope.cli.stopping import stoppable
from lerope.cli.tables import new_table
from lerope.core.recipe import Precision
from lerope.core.terminal import Console
from lerope.evaluate.extrapolation import ALL, LONG, TEMPERATURES

if TYPE_CHECKING:
    import torch

    from lerope.evaluate.perplexity import EvalRequest
    from lerope.results import Extrapolation

# Documents used to find the dominant band.
_NUM_ROWS = 16


def extrapolate(
    runs: Runs,
    *,
    to: int,
    temperatures: tuple[float, ...] = TEMPERATURES,
    dominant_band: Whole = None,
    data: Folder = None,
    text: tuple[str, ...] = (),
    max_tokens: Whole = None,
    precision: Precision = "float32",
    device: str = "auto",
    batch_tokens: Whole = None,
    json_: Json = False,
) -> None:
    """Score finished runs on documents beyond the train length, with every way of stretching frequencies.

    Naive, logits by position, PI, NTK-by-parts, YaRN at each temperature, and interpolation of only the slow bands or
    the dominant one; each document is stretched by its own length, and nothing changes up to the train length.

    Example: lerope extrapolate runs/52M-rope-42 runs/52M-lerope-42 --to 4096

    Args:
        runs: finished run directories.
        to: where documents are cut, in tokens.
        temperatures: coefficients c of YaRN's temperature to try; logits scale by (c ln s + 1)^2.
        dominant_band: the only band to interpolate; by default, found from the run's own attention.
        data: a corpus other than the run's own, with the same tokenizer.
        text: external texts instead of a corpus.
        max_tokens: score whole documents up to the one that reaches this many tokens; all by default.
        precision: float32 is the reference; bf16 is faster on a GPU but rounds.
        device: cuda, cuda:1 or cpu; auto uses a GPU if there is one.
        batch_tokens: tokens per forward pass; by default, as many as are useful.
        json_: Print JSON.
    """
    from lerope.evaluate.extrapolation import extrapolate as carry_out
    from lerope.evaluate.perplexity import EvalRequest
    from lerope.train.parallel import start_ranks

    check_runs(runs)
    request = EvalRequest(
        data=data, text=text, max_tokens=max_tokens, precision=precision, device=device, batch_tokens=batch_tokens
    )
    results = []
    ranks = start_ranks(device)
    with stoppable(quiet=json_):
        for run in runs:
            band = dominant_band
            if band is None:
                band = ranks.on_main(lambda run=run: dominant_band_of(run, request, ranks.device))  # type: ignore[misc]
            results.append(carry_out(run, to, request, temperatures, band))
    # Each run has its own dominant band.
    tell(results, ranks, json_, lambda group: _show(group, to), besides=("dominant_band", "temperatures"))


def dominant_band_of(path: Path, request: "EvalRequest", device: "torch.device") -> int | None:
    """The band that carries position in this run; None if no band rotates."""
    from lerope.analyze.bands import contributions, dominant_band, full_rows
    from lerope.core.run import finished_run
    from lerope.model.saved import load_model

    run = finished_run(path)
    model = load_model(path)
    rows = full_rows(request.documents(run).source, run.recipe.row_length, _NUM_ROWS)
    return dominant_band(contributions(model, rows, device), model.encoding.artifact().tensor())


def _show(results: list["Extrapolation"], to: int) -> None:
    console = Console()
    titles = {ALL: f"All documents, cut at {to:,} tokens", LONG: f"Documents longer than {to:,} tokens, cut there"}
    for selection, title in titles.items():
        rows = [(result, row) for result in results for row in result.ways if row["selection"] == selection]
        if not rows:
            console.print(f"{title}: none.\n")
            continue
        first = rows[0][1]
        share = first["num_extrapolated"] / first["num_tokens"]
        title += f": perplexity\n{first['num_documents']:,} documents, {first['num_tokens']:,} tokens, "
        title += f"{share:.1%} of them beyond the train length"
        table = new_table("run", "way", "within", "beyond", "full", title=title, text=("run", "way"))
        for result in results:
            shown = [row for row in result.ways if row["selection"] == selection]
            best = min(shown, key=lambda row: row["extrapolated_loss"]) if shown else None
            for number, row in enumerate(shown):
                parts = ("in_distribution", "extrapolated", "full")
                cells = [Text(f"{row[f'{part}_perplexity']:,.3f}") for part in parts]  # type: ignore[literal-required]
                cells[1].style = "bold" if row is best else ""
                table.add_row("" if number else result.run["name"], row["label"], *cells)
        console.print(table)


COMMAND = extrapolate
