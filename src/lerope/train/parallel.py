"""Ranks and how they share a model: torch's process groups, DDP and FSDP2, if started by torchrun."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lerope.core.ladder import ModelConfig
from lerope.core.recipe import Parallel, Precision, Setup
from lerope.model.init import init_weights, set_weights
from lerope.model.kernels.packages import keep_compiled
from lerope.model.transformer import Transformer
from lerope.rotary.dispatch import triton_obstacle
from lerope.rotary.encodings import Encoding, assign

Result = TypeVar("Result")

# Gradients live in the communicated buckets; buffers, a run's initial frequencies, are the same everywhere.
_DDP: dict[str, Any] = {"gradient_as_bucket_view": True, "broadcast_buffers": False}


class SharedError(ValueError):
    """Raised on every rank, so only one needs to report it."""


@dataclass(frozen=True)
class Ranks:
    """This process among those training together."""

    rank: int
    num_ranks: int
    ranks_per_node: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if dist.is_initialized():
            dist.all_reduce(values)
        return values

    def gather(self, value: Result) -> list[Result]:
        """Every rank's value, in order, on every rank."""
        if not dist.is_initialized():
            return [value]
        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value)
        return values

    def on_main(self, function: Callable[[], Result]) -> Result:
        """What the main rank's call returns, on every rank; an error there is raised on every rank."""
        box: list[tuple[Any, str | None]] = [_attempt(function) if self.is_main else (None, None)]
        if dist.is_initialized():
            dist.broadcast_object_list(box, src=0)
        result, problem = box[0]
        if problem is not None:
            raise SharedError(problem)
        shared: Result = result
        return shared

    def together(self, function: Callable[[], Result]) -> Result:
        """What this rank's call returns; an error on any rank is raised on every rank."""
        result, problem = _attempt(function)
        for rank, found in enumerate(self.gather(problem)):
            if found is not None:
                raise SharedError(f"rank {rank}: {found}" if rank else found)
        mine: Result = result
        return mine


def _attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """The result, or the error, to be sent to other ranks; a single process simply raises it."""
    try:
        return function(), None
    except (ValueError, OSError) as error:
        if not dist.is_initialized():
            raise
        return None, str(error)


def usual_precision(device: str) -> Precision:
    """The default precision of a run on this device."""
    return "bf16" if _kind(device).startswith("cuda") else "float32"


def _kind(device: str) -> str:
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def start_ranks(device: str) -> Ranks:
    """Joins the other processes if torchrun started this one, and selects a device."""
    kind = _kind(device)
    try:
        chosen = torch.device(kind)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N; got {device!r}.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must exist; got {device!r}, but torch sees no CUDA device: use cpu.")
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N; got {device!r}.")
    if chosen.type == "cuda":
        index = int(os.environ.get("LOCAL_RANK", 0)) if chosen.index is None else chosen.index
        if index >= torch.cuda.device_count():
            raise ValueError(
                f"device must exist; got cuda:{index}, but torch sees {torch.cuda.device_count()}: "
                "start fewer ranks or name another."
            )
        chosen = torch.device("cuda", index)
        torch.cuda.set_device(chosen)
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        return Ranks(0, 1, 1, chosen)
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    return Ranks(rank, num_ranks, int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks)), chosen)


@dataclass(frozen=True)
class Replica:
    """A model with its initial weights, and the module through which this rank runs it."""

    model: Transformer
    module: nn.Module

    def sync(self, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch: DDP sums gradients over ranks after the last one, FSDP2 after each to save memory."""
        if last or not isinstance(self.module, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()


def build(
    config: ModelConfig,
    encoding: Encoding,
    seed: int,
    setup: Setup,
    ranks: Ranks,
    weights: dict[str, Tensor] | None = None,
) -> Replica:
    """Builds the model without memory, shards it, allocates each rank's part, and fills it from the seed.

    Args:
        weights: what to fill it with instead.
    """
    # An encoding of one's own may have tensors that only it knows how to make.
    start = {name: tensor.detach().clone() for name, tensor in _tensors(encoding)}
    with torch.device("meta"):
        model = Transformer(config, encoding)
    model.use_kernel(setup.kernel)
    model.recompute = setup.recompute
    if compiles(setup, ranks):
        keep_compiled("torch")
        # With fused kernels the last norm is one operator; compiled, it would receive a gradient full of zeros.
        fused = setup.kernel != "reference" and triton_obstacle(torch.empty(0, device=ranks.device)) is None
        for module in model.blocks if fused else (*model.blocks, model.norm):
            module.compile()
    sharded = ranks.num_ranks > 1 and setup.parallel != "ddp"
    if sharded:
        _shard(model, setup.parallel, ranks)
    model.to_empty(device=ranks.device)
    init_weights(model, seed)
    with torch.no_grad():
        for name, tensor in _tensors(model.encoding):
            assign(tensor, start[name])
    if weights is not None:
        set_weights(model, weights)
    if ranks.num_ranks == 1 or sharded:
        return Replica(model, model)
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    return Replica(model, nn.parallel.DistributedDataParallel(model, device_ids=devices, **_DDP))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, by name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def compiles(setup: Setup, ranks: Ranks) -> bool:
    """Whether blocks are compiled here."""
    return setup.compile == "yes" or (setup.compile == "auto" and ranks.device.type == "cuda")


def captures(setup: Setup, ranks: Ranks) -> bool:
    """Whether steps are recorded as CUDA graphs here."""
    possible = ranks.device.type == "cuda" and ranks.num_ranks == 1
    if setup.graph == "yes" and not possible:
        where = "a CPU" if ranks.device.type == "cpu" else f"{ranks.num_ranks} ranks"
        raise ValueError(f"graph must be auto or no on {where}; got 'yes', which needs one rank with a CUDA device.")
    return possible and (setup.graph == "yes" or (setup.graph == "auto" and compiles(setup, ranks)))


def _shard(model: Transformer, parallel: Parallel, ranks: Ranks) -> None:
    """FSDP2 over all ranks, or within each node with copies across nodes.

    Parameters are gathered in float32, so ranks compute exactly what one process would, even gains and frequencies.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kind, per_node = ranks.device.type, ranks.ranks_per_node
    if parallel == "hybrid":
        if ranks.num_ranks % per_node:
            raise ValueError(
                f"hybrid needs equally many ranks on every node; got {ranks.num_ranks} ranks, {per_node} here."
            )
        shape = (ranks.num_ranks // per_node, per_node)
        mesh = init_device_mesh(kind, shape, mesh_dim_names=("copy", "shard"))
    else:
        mesh = init_device_mesh(kind, (ranks.num_ranks,), mesh_dim_names=("shard",))
    for module in (model.encoding, *model.blocks, model.head, model):
        fully_shard(module, mesh=mesh)
