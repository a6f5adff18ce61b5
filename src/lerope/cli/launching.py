"""Which launcher a command's options mean."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lerope.launch.cluster import Cluster, read_cluster

if TYPE_CHECKING:
    from lerope.launch.launcher import Launcher

On = Literal["local", "slurm"]


def chosen_cluster(cluster: Path | None, where: Cluster) -> Cluster:
    """Options of a cluster: those of the command line, and a file's for the rest."""
    return where.over(Cluster() if cluster is None else read_cluster(cluster))


def launcher(
    on: On, at_once: int | None, cluster: Path | None, where: Cluster, archives: Path | None = None
) -> "Launcher":
    """The launcher of this machine or of a cluster.

    Args:
        on: which.
        at_once: how many runs at once on this machine.
        cluster: a file with options of the cluster.
        where: those of the command line, which go before the file's.
        archives: a folder for the archive of each run, as soon as it is finished.
    """
    if on == "slurm":
        if at_once is not None:
            raise ValueError(f"at_once is for this machine; with --on slurm give --max-at-once {at_once}.")
        from lerope.launch import slurm

        return partial(slurm.carry_out, cluster=chosen_cluster(cluster, where), archives=archives)
    if cluster is not None or where != Cluster():
        raise ValueError("cluster and its options are for jobs; give --on slurm with them.")
    from lerope.launch import local

    return partial(local.carry_out, where=local.places(at_once), archives=archives)
