"""The factor gamma in [0, 1] that scales learning rate and weight decay at each step."""

import math

from lerope.core.recipe import Schedule

# Share of a warm-up-stable-decay run spent in decay.
WSD_DECAY = 0.2


def factor(schedule: Schedule, step: int, steps: int, warmup_steps: int) -> float:
    """gamma for steps 0 to steps - 1: (step + 1) / warmup_steps, then

    - cosine: 1/2 (1 + cos(pi (step - warmup_steps) / (steps - warmup_steps))), as in the paper,
    - wsd: 1, then linear to 0 over the last fifth of the run,
    - constant: 1.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps)))
    if schedule == "wsd":
        return min(1.0, (steps - step) / max(1, round(WSD_DECAY * steps)))
    return 1.0
