"""Several processes on this machine, for tests of what ranks do together."""

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(function: Callable[..., None], folder: Path, *args: object, num_ranks: int = 2) -> None:
    """Calls function(rank, *args) in `num_ranks` processes of one group; an error in one is raised here.

    They see the environment as it was at the first call.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Forked from a process that imports these once and has no threads; spawned, each would import them again.
    imports = ["lerope.train.job", "torch.distributed.fsdp", "transformers.models.llama.modeling_llama"]
    multiprocessing.set_forkserver_preload(imports)
    call = (function, str(folder / "store"), num_ranks, args)
    mp.start_processes(_rank, call, nprocs=num_ranks, start_method="forkserver")


def children_of(pid: int) -> list[int]:
    """The processes that a process started and that are still there, oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def _rank(rank: int, function: Callable[..., None], store: str, num_ranks: int, args: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    try:
        function(rank, *args)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        raise
    # Not by way of the interpreter's end: torch's own threads may still be in Python then, which aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
