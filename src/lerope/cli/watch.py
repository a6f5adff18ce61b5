"""lerope watch RUN ...: the report page, live, while runs train."""

from lerope.cli.options import Runs


def watch(runs: Runs, *, port: int = 8000) -> None:
    """Serve the `lerope report` page on this machine, with curves that grow while runs train.

    Example: lerope watch runs/52M-lerope-42

    It is reachable only from this machine; from elsewhere, use ssh -L 8000:127.0.0.1:8000. Ctrl-C stops it; the runs
    continue.

    Args:
        runs: run directories, or folders that contain some; runs started in them later appear too.
        port: where to serve; 0 picks any free port.
    """
    from lerope.report.watch import open_server

    if not runs:
        raise ValueError("name at least one run, or a folder of runs, to watch.")
    with open_server(runs, port) as server:
        print(f"{server.url}\nCtrl-C stops it; runs continue.", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()


COMMAND = watch
