"""Head and cross-entropy of a step, forward and backward, against the time its matrix products need."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from lerope.bench import peers
from lerope.bench.bench import Bench, share
from lerope.bench.timing import Candidate, Parts, free
from lerope.core.ladder import ModelConfig
from lerope.model.kernels.layers import FastHead
from lerope.results import HeadTime

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
OURS, PLAIN = "lerope", "all logits in float32"


def head_flops(num_tokens: int, width: int, vocab_size: int) -> float:
    """One product forward and two backward."""
    return 6.0 * num_tokens * width * vocab_size


def measure(bench: Bench) -> Iterator[HeadTime]:
    """Ours, plain torch's and Liger's, at each rung's step."""
    for name, config in bench.models.items():
        bench.watch.signals.check()
        yield from _measured(bench, name, config)
        free(bench.device)


def _measured(bench: Bench, rung: str, config: ModelConfig) -> list[HeadTime]:
    num_tokens = bench.batch_tokens(config)
    x = bench.random(num_tokens, config.width).requires_grad_()
    targets = torch.randint(config.vocab_size, (num_tokens,), device=bench.device)
    head = FastHead(config.width, config.vocab_size).to(bench.device)
    torch.nn.init.normal_(head.weight, std=config.width**-0.5)

    def parts(loss: Loss) -> Parts:
        def call() -> object:
            with bench.autocast():
                total = loss(x, head.weight, targets)
            return torch.autograd.grad(total, (x, head.weight))

        return {"whole": [call]}

    losses: dict[str, Loss] = {
        OURS: lambda x, weight, targets: head(x, targets),
        PLAIN: lambda x, weight, targets: functional.cross_entropy(functional.linear(x, weight).float(), targets),
        peers.LIGER_HEAD: peers.liger_head,
    }
    candidates = [Candidate(name, partial(parts, loss)) for name, loss in losses.items()]
    found = bench.watch.measure(f"head of {rung}", candidates, ["whole"])
    flops = head_flops(num_tokens, config.width, config.vocab_size)
    rows: list[HeadTime] = []
    for name in losses:
        times = found[name, "whole"]
        rows.append(
            {
                "rung": rung,
                "num_tokens": num_tokens,
                "width": config.width,
                "vocab_size": config.vocab_size,
                "name": name,
                "flops": flops,
                "share_of_matmul": share(flops, times.median, bench.matmul_rate),
                "peak_bytes": times.peak_bytes,
                **times.timing,
            }
        )
    return rows
