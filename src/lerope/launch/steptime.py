"""How long a step takes on many GPUs, on paper: what they compute, and what they tell each other at stated bandwidths.

In a collective of S bytes among n GPUs in N nodes every GPU receives S (1 - 1/n) by the links in its node, and every
node S (1 - 1/N) by its network, of which each of its GPUs has a share; the slower of the two counts. Latencies do not:
what is here is the least that a step can take, and real ones take longer.
"""

from dataclasses import dataclass

from lerope.core.ladder import ModelConfig, block_parameters, flops_per_token, gain_parameters, total_parameters
from lerope.launch.machine import Fit, Machine, Way
from lerope.model.accounting import check_nodes, run_seconds
from lerope.model.gpus import Gpu

NETWORK_BYTES_PER_S = 50e9
"""A GPU's share of its node's network: 400 Gbit/s for each, as in nodes with eight such adapters."""
DISK_BYTES_PER_S = 10e9
"""What a shared file system writes, and reads, in all."""

_FLOAT32 = 4
# Weights and AdamW's two moments.
_STATE_BYTES = 3 * _FLOAT32
# Blocks that are computed again take their forward pass twice: 4 parts in place of 3.
_RECOMPUTE = 4 / 3


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """One step of a run on GPUs of one kind."""

    gpu: str
    way: Way
    micro_batch_rows: int
    compute_seconds: float
    communication_seconds: float
    tokens: int

    @property
    def shortest_seconds(self) -> float:
        """With all communication behind computing, or all computing behind communication."""
        return max(self.compute_seconds, self.communication_seconds)

    @property
    def longest_seconds(self) -> float:
        """With nothing at the same time."""
        return self.compute_seconds + self.communication_seconds

    @property
    def read_bytes_per_second(self) -> float:
        """Of tokens, two bytes each, by all GPUs in the shortest step."""
        return 2 * self.tokens / self.shortest_seconds


def checkpoint_bytes(model: ModelConfig) -> int:
    """What a checkpoint takes on the disk: weights and moments, float32, without the encoding's few."""
    return _STATE_BYTES * (total_parameters(model) + gain_parameters(model))


def step_time(
    model: ModelConfig, machine: Machine, gpu: Gpu, fit: Fit, network: float = NETWORK_BYTES_PER_S
) -> StepTime:
    """The step of a run that fits.

    Args:
        model: what is trained.
        machine: how many GPUs, and the batch.
        gpu: their kind.
        fit: how the run is shared out among them, and how many rows at once.
        network: bytes per second of a GPU's share of its node's network.
    """
    rows = fit.micro_batch_rows
    assert rows is not None
    flops = flops_per_token(model, machine.row_length) * machine.batch_tokens
    compute = run_seconds(flops, gpu.peak_flops, machine.num_gpus, machine.utilisation)
    return StepTime(
        gpu=gpu.name,
        way=fit.way,
        micro_batch_rows=rows,
        compute_seconds=compute * (_RECOMPUTE if fit.way.recompute else 1),
        communication_seconds=_communication(model, machine, gpu, fit.way, machine.rows_per_gpu // rows, network),
        tokens=machine.batch_tokens,
    )


def best_step(model: ModelConfig, machine: Machine, gpu: Gpu, network: float = NETWORK_BYTES_PER_S) -> StepTime | None:
    """The way with the shortest steps on this kind of GPU, by their longest time; None where not even a row fits."""
    fits = [machine.fit(model, gpu, way) for way in machine.ways()]
    times = [step_time(model, machine, gpu, fit, network) for fit in fits if fit.micro_batch_rows is not None]
    return min(times, key=lambda time: time.longest_seconds, default=None)


def _communication(
    model: ModelConfig, machine: Machine, gpu: Gpu, way: Way, num_micro_batches: int, network: float
) -> float:
    """Seconds of a step, weights and gradients travelling in float32.

    DDP adds gradients up once a step. FSDP2 gathers weights on the way forth and again on the way back, all but those
    outside of blocks and head, and adds gradients up, for each micro-batch. Hybrid does so within a node and adds each
    GPU's share up across nodes.
    """
    number = machine.num_gpus
    if number == 1:
        return 0.0
    num_nodes = check_nodes(number, machine.gpus_per_node)
    per_node = number // num_nodes
    head = model.vocab_size * model.width
    everything = _FLOAT32 * (total_parameters(model) + gain_parameters(model))
    again = _FLOAT32 * (block_parameters(model) + head)

    def seconds(num_bytes: float, among: int, nodes: int) -> float:
        inside = num_bytes * (1 - 1 / among) / gpu.link_bytes_per_s
        return max(inside, num_bytes * (1 - 1 / nodes) / (per_node * network))

    if way.parallel == "ddp":
        return 2 * seconds(everything, number, num_nodes)
    if way.parallel == "fsdp":
        return num_micro_batches * seconds(2 * everything + again, number, num_nodes)
    across = 2 * everything / per_node * (1 - 1 / num_nodes) / network
    return num_micro_batches * (seconds(2 * everything + again, per_node, 1) + across)
