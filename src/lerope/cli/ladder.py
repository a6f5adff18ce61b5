"""lerope ladder STUDY --data DIR ...: starts or resumes a study's runs and measurements."""

import json
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from lerope.cli.launching import On, launcher
from lerope.cli.stopping import stoppable
from lerope.core.terminal import Console
from lerope.launch.cluster import Cluster

if TYPE_CHECKING:
    from lerope.launch.study import Study


def ladder(
    study: Annotated[Positional[str | None], arg(metavar="[STUDY]", help_behavior_hint="")] = None,
    *,
    data: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    archive: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    demo: bool = False,
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    sweep: bool = False,
    filler: Annotated[str | None, arg(metavar="SOURCE", help_behavior_hint="")] = None,
    at_once: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    on: On = "local",
    cluster: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    status: bool = False,
    cancel: bool = False,
    print_: Annotated[bool, arg(name="print")] = False,
    json_: Annotated[bool, arg(name="json")] = False,
    where: Annotated[Cluster, OmitArgPrefixes, arg(name="")] = Cluster(),  # noqa: B008
) -> None:
    """Train and measure every run of a study, several at once if there are several GPUs.

    Without a study, lists all studies. If stopped at any moment, the same command resumes: finished runs are kept,
    others continue from their checkpoints. A failed run does not affect the others.

    Example: lerope ladder seeds --data data/c4

    In minutes, on a laptop: lerope ladder main --data data/small --demo

    On a cluster, one job per run: lerope ladder main --data /shared/c4 --out /shared/main --on slurm --time 12:00:00

    For any other scheduler, one line per run: lerope ladder main --data /shared/c4 --out /shared/main --print

    Args:
        study: a name from the list, or your own file.py:function or module:function.
        data: a folder that `lerope data prepare` wrote.
        out: the folder of the run directories; by default studies/STUDY, or studies/STUDY-demo with --demo.
        archive: a folder that gets the archive of each run as soon as it is finished (see `lerope archive`), so that a
            machine that is lost takes no result with it.
        demo: A small version of the study: data with a vocabulary of 2,048, models of the rung demo, few steps.
        steps: steps of every run; with --demo, those of the largest rung.
        sweep: First search for each rung's learning rate, with RoPE, in OUT/sweeps; rungs above 608M follow from the
            others. By default, the paper's learning rates are used.
        filler: for studies with needles, text to hide them in, instead of Python's documentation, which a prompt of
            32k tokens repeats.
        at_once: how many runs at once; by default one per GPU, or one on a CPU.
        on: This machine, or jobs of a Slurm cluster, which outlive this command and are found again by the same one.
        cluster: with --on slurm, a file with lines such as partition = "gpu", for the options below.
        status: Show how far the runs are, with --on slurm also their jobs, and start nothing.
        cancel: With --on slurm, cancel the study's jobs; runs save their work first, and the same command resumes.
        print_: Print the commands, one line per run in an order in which they can run, and start nothing.
        json_: Print the list, or the status, as JSON.
    """
    from lerope.launch.launcher import LOGS
    from lerope.launch.rates import known_rates, paper_rates, search_rates
    from lerope.launch.recipes import study_named
    from lerope.launch.small import sized
    from lerope.launch.study import check_data, prepare_command, with_learning_rates, with_options, with_vocabulary

    if study is None:
        _list(json_)
        return
    chosen = sized(study_named(study), demo, steps)
    if data is not None and not print_:  # what is printed finds out by itself, where the data is
        chosen = with_vocabulary(chosen, data)
    out = out or Path("studies") / (f"{chosen.name}-demo" if demo else chosen.name)
    if filler is not None:
        if not any(command == "needle" for run in chosen.runs for command, *_ in run.measure):
            raise ValueError(f"filler is for studies that hide needles; {chosen.name} has none: leave --filler out.")
        chosen = with_options(chosen, "needle", "--filler", filler)
    if sweep and (status or print_):
        chosen = with_learning_rates(chosen, known_rates(chosen, out))
    if cancel:
        _cancel(chosen, out, on)
        return
    if status:
        _status(chosen, out, data, json_, on)
        return
    if data is None:
        example = prepare_command(chosen, demo)
        raise ValueError(f"data must name prepared text, for example from `{example}`; got none.")
    if print_:
        for run in chosen.runs:
            kept = [] if archive is None else [["archive", str(out / run.name), "--out", str(archive)]]
            print(" && ".join(shlex.join(["lerope", *command]) for command in [*run.commands(data, out), *kept]))
        return
    if archive is not None and archive.resolve() == out.resolve():
        raise ValueError(f"archive must be another folder than --out, which has the runs themselves; got {archive}.")
    launch = launcher(on, at_once, cluster, where, archive)
    check_data(chosen, data)
    with stoppable(), redirect_stdout(sys.stderr if json_ else sys.stdout):
        if sweep:
            found = search_rates(chosen, data, out, print, launch if on == "slurm" else None)
            chosen = with_learning_rates(chosen, found)
        elif rates := paper_rates(chosen):
            print(rates)
        failed = launch(chosen, data, out)
    _status(chosen, out, data, json_)
    if failed:
        print(
            f"{len(failed)} of {len(chosen.runs)} runs failed (see above); logs are in {out / LOGS}.",
            file=sys.stderr,
        )
        sys.exit(1)


