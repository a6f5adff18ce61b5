"""lerope plan: what runs will cost."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from lerope.cli.options import Folder, Json, Whole
from lerope.cli.plan_scale import scale_table, step_content
from lerope.cli.plan_study import plan_study
from lerope.cli.plan_table import Section, count, new_table, power, print_sections, span, way_in_words
from lerope.core.checks import check_number, hint
from lerope.core.ladder import BATCH_TOKENS, LADDER, ROW_LENGTH, ModelConfig, Plan, plan, rung
from lerope.launch.machine import Fit, Machine
from lerope.launch.steptime import DISK_BYTES_PER_S, NETWORK_BYTES_PER_S, best_step
from lerope.model.accounting import USABLE_MEMORY, UTILISATION, Memory
from lerope.model.gpus import GPUS, gpu_named

_GIB = 1 << 30


def command(
    name: Annotated[Positional[str | None], arg(metavar="[RUNG|STUDY]", help_behavior_hint="")] = None,
    /,
    *,
    gpu: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None,
    num_gpus: Annotated[int, arg(aliases=["--gpus"])] = 1,
    gpus_per_node: int = 8,
    network: Annotated[float, arg(metavar="GB/S")] = NETWORK_BYTES_PER_S / 1e9,
    disk: Annotated[float, arg(metavar="GB/S")] = DISK_BYTES_PER_S / 1e9,
    row_length: int = ROW_LENGTH,
    batch_tokens: int = BATCH_TOKENS,
    vocab_size: Whole = None,
    utilisation: float = UTILISATION,
    demo: bool = False,
    data: Folder = None,
    json_: Json = False,
) -> None:
    """What a run will cost: parameters, tokens, FLOPs, memory and time.

    Without a rung, all rungs in one table. Example: lerope plan 217M --gpu H200 --num-gpus 8

    On many, with what they tell each other: lerope plan 2.52B --gpu H100-80G --gpus 64

    All runs of a study: lerope plan seeds --gpu H200

    Args:
        name: a model of the ladder: demo, 19M, 52M, 217M, 608M, 1.34B or 2.52B; or a study, as in `lerope ladder`.
        gpu: plan only for this GPU: A100-80G, H100-80G, H200, B200, L40S or RTX 4090.
        num_gpus: total GPUs of the run.
        gpus_per_node: GPUs in one machine; with more than one machine, hybrid shards within each.
        network: GB/s that a GPU's share of its machine's network receives; stated, not measured.
        disk: GB/s that the file system writes, for checkpoints; stated, not measured.
        row_length: tokens per row.
        batch_tokens: tokens per step, over all GPUs.
        vocab_size: a vocabulary size other than the data's, or without data the rung's.
        utilisation: assumed share of the GPU's dense bfloat16 peak; a guess until a run has measured it.
        demo: the small version of the study, as run by `lerope ladder --demo`.
        data: what `lerope data prepare` wrote, for its vocabulary; of a study also the validation split counts, which
            evaluation reads.
        json_: print one JSON object instead of tables.
    """
    machine = Machine(
        gpus=list(GPUS.values()) if gpu is None else [gpu_named(gpu)],
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        row_length=row_length,
        batch_tokens=batch_tokens,
        utilisation=utilisation,
    )
    if name is not None and _is_study(name):
        plan_study(name, machine, vocab_size, demo, data, json_)
        return
    if demo:
        raise ValueError("demo is for studies; name one, as in lerope plan seeds --demo.")
    if data is not None and vocab_size is None:
        from lerope.data.shards import Manifest

        vocab_size = Manifest.load(data).vocab_size
    names = list(LADDER) if name is None else [name]
    models = {each: _model(each, vocab_size) for each in names}
    plans = {each: plan(model, row_length, batch_tokens) for each, model in models.items()}
    machine.check()
    if name is None:
        if json_:
            print(json.dumps({"rungs": [_summary(n, models[n], plans[n], machine) for n in names]}, indent=2))
        else:
            print_sections(_ladder_sections(models, plans, machine))
        return
    for field, value in (("network", network), ("disk", disk)):
        if not check_number(field, value) > 0:
            raise ValueError(f"{field} must be positive, in GB/s; got {value:g}.")
    steps = [best_step(models[name], machine, g, network * 1e9) for g in machine.gpus]
    fits = {g.name: [machine.fit(models[name], g, way) for way in machine.ways()] for g in machine.gpus}
    if json_:
        content = _summary(name, models[name], plans[name], machine)
        content |= _memory_content(models[name], machine, fits) | step_content(models[name], steps, disk * 1e9)
        print(json.dumps(content, indent=2))
    else:
        print_sections(_rung_sections(name, models[name], plans[name], machine, fits))
        if num_gpus > 1:
            shown = scale_table(models[name], machine, steps, plans[name].steps, network * 1e9, disk * 1e9)
            print()
            print_sections([Section(title=f"A step on {num_gpus:,} GPUs, on paper", table=shown[0], note=shown[1])])


COMMAND = command


def _is_study(name: str) -> bool:
    from lerope.launch.recipes import STUDIES

    return name in STUDIES or ":" in name


def _model(name: str, vocab_size: int | None) -> ModelConfig:
    from lerope.launch.recipes import STUDIES

    if name not in LADDER:
        known = f"a rung, {', '.join(LADDER)}, or a study, {', '.join(STUDIES)}"
        raise ValueError(f"name must be {known}; got {name!r}{hint(name, [*LADDER, *STUDIES])}")
    return rung(name) if vocab_size is None else replace(rung(name), vocab_size=vocab_size)


def _summary(name: str, model: ModelConfig, costs: Plan, machine: Machine) -> dict[str, Any]:
    """Everything but memory, as plain JSON values."""
    return {
        "rung": name,
        "model": {**asdict(model), "width": model.width, "mlp_width": model.mlp_width},
        "row_length": machine.row_length,
        "batch_tokens": machine.batch_tokens,
        "num_gpus": machine.num_gpus,
        "gpus_per_node": machine.gpus_per_node,
        "utilisation": machine.utilisation,
        **asdict(costs),
        "gpus": [
            {
                "name": gpu.name,
                "peak_flops": gpu.peak_flops,
                "memory_bytes": gpu.memory_bytes,
                "seconds": machine.seconds(costs.flops, gpu),
            }
            for gpu in machine.gpus
        ],
    }


def _memory_content(model: ModelConfig, machine: Machine, fits: dict[str, list[Fit]]) -> dict[str, Any]:
    """Memory of one row, and of what fits on each GPU, as plain JSON values."""
    return {
        "one_row": [{**asdict(way), "memory": _parts(machine.memory(model, way, 1))} for way in machine.ways()],
        "fits": [
            {"gpu": name, **asdict(f.way), "micro_batch_rows": f.micro_batch_rows, "memory": _parts(f.memory)}
            for name, each in fits.items()
            for f in each
        ],
    }


def _parts(memory: Memory) -> dict[str, int]:
    return {**asdict(memory), "total": memory.total}


def _ladder_sections(models: dict[str, ModelConfig], plans: dict[str, Plan], machine: Machine) -> Iterator[Section]:
    columns = ("Rung", "Layers", "Width", "MLP", "Heads", "N_ne", "N_tot", "Tokens", "Steps", "C, FLOP")
    table = new_table(*columns)
    for name, model in models.items():
        costs = plans[name]
        shape = (model.num_layers, model.width, model.mlp_width, model.num_heads)
        sizes = (count(costs.block_parameters), count(costs.total_parameters), count(costs.tokens))
        table.add_row(name, *(f"{n:,}" for n in shape), *sizes, f"{costs.steps:,}", power(costs.compute, 2))
    note = f"20 tokens per parameter, {machine.batch_tokens:,} per step. C = 6 N_ne tokens, the paper's compute."
    yield Section(title="The ladder", table=table, note=note)
    table = new_table("Rung", *(gpu.name for gpu in machine.gpus))
    for name in models:
        table.add_row(name, *(span(machine.seconds(plans[name].flops, gpu)) for gpu in machine.gpus))
    yield _time_section(table, machine)


def _rung_sections(
    name: str, model: ModelConfig, costs: Plan, machine: Machine, fits: dict[str, list[Fit]]
) -> Iterator[Section]:
    table = new_table("", "")
    table.add_column()
    table.show_header = False
    for label, value, what in _facts(model, costs, machine):
        table.add_row(label, value, what)
    yield Section(title=f"Rung {name}", table=table)
    yield _memory_section(model, machine)
    yield _fit_section(fits, machine)
    table = new_table("", *(gpu.name for gpu in machine.gpus))
    table.add_row("whole run", *(span(machine.seconds(costs.flops, gpu)) for gpu in machine.gpus))
    table.add_row("one step", *(span(machine.seconds(costs.flops, gpu) / costs.steps) for gpu in machine.gpus))
    yield _time_section(table, machine)


def _facts(model: ModelConfig, costs: Plan, machine: Machine) -> list[tuple[str, str, str]]:
    rows = machine.batch_tokens // machine.row_length
    return [
        ("layers", f"{model.num_layers}", ""),
        ("width", f"{model.width:,}", f"{model.num_heads} heads of {model.head_dim}; MLP {model.mlp_width:,}"),
        ("vocabulary", f"{model.vocab_size:,}", ""),
        ("N_ne", count(costs.block_parameters), "parameters without embedding and head"),
        ("N_tot", count(costs.total_parameters), "parameters with them"),
        ("gains", f"{costs.gain_parameters:,}", "of norms; not in the paper's counts"),
        ("LeRoPE adds", f"{costs.encoding_parameters}", "log-scales, one per band"),
        ("tokens D", count(costs.tokens), "20 per parameter"),
        ("steps", f"{costs.steps:,}", f"of {machine.batch_tokens:,} tokens: {_rows(rows)} of {machine.row_length:,}"),
        ("C", power(costs.compute, 3), "FLOP, 6 N_ne D: the paper's compute"),
        ("FLOPs", power(costs.flops, 3), "with head and causal attention: what the GPUs do"),
    ]


def _memory_section(model: ModelConfig, machine: Machine) -> Section:
    parts = ("weights", "grads", "moments", "copies", "activations", "head", "total")
    table = new_table("", *parts)
    for way in machine.ways():
        parts_bytes = _parts(machine.memory(model, way, 1)).values()
        table.add_row(way_in_words(way, machine.num_gpus), *(f"{part / _GIB:.2f}" for part in parts_bytes))
    note = (
        "Estimated for bfloat16 autocast and compiled blocks. Activations grow with the rows of a micro-batch; copies "
        f"are weights in bfloat16{' and those gathered by FSDP2' if machine.num_gpus > 1 else ''}."
    )
    return Section(title="Memory per GPU in GiB, one row at a time", table=table, note=note)


def _fit_section(fits: dict[str, list[Fit]], machine: Machine) -> Section:
    table = new_table("", *fits)
    for row in zip(*fits.values(), strict=True):
        table.add_row(way_in_words(row[0].way, machine.num_gpus), *(_cell(fit) for fit in row))
    memory = (f"{gpu.memory_bytes / _GIB:.0f} GiB" for gpu in machine.gpus)
    table.add_row("memory", *memory, style="dim")
    note = (
        f"Of a GPU's {_rows(machine.rows_per_gpu)} per step, as many as fit in {100 * USABLE_MEMORY:.0f} % of its "
        "memory at once; 'no' if one row is too many."
    )
    return Section(title="Rows per micro-batch (and GiB they take)", table=table, note=note)


def _cell(fit: Fit) -> str:
    rows = "no" if fit.micro_batch_rows is None else f"{fit.micro_batch_rows}"
    return f"{rows} ({fit.memory.total / _GIB:.0f})"


def _time_section(table: Table, machine: Machine) -> Section:
    share = f"{100 * machine.utilisation:g} %"
    note = f"At {share} of the dense bfloat16 peak (--utilisation); --recompute takes about a third more."
    title = f"Time on {machine.num_gpus:,} GPU{'s' if machine.num_gpus > 1 else ''}"
    return Section(title=title, table=table, note=note)


def _rows(number: int) -> str:
    return f"{number:,} row{'s' if number > 1 else ''}"
