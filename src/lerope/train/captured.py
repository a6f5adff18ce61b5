"""A micro-batch's forward and backward pass as a CUDA graph: the host launches it with one call, not thousands."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class Captured:
    """Replays a recording of `accumulate`, which adds to the gradients and returns a loss.

    The first micro-batch of a step overwrites gradients and the others add to them, so there are two recordings.
    A recording reads and writes the same memory each time: inputs are copied there, and the parameters'
    gradients must not be replaced in between.

    Args:
        accumulate: takes tensors by name. It must not wait for the device, and must have run before, so that nothing
            is left to compile.
        parameters: those whose gradients it computes.
    """

    def __init__(self, accumulate: Callable[[dict[str, Tensor]], Tensor], parameters: Iterable[nn.Parameter]) -> None:
        self._accumulate, self._parameters = accumulate, list(parameters)
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._inputs: dict[str, Tensor] = {}

    def __call__(self, inputs: dict[str, Tensor], first: bool) -> Tensor:
        """The loss, to be read before the next call.

        Args:
            first: whether this is the first micro-batch of a step.
        """
        if not self._inputs:
            self._inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        else:
            for name, tensor in inputs.items():
                self._inputs[name].copy_(tensor)
        if first not in self._graphs:
            self._graphs[first] = self._record(first)
        graph, loss = self._graphs[first]
        graph.replay()
        return loss

    def _record(self, first: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        if first:
            for parameter in self._parameters:
                parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        pool = next((g.pool() for g, _ in self._graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            loss = self._accumulate(self._inputs)
        return graph, loss
