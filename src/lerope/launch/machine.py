"""GPUs that a run is planned for: how they share it, what fits in their memory, how long they take."""

from dataclasses import dataclass

from lerope.core.checks import check_count
from lerope.core.ladder import ModelConfig
from lerope.core.recipe import Parallel
from lerope.model.accounting import Memory, check_nodes, memory_per_gpu, micro_batch_rows, run_seconds
from lerope.model.gpus import Gpu


@dataclass(frozen=True, kw_only=True)
class Way:
    """How GPUs share a run."""

    parallel: Parallel
    recompute: bool


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a run fits in one GPU's memory."""

    way: Way
    micro_batch_rows: int | None
    """None if not even one row fits."""
    memory: Memory
    """With these rows, or with one."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a run is planned for."""

    gpus: list[Gpu]
    """Kinds to choose from; a run uses one of them."""
    num_gpus: int
    gpus_per_node: int
    row_length: int
    batch_tokens: int
    utilisation: float

    @property
    def rows_per_gpu(self) -> int:
        """Rows per step on one GPU."""
        return self.batch_tokens // self.row_length // self.num_gpus

    def check(self) -> None:
        """Raises unless each GPU gets whole rows; `plan` has checked the tokens."""
        check_nodes(self.num_gpus, self.gpus_per_node)
        rows = self.batch_tokens // self.row_length
        if rows % check_count("num_gpus", self.num_gpus):
            raise ValueError(
                f"num_gpus must divide the {rows} rows of {self.row_length:,} tokens that batch_tokens gives; "
                f"got {self.num_gpus}"
                + (f": more than {rows} need a larger batch, which is another recipe." if self.num_gpus > rows else ".")
            )

    def ways(self) -> list[Way]:
        """All that make sense for this many GPUs."""
        parallels: list[Parallel] = ["ddp"]
        if self.num_gpus > 1:
            parallels.append("fsdp")
        if self.num_gpus > self.gpus_per_node > 1:
            parallels.append("hybrid")
        return [Way(parallel=parallel, recompute=again) for parallel in parallels for again in (False, True)]

    def fit(self, model: ModelConfig, gpu: Gpu, way: Way) -> Fit:
        """As many rows at once as fit in this GPU's memory."""
        rows: int | None
        try:
            rows = micro_batch_rows(
                model,
                self.row_length,
                self.rows_per_gpu,
                gpu.memory_bytes,
                num_gpus=self.num_gpus,
                gpus_per_node=self.gpus_per_node,
                parallel=way.parallel,
                recompute=way.recompute,
            )
        except ValueError:
            rows = None
        return Fit(way=way, micro_batch_rows=rows, memory=self.memory(model, way, rows or 1))

    def memory(self, model: ModelConfig, way: Way, rows: int) -> Memory:
        """The memory that this many rows at once take."""
        return memory_per_gpu(
            model,
            self.row_length,
            rows,
            num_gpus=self.num_gpus,
            gpus_per_node=self.gpus_per_node,
            parallel=way.parallel,
            recompute=way.recompute,
        )

    def seconds(self, flops: int, gpu: Gpu) -> float:
        """How long all GPUs take."""
        return run_seconds(flops, gpu.peak_flops, self.num_gpus, self.utilisation)

    def gpu_hours(self, flops: int, gpu: Gpu) -> float:
        """How long one GPU takes."""
        return run_seconds(flops, gpu.peak_flops, 1, self.utilisation) / 3600
