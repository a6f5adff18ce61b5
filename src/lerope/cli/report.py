"""lerope report RUN ... --out DIR: the page, every figure and every table."""

import importlib.util
from pathlib import Path

from lerope.cli.options import Runs
from lerope.core.extras import install
from lerope.core.terminal import Console

PAGE = "index.html"
# The start of a page that this command wrote and may overwrite.
_MARK, _MARK_WITHIN = '<meta name="generator" content="lerope report">', 1000


def report(
    runs: Runs,
    *,
    out: Path = Path("report"),
    figures: bool = True,
) -> None:
    """Write the results of runs: one page that opens from disk, with every figure and table as files next to it.

    Example: lerope report runs/ --out report/

    Args:
        runs: run directories, or folders that contain some.
        out: where it goes: index.html, figures/, tables/. An existing report is overwritten.
        figures: Also draw the figures as PDF, SVG and PNG; the page does not need them.
    """
    from lerope.core.files import write_whole
    from lerope.core.terminal import Display
    from lerope.report.collect import collect
    from lerope.report.page import render
    from lerope.report.payload import payload

    if not runs:
        raise ValueError("name at least one run, or a folder of runs, to report on.")
    _check_folder(out)
    console = Console(soft_wrap=True)
    drawn = figures and importlib.util.find_spec("matplotlib") is not None
    with Display() as display:
        display.show("reading runs")
        bundle = collect(runs)
        display.show(f"writing the page for {len(bundle.runs)} runs")
        data = payload(bundle)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / PAGE, render(data))
        if drawn:
            from lerope.report.figures import write_figures

            written = write_figures(
                bundle, out / "figures", progress=lambda name, at, of: display.show(f"figure {at} of {of}, {name}")
            )
            data["files"] += _relative(written.files, out)
            data["missing"] = [
                {"name": name, "text": found.text, "command": found.command} for name, found in written.missing.items()
            ]
        from lerope.report.tables import write_tables

        display.show("writing tables")
        data["files"] += _relative(write_tables(bundle, out / "tables"), out)
        write_whole(out / PAGE, render(data))
    console.print(
        f"{len(bundle.runs)} run{'s' * (len(bundle.runs) != 1)}, {len(data['files'])} files of figures and tables"
    )
    if figures and not drawn:
        console.print(f"No figures were drawn, as they need matplotlib: {install('plots')}.")
    for figure in data["missing"]:
        console.print(f"not drawn, {figure['name']}: {figure['text']}: {figure['command']}")
    for note in data["notes"]:
        console.print(f"note: {note}")
    console.print((out / PAGE).resolve().as_uri())


def _check_folder(out: Path) -> None:
    """Raises unless the folder is new, empty or has an earlier report."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        start = (out / PAGE).read_text(encoding="utf-8", errors="replace")[:_MARK_WITHIN]
    except OSError:
        start = ""
    if _MARK not in start:
        raise ValueError(f"out must be a new or empty folder, or an earlier report; {out} has something else.")


def _relative(files: list[Path], folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in files]


COMMAND = report
