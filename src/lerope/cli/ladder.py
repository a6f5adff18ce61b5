"""lerope ladder STUDY --data DIR ...: starts or resumes a study's runs and measurements."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from lerope.cli.launching import On, launcher
from lerope.cli.options import AsOptions, File, Folder, Json, Whole
from lerope.cli.stopping import stoppable
from lerope.cli.tables import new_table
from lerope.core.grouping import grouped
from lerope.core.terminal import Console
from lerope.launch.cluster import Cluster

if TYPE_CHECKING:
    from lerope.launch.launcher import Launcher
    from lerope.launch.study import Study


def ladder(
    study: Annotated[Positional[str | None], arg(metavar="[STUDY]", help_behavior_hint="")] = None,
    *,
    data: Folder = None,
    out: Folder = None,
    archive: Folder = None,
    demo: bool = False,
    steps: Whole = None,
    sweep: bool = False,
    filler: Annotated[str | None, arg(metavar="SOURCE", help_behavior_hint="")] = None,
    at_once: Whole = None,
    on: On = "local",
    cluster: File = None,
    status: bool = False,
    cancel: bool = False,
    print_: Annotated[bool, arg(name="print")] = False,
    json_: Json = False,
    where: AsOptions[Cluster] = Cluster(),  # noqa: B008
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
    from lerope.launch.rates import known_rates
    from lerope.launch.recipes import study_named
    from lerope.launch.small import sized
    from lerope.launch.study import prepare_command, with_learning_rates, with_vocabulary

    if study is None:
        _list(json_)
        return
    chosen = sized(study_named(study), demo, steps)
    if data is not None and not print_:  # what is printed finds out by itself, where the data is
        chosen = with_vocabulary(chosen, data)
    out = out or Path("studies") / (f"{chosen.name}-demo" if demo else chosen.name)
    if filler is not None:
        chosen = _with_filler(chosen, filler)
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
    if archive is not None:
        _check_archive(archive, out)
    _carry_out(chosen, data, out, launcher(on, at_once, cluster, where, archive), sweep, on == "slurm", json_)


def _with_filler(study: "Study", filler: str) -> "Study":
    from lerope.launch.study import with_options

    if not any(command == "needle" for run in study.runs for command, *_ in run.measure):
        raise ValueError(f"filler is for studies that hide needles; {study.name} has none: leave --filler out.")
    return with_options(study, "needle", "--filler", filler)


def _carry_out(
    study: "Study", data: Path, out: Path, launch: "Launcher", sweep: bool, sweep_by_jobs: bool, as_json: bool
) -> None:
    """Trains and measures what is left, after a search for learning rates if wanted, and says how far everything is."""
    from lerope.launch.launcher import LOGS
    from lerope.launch.rates import paper_rates, search_rates
    from lerope.launch.study import check_data, with_learning_rates

    check_data(study, data)
    with stoppable(quiet=as_json):
        if sweep:
            found = search_rates(study, data, out, print, launch if sweep_by_jobs else None)
            study = with_learning_rates(study, found)
        elif rates := paper_rates(study):
            print(rates)
        failed = launch(study, data, out)
    _status(study, out, data, as_json)
    if failed:
        words = f"{len(failed)} of {len(study.runs)} runs failed (see above); logs are in {out / LOGS}."
        print(words, file=sys.stderr)
        sys.exit(1)


def _check_archive(archive: Path, out: Path) -> None:
    """Raises before anything is trained if runs could not be archived there."""
    if archive.exists() and not archive.is_dir():
        raise ValueError(f"archive must be a folder; got the file {archive}.")
    if archive.resolve() == out.resolve():
        raise ValueError(f"archive must be another folder than --out, which has the runs themselves; got {archive}.")


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
    table = new_table("study", "runs", "asks", "data", text=("study", "asks", "data"), box=None)
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
    headings = ("run", "state", "step", "validation loss", *(["jobs"] if on == "slurm" else []))
    table = new_table(*headings, title=f"{study.name}: {study.sentence}", text=("run", "state", "jobs"))
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

    jobs = grouped(scheduler.jobs(out), lambda job: job.folder.name)
    return {run: list(map(job_words, some)) for run, some in jobs.items()}


COMMAND = ladder
