"""lerope archive RUN... --out DIR: what runs measured, without their weights."""

from pathlib import Path

from lerope.cli.options import Runs


def archive(
    runs: Runs,
    *,
    out: Path,
) -> None:
    """Copy finished runs without weights and checkpoints: recipe, learned frequencies and results, for git.

    `lerope compare`, `multipliers`, `report`, `presets make` and `ladder` read an archive like the run itself. Left out
    are the losses of single tokens, nine training steps in ten, and digits beyond float32 where nothing depends on
    them.

    Example: lerope archive runs/52M-* --out results/english

    Args:
        runs: run directories.
        out: where to; one folder per run, and an earlier archive of the same run is replaced.
    """
    from lerope.results.archive import archive as write

    if not runs:
        raise ValueError("name one run directory or more; got none.")
    for run in runs:
        target = write(run, out)
        size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        print(f"{target}: {size / 1e6:.2f} MB")


COMMAND = archive
