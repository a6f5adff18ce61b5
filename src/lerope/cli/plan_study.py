"""The part of `lerope plan` about studies: what all of their runs cost together."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lerope.cli.plan_table import Section, count, hours, new_table, power, print_sections, span
from lerope.core.ladder import BATCH_TOKENS, ROW_LENGTH
from lerope.launch.machine import Machine

if TYPE_CHECKING:
    from lerope.launch.cost import RunCost


def plan_study(
    name: str, machine: Machine, vocab_size: int | None, demo: bool, data: Path | None, as_json: bool
) -> None:
    """Prints the costs of all runs of a study, as tables or as one JSON object."""
    from lerope.data.hub import VALIDATION_TOKENS
    from lerope.data.shards import Manifest
    from lerope.launch.cost import run_costs
    from lerope.launch.recipes import study_named
    from lerope.launch.small import sized
    from lerope.launch.study import prepare_command, with_vocabulary

    if (machine.row_length, machine.batch_tokens, vocab_size) != (ROW_LENGTH, BATCH_TOKENS, None):
        raise ValueError("row_length, batch_tokens and vocab_size are set by a study; change them in its function.")
    study = sized(study_named(name), demo, None)
    prepare = prepare_command(study, demo)
    if data is None:
        validation_tokens, training = VALIDATION_TOKENS, f"Text for it:\n  {prepare}"
        read = "as for hf:c4 and hf:starcoder; --data DIR counts that of other text"
    else:
        splits, study = Manifest.load(data).splits, with_vocabulary(study, data)
        validation_tokens, train_tokens = splits["validation"].num_tokens, splits["train"].num_tokens
        times = f"{study.tokens / train_tokens:,.2f} times"
        training = f"The longest run reads the {count(train_tokens)} training tokens {times}."
        read = f"that of {data}"
    costs = run_costs(study, validation_tokens)
    if not as_json:
        validation = f"a validation split of {count(validation_tokens)} tokens ({read})"
        sections = list(_study_sections(f"{study.name}: {study.sentence}", costs, machine, validation, training))
        print_sections(sections[:1] if demo else sections)  # the demo is for CPUs
        return
    fields = ("steps", "tokens", "compute", "flops", "eval_tokens", "eval_flops", "analyze_tokens", "analyze_flops")
    totals = {field: sum(getattr(cost, field) for cost in costs) for field in fields}
    gpu_hours = {gpu.name: machine.gpu_hours(totals["flops"], gpu) for gpu in machine.gpus}
    content = {
        "study": study.name,
        "prepare": prepare,
        "validation_tokens": validation_tokens,
        "utilisation": machine.utilisation,
        "runs": [
            {**asdict(cost), "gpu_hours": {gpu.name: machine.gpu_hours(cost.flops, gpu) for gpu in machine.gpus}}
            for cost in costs
        ],
        "total": {"num_runs": len(costs), **totals, "gpu_hours": gpu_hours},
    }
    print(json.dumps(content, indent=2))


def _study_sections(
    title: str, costs: "list[RunCost]", machine: Machine, validation: str, training: str
) -> Iterator[Section]:
    """Runs with the same cost share a line; `validation` and `training` describe what is read."""
    from lerope.launch.cost import FLOAT32_SLOWDOWN

    kinds = Counter(replace(cost, run="") for cost in costs)
    table = new_table("Rung", "Row", "Runs", "Steps", "Tokens", "C, FLOP", "FLOPs", "Eval", "Analyze")
    training_hours = new_table("GPU hours", *(gpu.name for gpu in machine.gpus))
    for kind, number in kinds.items():
        each = (kind.compute, kind.flops, kind.eval_flops, kind.analyze_flops)
        sums = (count(number * kind.tokens), *(power(number * flops, 2) for flops in each))
        table.add_row(kind.rung, f"{kind.row_length:,}", str(number), f"{number * kind.steps:,}", *sums)
        on_each = (hours(machine.gpu_hours(number * kind.flops, gpu)) for gpu in machine.gpus)
        name = kind.rung if kind.row_length == ROW_LENGTH else f"{kind.rung}, {kind.row_length:,}"
        training_hours.add_row(name, *on_each)
    fields = ("steps", "tokens", "compute", "flops", "eval_flops", "analyze_flops")
    steps, tokens, *powers = (sum(getattr(cost, field) for cost in costs) for field in fields)
    flops = powers[1]
    sums = (count(tokens), *(power(each, 2) for each in powers))
    table.add_row("total", "", str(len(costs)), f"{steps:,}", *sums, style="bold")
    training_hours.add_row("total", *(hours(machine.gpu_hours(flops, gpu)) for gpu in machine.gpus), style="bold")
    seconds = (machine.seconds(flops, gpu) for gpu in machine.gpus)
    training_hours.add_row(f"time on {machine.num_gpus:,}", *map(span, seconds))
    note = (
        f"Sums over the runs of a line. C = 6 N_ne tokens. Eval: FLOPs of `lerope eval` over {validation} or over its "
        "--max-tokens. Analyze: FLOPs of `lerope analyze`, for contributions and removals of bands. Phasors, needle "
        f"and extrapolate are not counted.\n{training}"
    )
    yield Section(title=title, table=table, note=note)
    shares: dict[str, float] = {}
    for kind in kinds:
        share = FLOAT32_SLOWDOWN * (kind.eval_flops + kind.analyze_flops) / kind.flops
        shares[kind.rung] = max(share, shares.get(kind.rung, 0.0))
    note = (
        f"At {100 * machine.utilisation:g} % of the dense bfloat16 peak (--utilisation). Eval and Analyze are extra: "
        f"their float32 is about {FLOAT32_SLOWDOWN} times slower on A100, H100 and H200, which adds "
        f"{', '.join(f'{share:.1%} at {rung}' for rung, share in shares.items())}."
    )
    yield Section(title="Training", table=training_hours, note=note)
