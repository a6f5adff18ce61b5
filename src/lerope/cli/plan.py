"""lerope plan: what runs will cost."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table

from lerope.cli.plan_scale import scale_table, step_content
from lerope.core.checks import check_number
from lerope.core.ladder import BATCH_TOKENS, LADDER, ModelConfig, Plan, plan, rung
from lerope.core.recipe import Parallel
from lerope.core.terminal import Console
from lerope.launch.machine import Fit, Machine, Way
from lerope.launch.steptime import DISK_BYTES_PER_S, NETWORK_BYTES_PER_S, best_step
from lerope.model.accounting import USABLE_MEMORY, UTILISATION, Memory
from lerope.model.gpus import GPUS, gpu_named

if TYPE_CHECKING:
    from lerope.launch.cost import RunCost

_LABELS: dict[Parallel, str] = {"ddp": "DDP", "fsdp": "FSDP2", "hybrid": "hybrid"}
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class _Section:
    """A table with a line above it and some below."""

    title: str
    table: Table
    note: str = ""


def command(
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUNG|STUDY]")] = None,
    /,
    *,
    gpu: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    num_gpus: Annotated[int, tyro.conf.arg(aliases=["--gpus"])] = 1,
    gpus_per_node: int = 8,
    network: Annotated[float, tyro.conf.arg(metavar="GB/S")] = NETWORK_BYTES_PER_S / 1e9,
    disk: Annotated[float, tyro.conf.arg(metavar="GB/S")] = DISK_BYTES_PER_S / 1e9,
    row_length: int = 2048,
    batch_tokens: int = BATCH_TOKENS,
    vocab_size: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    utilisation: float = UTILISATION,
    demo: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
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
        vocab_size: a vocabulary size other than the rung's.
        utilisation: assumed share of the GPU's dense bfloat16 peak; a guess until a run has measured it.
        demo: the small version of the study, as run by `lerope ladder --demo`.
        data: what `lerope data prepare` wrote for the study; evaluation reads its validation split.
        json: print one JSON object instead of tables.
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
        _plan_study(name, machine, vocab_size, demo, data, json)
        return
    if data is not None:
        raise ValueError(f"data is for studies; name one, as in lerope plan seeds --data {data}.")
    if demo:
        raise ValueError("demo is for studies; name one, as in lerope plan seeds --demo.")
    names = list(LADDER) if name is None else [name]
    models = {each: _model(each, vocab_size) for each in names}
    plans = {each: plan(model, row_length, batch_tokens) for each, model in models.items()}
    machine.check()
    if name is None:
        if json:
            print(dumps({"rungs": [_summary(n, models[n], plans[n], machine) for n in names]}, indent=2))
        else:
            _print(_ladder_sections(models, plans, machine))
        return
    for field, value in (("network", network), ("disk", disk)):
        if not check_number(field, value) > 0:
            raise ValueError(f"{field} must be positive, in GB/s; got {value:g}.")
    steps = [best_step(models[name], machine, g, network * 1e9) for g in machine.gpus]
    fits = {g.name: [machine.fit(models[name], g, way) for way in machine.ways()] for g in machine.gpus}
    if json:
        content = _summary(name, models[name], plans[name], machine)
        content |= _memory_content(models[name], machine, fits) | step_content(models[name], steps, disk * 1e9)
        print(dumps(content, indent=2))
    else:
        _print(_rung_sections(name, models[name], plans[name], machine, fits))
        if num_gpus > 1:
            shown = scale_table(models[name], machine, steps, plans[name].steps, network * 1e9, disk * 1e9)
            print()
            _print([_Section(title=f"A step on {num_gpus:,} GPUs, on paper", table=shown[0], note=shown[1])])


COMMAND = command


def _is_study(name: str) -> bool:
    from lerope.launch.recipes import STUDIES

    return name in STUDIES or ":" in name


def _plan_study(name: str, machine: Machine, vocab_size: int | None, demo: bool, data: Path | None, json: bool) -> None:
    from lerope.cli.ladder import sized
    from lerope.data.hub import VALIDATION_TOKENS
    from lerope.data.shards import Manifest
    from lerope.launch.cost import run_costs
    from lerope.launch.recipes import study_named
    from lerope.launch.study import prepare_command

    if (machine.row_length, machine.batch_tokens, vocab_size) != (2048, BATCH_TOKENS, None):
        raise ValueError("row_length, batch_tokens and vocab_size are set by a study; change them in its function.")
    study = sized(study_named(name), demo, None)
    prepare = prepare_command(study, demo)
    if data is None:
        validation_tokens, training = VALIDATION_TOKENS, f"Text for it:\n  {prepare}"
        read = "as for hf:c4 and hf:starcoder; --data DIR counts that of other text"
    else:
        splits = Manifest.load(data).splits
        validation_tokens, train_tokens = splits["validation"].num_tokens, splits["train"].num_tokens
        times = f"{study.tokens / train_tokens:,.2f} times"
        training = f"The longest run reads the {_count(train_tokens)} training tokens {times}."
        read = f"that of {data}"
    costs = run_costs(study, validation_tokens)
    if not json:
        validation = f"a validation split of {_count(validation_tokens)} tokens ({read})"
        sections = list(_study_sections(f"{study.name}: {study.sentence}", costs, machine, validation, training))
        _print(sections[:1] if demo else sections)  # the demo is for CPUs
        return
    fields = ("steps", "tokens", "compute", "flops", "eval_tokens", "eval_flops", "analyze_tokens", "analyze_flops")
    totals = {field: sum(getattr(cost, field) for cost in costs) for field in fields}
    hours = {gpu.name: machine.gpu_hours(totals["flops"], gpu) for gpu in machine.gpus}
    content = {
        "study": study.name,
        "prepare": prepare,
        "validation_tokens": validation_tokens,
        "utilisation": machine.utilisation,
        "runs": [
            {**asdict(cost), "gpu_hours": {gpu.name: machine.gpu_hours(cost.flops, gpu) for gpu in machine.gpus}}
            for cost in costs
        ],
        "total": {"num_runs": len(costs), **totals, "gpu_hours": hours},
    }
    print(dumps(content, indent=2))


def _study_sections(
    title: str, costs: "list[RunCost]", machine: Machine, validation: str, training: str
) -> Iterator[_Section]:
    """Runs with the same cost share a line; `validation` and `training` describe what is read."""
    from lerope.launch.cost import FLOAT32_SLOWDOWN

    kinds = Counter(replace(cost, run="") for cost in costs)
    table = _table("Rung", "Row", "Runs", "Steps", "Tokens", "C, FLOP", "FLOPs", "Eval", "Analyze")
    hours = _table("GPU hours", *(gpu.name for gpu in machine.gpus))
    for kind, count in kinds.items():
        each = (kind.compute, kind.flops, kind.eval_flops, kind.analyze_flops)
        sums = (_count(count * kind.tokens), *(_power(count * number, 2) for number in each))
        table.add_row(kind.rung, f"{kind.row_length:,}", str(count), f"{count * kind.steps:,}", *sums)
        on_each = (_hours(machine.gpu_hours(count * kind.flops, gpu)) for gpu in machine.gpus)
        hours.add_row(kind.rung if kind.row_length == 2048 else f"{kind.rung}, {kind.row_length:,}", *on_each)
    fields = ("steps", "tokens", "compute", "flops", "eval_flops", "analyze_flops")
    steps, tokens, *powers = (sum(getattr(cost, field) for cost in costs) for field in fields)
    flops = powers[1]
    sums = (_count(tokens), *(_power(number, 2) for number in powers))
    table.add_row("total", "", str(len(costs)), f"{steps:,}", *sums, style="bold")
    hours.add_row("total", *(_hours(machine.gpu_hours(flops, gpu)) for gpu in machine.gpus), style="bold")
    seconds = (machine.seconds(flops, gpu) for gpu in machine.gpus)
    hours.add_row(f"time on {machine.num_gpus:,}", *map(_duration, seconds))
    note = (
        f"Sums over the runs of a line. C = 6 N_ne tokens. Eval: FLOPs of `lerope eval` over {validation} or over its "
        "--max-tokens. Analyze: FLOPs of `lerope analyze`, for contributions and removals of bands. Phasors, needle "
        f"and extrapolate are not counted.\n{training}"
    )
    yield _Section(title=title, table=table, note=note)
    shares: dict[str, float] = {}
    for kind in kinds:
        share = FLOAT32_SLOWDOWN * (kind.eval_flops + kind.analyze_flops) / kind.flops
        shares[kind.rung] = max(share, shares.get(kind.rung, 0.0))
    note = (
        f"At {100 * machine.utilisation:g} % of the dense bfloat16 peak (--utilisation). Eval and Analyze are extra: "
        f"their float32 is about {FLOAT32_SLOWDOWN} times slower on A100, H100 and H200, which adds "
        f"{', '.join(f'{share:.1%} at {rung}' for rung, share in shares.items())}."
    )
    yield _Section(title="Training", table=hours, note=note)


def _model(name: str, vocab_size: int | None) -> ModelConfig:
    from lerope.launch.recipes import STUDIES

    if name not in LADDER:
        raise ValueError(f"name must be a rung, {', '.join(LADDER)}, or a study, {', '.join(STUDIES)}; got {name!r}.")
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


def _print(sections: Iterable[_Section]) -> None:
    console = Console()
    # Everything is computed before anything is printed, so that bad input does not print half a plan.
    for i, section in enumerate(list(sections)):
        if i:
            console.print()
        console.print(section.title, style="bold")
        console.print(section.table)
        if section.note:
            console.print(section.note, style="dim")


def _table(*columns: str) -> Table:
    """The first column names the row; the others are numbers."""
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _ladder_sections(models: dict[str, ModelConfig], plans: dict[str, Plan], machine: Machine) -> Iterator[_Section]:
    columns = ("Rung", "Layers", "Width", "MLP", "Heads", "N_ne", "N_tot", "Tokens", "Steps", "C, FLOP")
    table = _table(*columns)
    for name, model in models.items():
        costs = plans[name]
        shape = (model.num_layers, model.width, model.mlp_width, model.num_heads)
        sizes = (_count(costs.block_parameters), _count(costs.total_parameters), _count(costs.tokens))
        table.add_row(name, *(f"{n:,}" for n in shape), *sizes, f"{costs.steps:,}", _power(costs.compute, 2))
    note = f"20 tokens per parameter, {machine.batch_tokens:,} per step. C = 6 N_ne tokens, the paper's compute."
    yield _Section(title="The ladder", table=table, note=note)
    table = _table("Rung", *(gpu.name for gpu in machine.gpus))
    for name in models:
        table.add_row(name, *(_duration(machine.seconds(plans[name].flops, gpu)) for gpu in machine.gpus))
    yield _time_section(table, machine)


def _rung_sections(
    name: str, model: ModelConfig, costs: Plan, machine: Machine, fits: dict[str, list[Fit]]
) -> Iterator[_Section]:
    table = _table("", "")
    table.add_column()
    table.show_header = False
    for label, value, what in _facts(model, costs, machine):
        table.add_row(label, value, what)
    yield _Section(title=f"Rung {name}", table=table)
    yield _memory_section(model, machine)
    yield _fit_section(fits, machine)
    table = _table("", *(gpu.name for gpu in machine.gpus))
    table.add_row("whole run", *(_duration(machine.seconds(costs.flops, gpu)) for gpu in machine.gpus))
    table.add_row("one step", *(_duration(machine.seconds(costs.flops, gpu) / costs.steps) for gpu in machine.gpus))
    yield _time_section(table, machine)


def _facts(model: ModelConfig, costs: Plan, machine: Machine) -> list[tuple[str, str, str]]:
    rows = machine.batch_tokens // machine.row_length
    return [
        ("layers", f"{model.num_layers}", ""),
        ("width", f"{model.width:,}", f"{model.num_heads} heads of {model.head_dim}; MLP {model.mlp_width:,}"),
        ("vocabulary", f"{model.vocab_size:,}", ""),
        ("N_ne", _count(costs.block_parameters), "parameters without embedding and head"),
        ("N_tot", _count(costs.total_parameters), "parameters with them"),
        ("gains", f"{costs.gain_parameters:,}", "of norms; not in the paper's counts"),
        ("LeRoPE adds", f"{costs.encoding_parameters}", "log-scales, one per band"),
        ("tokens D", _count(costs.tokens), "20 per parameter"),
        ("steps", f"{costs.steps:,}", f"of {machine.batch_tokens:,} tokens: {_rows(rows)} of {machine.row_length:,}"),
        ("C", _power(costs.compute, 3), "FLOP, 6 N_ne D: the paper's compute"),
        ("FLOPs", _power(costs.flops, 3), "with head and causal attention: what the GPUs do"),
    ]


def _memory_section(model: ModelConfig, machine: Machine) -> _Section:
    parts = ("weights", "grads", "moments", "copies", "activations", "head", "total")
    table = _table("", *parts)
    for way in machine.ways():
        parts_bytes = _parts(machine.memory(model, way, 1)).values()
        table.add_row(_label(way, machine), *(f"{part / _GIB:.2f}" for part in parts_bytes))
    note = (
        "Estimated for bfloat16 autocast and compiled blocks. Activations grow with the rows of a micro-batch; copies "
        f"are weights in bfloat16{' and those gathered by FSDP2' if machine.num_gpus > 1 else ''}."
    )
    return _Section(title="Memory per GPU in GiB, one row at a time", table=table, note=note)


def _fit_section(fits: dict[str, list[Fit]], machine: Machine) -> _Section:
    table = _table("", *fits)
    for row in zip(*fits.values(), strict=True):
        table.add_row(_label(row[0].way, machine), *(_cell(fit) for fit in row))
    memory = (f"{gpu.memory_bytes / _GIB:.0f} GiB" for gpu in machine.gpus)
    table.add_row("memory", *memory, style="dim")
    note = (
        f"Of a GPU's {_rows(machine.rows_per_gpu)} per step, as many as fit in {100 * USABLE_MEMORY:.0f} % of its "
        "memory at once; 'no' if one row is too many."
    )
    return _Section(title="Rows per micro-batch (and GiB they take)", table=table, note=note)


def _label(way: Way, machine: Machine) -> str:
    label = _LABELS[way.parallel] if machine.num_gpus > 1 else "1 GPU"
    return f"{label}, recompute" if way.recompute else label


def _cell(fit: Fit) -> str:
    rows = "no" if fit.micro_batch_rows is None else f"{fit.micro_batch_rows}"
    return f"{rows} ({fit.memory.total / _GIB:.0f})"


def _time_section(table: Table, machine: Machine) -> _Section:
    share = f"{100 * machine.utilisation:g} %"
    note = f"At {share} of the dense bfloat16 peak (--utilisation); --recompute takes about a third more."
    title = f"Time on {machine.num_gpus:,} GPU{'s' if machine.num_gpus > 1 else ''}"
    return _Section(title=title, table=table, note=note)


def _rows(number: int) -> str:
    return f"{number:,} row{'s' if number > 1 else ''}"


def _count(number: int) -> str:
    """In the paper's format: 18.87M, 1.21B."""
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.2f}M"


def _power(number: int, digits: int) -> str:
    return f"{number:.{digits}e}".replace("e+", "e") if number else "0"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}"


def _duration(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.{0 if seconds >= 100 * unit else 1}f} {name}"
    return f"{seconds * 1e3:,.0f} ms"
