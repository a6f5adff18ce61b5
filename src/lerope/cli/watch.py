"""lerope watch RUN ...: the report's page, live, while runs train."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def watch(runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")], *, port: int = 8000) -> None:
    """Serve the page of `lerope report` on this machine, with curves that grow while runs train.

    Example: lerope watch runs/52M-lerope-42

    It can be reached from this machine alone; from elsewhere go through ssh -L 8000:127.0.0.1:8000. Ctrl-C ends it, and
    the runs go on.

    Args:
        runs: run directories, or folders that hold some; runs that begin later in them appear.
        port: where to serve; 0 takes any that is free.
    """
    from lerope.report.watch import open_server

    if not runs:
        raise ValueError("name at least one run, or a folder of runs, to watch.")
    with open_server(runs, port) as server:
        print(f"{server.url}\nCtrl-C ends it; runs go on.", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()


COMMAND = watch
