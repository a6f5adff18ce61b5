"""Where jobs go in a cluster, from a small file or the command line; and how many GPUs and nodes a run takes there."""

import shlex
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import msgspec
from tyro.conf import arg

from lerope.core.checks import check_count
from lerope.core.files import read_bytes
from lerope.core.recipe import Parallel, Recipe

Text = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")]
Whole = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]

SAVE_SECONDS = 120
GPUS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where jobs go with --on slurm; every field can also be a line of the file that --cluster names."""

    partition: Text = None
    """Partition of the jobs; the cluster's usual one unless given."""
    account: Text = None
    """Account to charge; the user's usual one unless given."""
    time: Text = None
    """Time limit of a job, such as 12:00:00. A run that needs longer saves in time and goes on in the next job."""
    max_at_once: Whole = None
    """Jobs that run at once; as many as the cluster lets unless given."""
    gpus_per_run: Whole = None
    """GPUs that train a run, 0 for none; unless given 1, or with --gpu as many as its memory makes necessary."""
    gpu: Text = None
    """Kind of the GPUs, as in `lerope plan`: a run that does not fit into one is shared out by DDP, FSDP2 or hybrid."""
    gpus_per_node: Whole = None
    """GPUs of a node, beyond which a run takes several nodes; 8 unless given."""
    save_seconds: Whole = None
    """How long before its time limit a run is asked to save; 120 unless given."""
    sbatch: Text = None
    """More options of sbatch in one string, such as "--qos=low --mem=64G"."""

    def __post_init__(self) -> None:
        for field in ("max_at_once", "gpus_per_node", "save_seconds"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        if self.gpus_per_run:
            check_count("gpus_per_run", self.gpus_per_run)

    def over(self, other: "Cluster") -> "Cluster":
        """This, and the other's value for what this does not give."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: value for name, value in given.items() if value is not None})

    def options(self) -> list[str]:
        """Those of sbatch that are the same for every job."""
        named = {"partition": self.partition, "account": self.account, "time": self.time}
        options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        return [*options, f"--signal=B:USR2@{self.save_seconds or SAVE_SECONDS}", *shlex.split(self.sbatch or "")]


def read_cluster(path: Path) -> Cluster:
    """Reads a file of lines such as `partition = "gpu"`; what is wrong with it is one sentence."""
    names = ", ".join(field.name for field in fields(Cluster))
    try:
        content = tomllib.loads(read_bytes(path, "name a file that is there with --cluster").decode())
        for name in content:
            if name not in Cluster.__dataclass_fields__:
                raise ValueError(f"{name} is unknown; a cluster has {names}")
        return msgspec.convert(content, Cluster)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {error}; a cluster has lines such as partition = 'gpu'.") from None


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a run takes of a cluster."""

    num_gpus: int
    num_nodes: int
    options: list[str]
    """Of `lerope train`."""

    @property
    def sbatch(self) -> list[str]:
        """Options of sbatch."""
        gpus = [f"--gpus-per-node={self.num_gpus // self.num_nodes}"] if self.num_gpus else []
        return [f"--nodes={self.num_nodes}", "--ntasks-per-node=1", *gpus]


def share(recipe: Recipe, cluster: Cluster) -> Share:
    """How many GPUs a run takes, and how it is shared out among them.

    Of a kind of GPU that is named, the fewest into which a row fits, recomputing nothing if that can be; a number that
    is given is taken as it is.
    """
    wanted, per_node = cluster.gpus_per_run, cluster.gpus_per_node or GPUS_PER_NODE
    if wanted == 0:
        return Share(num_gpus=0, num_nodes=1, options=[])
    if cluster.gpu is None:
        return _share(wanted or 1, per_node, "ddp", False)
    from lerope.launch.machine import Machine
    from lerope.model.accounting import UTILISATION
    from lerope.model.gpus import gpu_named

    gpu, rows = gpu_named(cluster.gpu), recipe.batch_rows
    machine = Machine(
        gpus=[gpu],
        num_gpus=1,
        gpus_per_node=per_node,
        row_length=recipe.row_length,
        batch_tokens=recipe.batch_tokens,
        utilisation=UTILISATION,
    )
    for number in [wanted] if wanted else [n for n in (1 << power for power in range(20)) if rows % n == 0]:
        tried = replace(machine, num_gpus=number)
        tried.check()
        for way in sorted(tried.ways(), key=lambda way: way.recompute):
            if tried.fit(recipe.model, gpu, way).micro_batch_rows is not None:
                return _share(number, per_node, way.parallel, way.recompute)
    raise ValueError(
        f"gpu must have memory for a row of {recipe.row_length:,} tokens of {recipe.name}; got {gpu.name}, of which "
        f"`lerope plan {recipe.rung} --gpu {gpu.name}` says more."
    )


def _share(number: int, per_node: int, parallel: Parallel, recompute: bool) -> Share:
    from lerope.model.accounting import check_nodes

    options = ["--parallel", parallel] if parallel != "ddp" else []
    options += ["--recompute"] if recompute else []
    return Share(num_gpus=number, num_nodes=check_nodes(number, per_node), options=options)