def _cancel(study: "Study", out: Path, on: str) -> None:
    if on != "slurm":
        raise ValueError("cancel is for jobs; give --on slurm with it, and stop runs on this machine with Ctrl-C.")
    from lerope.launch import slurm

    print(f"{slurm.cancel(study, out)} jobs of {out} cancelled.")


def _list(as_json: bool) -> None:
    from lerope.launch.recipes import STUDIES

    studies = [make() for make in STUDIES.values()]
    if as_json:
        rows = [{"study": s.name, "asks": s.sentence, "num_runs": len(s.runs), "data": s.source} for s in studies]
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("Study", "Runs", "Asks", "Data"):
        table.add_column(heading, justify="right" if heading == "Runs" else "left")
    for study in studies:
        table.add_row(study.name, str(len(study.runs)), study.sentence, study.source)
    Console().print(table)


def _status(study: "Study", out: Path, data: Path | None, as_json: bool, on: str = "local") -> None:
    from lerope.data.shards import Manifest
    from lerope.launch.progress import status

    jobs = _jobs(out) if on == "slurm" else {}
    fingerprint = None if data is None else Manifest.load(data).fingerprint()
    rows = [status(run, out, fingerprint) for run in study.runs]
    if as_json:
        found = [{**vars(row), **({"jobs": jobs.get(row.name, [])} if on == "slurm" else {})} for row in rows]
        print(json.dumps(found, indent=1))
        return
    table = Table(title=f"{study.name}: {study.sentence}", title_justify="left")
    for heading in ("run", "state", "step", "validation loss", *(["jobs"] if on == "slurm" else [])):
        table.add_column(heading, justify="right" if heading in ("step", "validation loss") else "left")
    for row in rows:
        loss = "" if row.validation_loss is None else f"{row.validation_loss:.4f}"
        words = [", ".join(jobs.get(row.name, []))] if on == "slurm" else []
        table.add_row(row.name, row.state, f"{row.step:,}/{row.steps:,}", loss, *words)
    console = Console()
    console.print(table)
    for row in rows:
        if row.problem is not None:
            console.print(f"{row.name}: {row.problem}", soft_wrap=True)


def _jobs(out: Path) -> dict[str, list[str]]:
    """The jobs of runs, in words, by run."""
    from lerope.launch import scheduler
    from lerope.launch.slurm import job_words

    found: dict[str, list[str]] = {}
    for job in scheduler.jobs(out):
        found.setdefault(job.folder.name, []).append(job_words(job))
    return found


COMMAND = ladder
