"""lerope sweep RUNG --data DIR ...: a rung's learning rate, for each encoding separately."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from lerope.cli.launching import On, chosen_cluster, launcher
from lerope.cli.options import AsOptions, File, Folder, Json
from lerope.cli.stopping import stoppable
from lerope.cli.tables import new_table
from lerope.cli.train import Changes
from lerope.core.ladder import LEARNING_RATE_INDEX
from lerope.core.recipe import Setup
from lerope.core.terminal import Console
from lerope.launch.cluster import Cluster

if TYPE_CHECKING:
    from lerope.results import Sweep


def sweep(
    rung: Positional[str],
    *,
    data: Path,
    encodings: tuple[str, ...] = ("rope", "prope", "lerope"),
    seed: int = 42,
    start: Annotated[int | Literal["cold"] | None, arg(metavar="INDEX|cold", help_behavior_hint="")] = None,
    out: Folder = None,
    previous: Annotated[tuple[Path, ...], arg(metavar="DIR...", help_behavior_hint="")] = (),
    extrapolate: Annotated[tuple[str, ...], arg(metavar="RUNG...", help_behavior_hint="")] = (),
    on: On = "local",
    cluster: File = None,
    json_: Json = False,
    where: AsOptions[Cluster] = Cluster(),  # noqa: B008
    changes: AsOptions[Changes] = Changes(),  # noqa: B008
    setup: AsOptions[Setup] = Setup(),  # noqa: B008
) -> None:
    """Search for the best learning rate on the grid 2^(-index/2) until both neighbours are worse.

    Three runs per encoding if the first guess is right. If stopped at any moment, the same command resumes and repeats
    no finished run.

    Example: lerope sweep 52M --data data/c4 --encodings rope lerope

    On a cluster, one job per run: lerope sweep 52M --data /shared/c4 --out /shared/sweep --on slurm --time 2:00:00

    Predict larger rungs: lerope sweep 608M --data data/c4 --previous sweeps/52M sweeps/217M --extrapolate 1.34B 2.52B

    Args:
        rung: demo, 19M, 52M, 217M, 608M, 1.34B or 2.52B.
        data: a folder that `lerope data prepare` wrote.
        encodings: what to search a learning rate for; see `lerope train --help`.
        seed: the seed of all runs.
        start: the index to try first, or cold for a search without a guess; by default, the one that --previous
            predicts, or else the paper's.
        out: the folder of the runs; by default sweeps/RUNG.
        previous: folders of other rungs' sweeps.
        extrapolate: rungs whose index to predict from this and previous sweeps.
        on: This machine, one run at a time; or jobs of a Slurm cluster, a guess and its neighbours at once.
        cluster: with --on slurm, a file with lines such as partition = "gpu", for the options below.
        json_: Print JSON.
    """
    from lerope.core.ladder import rung as model_of
    from lerope.launch.sweep import SWEEP, Ahead, predict, training, training_by
    from lerope.launch.sweep import sweep as search
    from lerope.results import Sweep
    from lerope.train.parallel import usual_precision

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a sweep trains in one process; start it without torchrun.")
    for name in (rung, *extrapolate):
        model_of(name)
    if extrapolate and not previous:
        raise ValueError("previous must name other rungs' sweeps for --extrapolate; got none.")
    earlier = [Sweep.load(folder / SWEEP) for folder in previous]
    ahead: Ahead | None = None
    if on == "slurm":
        if setup != Setup():
            raise ValueError(
                "setup is this machine's; with --on slurm leave out how a machine trains, such as --device."
            )
        on_cpus = chosen_cluster(cluster, where).gpus_per_run == 0
        given = changes.given("float32" if on_cpus else "bf16", data)
        settings, objective, ahead = training_by(launcher(on, None, cluster, where), rung, data, seed, given)
    else:
        launcher(on, None, cluster, where)
        settings, objective = training(rung, data, seed, changes.given(usual_precision(setup.device), data), setup)
    guess: int | Literal["cold"] = LEARNING_RATE_INDEX[rung] if start is None else start
    if start is None and (predicted := predict(earlier, [rung])):
        guess = predicted[0]["index"]
    out = out or Path("sweeps") / rung
    with stoppable(quiet=json_):
        found = search(out, settings, encodings, None if guess == "cold" else guess, objective, _say, ahead)
    if extrapolate:
        found = replace(found, predictions=predict([*earlier, found], extrapolate))
        found.save(out / SWEEP)
    print(json.dumps(found.as_dict(), indent=1)) if json_ else _show(found)


def _say(text: str) -> None:
    Console(soft_wrap=True).print(text, style="bold")


def _show(found: "Sweep") -> None:
    console = Console()
    headings = ("encoding", "index", "learning rate", "loss", "at larger rate", "at smaller rate", "runs")
    table = new_table(*headings, title=f"Best learning rates for {found.settings['rung']}")
    for best in found.optima:
        losses = (best["loss"], best["loss_at_larger_rate"], best["loss_at_smaller_rate"])
        cells = ("diverged" if loss is None else f"{loss:.4f}" for loss in losses)
        table.add_row(
            best["encoding"], str(best["index"]), f"{best['learning_rate']:.3e}", *cells, str(best["num_runs"])
        )
    console.print(table)
    if not found.predictions:
        return
    text = ("encoding", "rung")
    table = new_table(*text, "index", "learning rate", "rate ~ N^", title="Predicted", text=text)
    for each in found.predictions:
        rate = f"{each['learning_rate']:.3e}"
        table.add_row(each["encoding"], each["rung"], str(each["index"]), rate, f"{each['slope']:.2f}")
    console.print(table)


COMMAND = sweep
