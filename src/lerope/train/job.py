"""`lerope train` from start to finish: ranks, data, run directory, plan, loop, finished model."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from lerope.core.files import sha256_of, write_json
from lerope.core.ladder import flops_per_token, total_parameters
from lerope.core.recipe import Hashing, Recipe, Setup
from lerope.core.run import (
    CHECKPOINTS,
    DIVERGED,
    MODEL,
    PROFILE,
    RESULTS,
    WEIGHTS,
    Identity,
    Start,
    read_metrics,
    read_run,
)
from lerope.core.signals import Signals
from lerope.core.terminal import Display, duration, program, readable
from lerope.data.loader import Loader
from lerope.data.shards import Corpus
from lerope.data.skips import Skips
from lerope.model import accounting, attention, gpus
from lerope.model.precision import dtype_of
from lerope.model.saved import save_model
from lerope.model.spec import build_encoding
from lerope.model.start import StartingPoint, starting_point
from lerope.results import Training
from lerope.rotary.dispatch import choose
from lerope.rotary.encodings import Encoding
from lerope.train import rundir, trainer
from lerope.train.checkpoint import Store
from lerope.train.data_check import DataCheck
from lerope.train.engine import Engine
from lerope.train.hooks import Checkpoints, Frequencies, Profile, Progress, Validation
from lerope.train.memory import enough_memory
from lerope.train.parallel import Ranks, captures, compiles, start_ranks
from lerope.train.records import Records
from lerope.train.rundir import provenance
from lerope.train.timeline import Clock, summary
from lerope.train.trainer import Diverged, Hook, Loop

# Tokens per forward pass on a CPU, where more gain nothing.
_CPU_TOKENS = 8192
# FLOPs that take two cores about an hour.
_CPU_FLOPS = 5e14
# Up to about this many epochs, repeated text teaches nearly as much as new text (Muennighoff et al., 2023).
_MANY_EPOCHS = 4


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    path: Path
    step: int
    finished: bool
    validation_loss: float | None
    stopped_by: int | None
    """The signal that asked the run to stop, if one did."""


def train(
    recipe: Recipe,
    data: str | os.PathLike[str],
    out: Path | None = None,
    setup: Setup | None = None,
    hooks: Sequence[Hook] = (),
) -> Outcome:
    """Starts a run, or resumes it if its directory exists; returns when it is finished or was asked to stop.

    Args:
        recipe: what to train; see `lerope.core.recipe.recipe`.
        data: a folder that `lerope data prepare` wrote.
        out: the run directory; runs/RUNG-ENCODING-SEED by default.
        setup: how this machine should do it.
        hooks: your own, called before validation and checkpoints; the same on every rank.
    """
    clock = Clock()
    clock.mark("start")
    setup = setup or Setup()
    if recipe.row_order != "shuffled":
        raise ValueError(
            f"row_order must be shuffled, as other orders are no longer trained; got {recipe.row_order!r}."
        )
    ranks = start_ranks(setup.device)
    path = out or Path("runs") / recipe.name
    ranks.on_main(lambda: check_corpus(data, recipe, setup.verify))
    corpus, begin, encoding, loader, micro_batch_rows = ranks.together(lambda: _open(recipe, data, setup, ranks))
    clock.mark("data")
    identity = Identity(
        recipe=recipe,
        data=corpus.manifest.fingerprint(),
        initial_frequencies=encoding.artifact().fingerprint(),
        initial_weights=None if begin is None else begin.sha256,
    )
    start = Start(
        **provenance(),
        command=resume_command(),
        data=str(data),
        sources=corpus.manifest.sources,
        code_share=corpus.manifest.code_share,
        setup=asdict(setup),
        num_ranks=ranks.num_ranks,
        device=str(ranks.device),
        micro_batch_rows=micro_batch_rows,
        num_data_tokens=corpus.manifest.splits["train"].num_tokens,
    )
    with ExitStack() as held:
        ranks.on_main(lambda: held.enter_context(rundir.held(path)))
        if ranks.on_main(lambda: rundir.open_run(path, identity, start)):
            loss = ranks.on_main(lambda: read_metrics(path).validation_loss)
            _say(ranks, _finished(path, loss))
            return Outcome(path, recipe.steps, True, loss, None)
        weights = None if begin is None else begin.weights
        engine = Engine(recipe, setup, loader, encoding, ranks, micro_batch_rows, weights)
        del begin, weights  # the model has them now
        clock.mark("model")
        _say(ranks, describe(recipe, corpus, ranks, micro_batch_rows, setup))
        _say(ranks, f"kernels  {engine.kernels()}")
        if (origin := encoding.origin) is not None:
            for note in origin.notes:
                _say(ranks, f"   note  {origin.source}: {note}")
        rows = f"{micro_batch_rows} rows of {recipe.row_length:,} tokens"
        fewer = "use fewer --micro-batch-rows, a shorter --row-length, --recompute, or --parallel fsdp on several GPUs."
        with _explained(path, ranks), enough_memory(f"memory ran out with {rows} at a time; {fewer}"):
            return _carry_out(engine, corpus, path, hooks, clock)


def _open(
    recipe: Recipe, data: str | os.PathLike[str], setup: Setup, ranks: Ranks
) -> tuple[Corpus, StartingPoint | None, Encoding, Loader, int]:
    """All that a rank reads before there is a model, and the rows it takes at once; raises if any of it is unfit."""
    if setup.attention != "auto":
        problem = attention.backend_obstacle(setup.attention, ranks.device, dtype_of(recipe.precision))
        if problem is not None:
            raise ValueError(problem)
    captures(setup, ranks)
    corpus = Corpus(data, verify="sizes")
    spec = recipe.spec
    skips = None
    if spec.horizon is not None:
        first = round(spec.horizon_from * recipe.steps) * recipe.batch_rows
        skips = Skips(spec.horizon, spec.horizon_share, recipe.seed, first)
    rows = (recipe.row_length, recipe.batch_rows)
    loader = Loader(corpus.train, *rows, recipe.seed, ranks.rank, ranks.num_ranks, skips)
    begin = None
    if recipe.start_from is not None:
        begin = starting_point(recipe.start_from, recipe.model, corpus.manifest.tokenizer_sha256)
    learned = None if begin is None else begin.encoding
    encoding = build_encoding(recipe.encoding, recipe.model, recipe.row_length, learned)
    choose(setup.kernel, frequencies=encoding.theta.to(ranks.device))
    return corpus, begin, encoding, loader, _micro_batch_rows(recipe, setup, ranks)


def _carry_out(engine: Engine, corpus: Corpus, path: Path, own_hooks: Sequence[Hook], clock: Clock) -> Outcome:
    recipe, setup, ranks = engine.recipe, engine.setup, engine.ranks
    digest = ranks.on_main(lambda: read_run(path).digest)
    store = Store(path / CHECKPOINTS, digest, ranks, setup.keep_checkpoints)
    first, complaints = engine.resume(store)
    ranks.on_main(lambda: rundir.rewind(path, first if first else -1))
    ranks.on_main(lambda: (path / DIVERGED).unlink(missing_ok=True))
    for complaint in complaints:
        _say(ranks, f"warning: {complaint}")
    if first:
        _say(ranks, f"resuming from step {first:,}")
    validation_tokens = min(recipe.validation_tokens, corpus.manifest.splits["validation"].num_tokens)
    peak = gpus.peak_flops(torch.cuda.get_device_name()) if ranks.device.type == "cuda" else None
    with Signals() as signals, ExitStack() as opened:
        display = opened.enter_context(Display(quiet=not ranks.is_main))
        hooks: list[Hook] = []
        if ranks.is_main:
            hooks.append(Records(path, setup.trackers, recipe.name, asdict(recipe), first))
        hooks += [
            Progress(display, validation_tokens, setup.validation_steps),
            *([DataCheck(corpus, setup.validation_steps)] if setup.verify == "changed" else []),
            *own_hooks,
            Frequencies(setup.frequency_records),
            Validation(corpus.validation, setup.validation_steps, display),
            Checkpoints(store, setup.checkpoint_steps),
        ]
        if setup.profile:
            hooks.append(Profile(path / PROFILE / f"rank{ranks.rank}.json.gz"))
        loop = Loop(engine, hooks, first)
        trainer.run(loop, signals, peak)
    if loop.first_step_time is not None:
        clock.mark("first step", loop.first_step_time)
    clock.skip()
    loss = ranks.on_main(lambda: read_metrics(path).validation_loss)
    if not loop.is_last:
        _say(ranks, f"stopped at step {loop.step:,} with a checkpoint; continue with:\n  {resume_command()}")
        return Outcome(path, loop.step, False, loss, signals.received or signal.SIGTERM)
    weights = engine.weights()
    frequencies = engine.model.encoding.artifact(recipe.row_length, recipe.name)

    def finish() -> str:
        model = path / MODEL
        save_model(model, recipe.model, weights, frequencies, corpus.tokenizer_path)
        # config.json has the hash of the weights, which need not be read once more.
        files = sorted(file for file in model.iterdir() if file.name != WEIGHTS)
        hashes = {file.name: sha256_of(file) for file in files}
        clock.mark("finish")
        result = _result(path, recipe, loop, first, clock)
        result.save(path / RESULTS / "training.json")
        rundir.finish(path, hashes)
        return summary(result.last_start)

    _say(ranks, ranks.on_main(finish))
    _say(ranks, _finished(path, loss))
    return Outcome(path, loop.step, True, loss, None)


@contextmanager
def _explained(path: Path, ranks: Ranks) -> Iterator[None]:
    """Turns a full disk into a sentence; notes that a run diverged, for who waits for it."""
    try:
        yield
    except Diverged as error:
        if ranks.is_main:
            write_json(path / DIVERGED, {"sentence": str(error)})
        raise
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror or error}): training stopped, the last checkpoint is "
            f"intact; make room, then continue with: {resume_command()}"
        ) from None


def _finished(path: Path, loss: float | None) -> str:
    return f"{path} is finished" + (f": validation loss {loss:.4f}." if loss is not None else ".")


def check_corpus(data: str | os.PathLike[str], recipe: Recipe, verify: Hashing = "changed") -> None:
    """Raises unless the data is intact and fits this recipe's model."""
    corpus = Corpus(data, verify)
    found, wanted = corpus.manifest.vocab_size, recipe.model.vocab_size
    if found != wanted:
        raise ValueError(
            f"{data} has a vocabulary of {found:,}, but the model has {wanted:,}; leave --vocab-size out, or prepare "
            f"the data with --vocab-size {wanted}."
        )


def describe(recipe: Recipe, corpus: Corpus, ranks: Ranks, micro_batch_rows: int, setup: Setup) -> str:
    """The plan of a run in a few lines."""
    model, split = recipe.model, corpus.manifest.splits["train"]
    tokens = recipe.num_tokens
    epochs = tokens / split.num_tokens
    num_rows = recipe.batch_rows // ranks.num_ranks
    each = f", {num_rows} on each of {ranks.num_ranks} ranks" if ranks.num_ranks > 1 else ""
    some = f", {micro_batch_rows} at a time" if micro_batch_rows < num_rows else ""
    flops = flops_per_token(model, recipe.row_length) * tokens
    where = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "CPU"
    shared = f"{ranks.num_ranks} x {where}, {setup.parallel}" if ranks.num_ranks > 1 else where
    lines = {
        "run": f"{recipe.name}: {model.num_layers} layers, width {model.width}, {model.num_heads} heads, "
        f"{readable(total_parameters(model))} parameters",
        "data": f"{readable(split.num_tokens)} tokens in {split.num_documents:,} documents, "
        f"{epochs:.2f} epochs, vocabulary of {model.vocab_size:,}, unigram entropy {split.unigram_entropy:.3f} nats",
        "batch": f"{recipe.batch_rows} rows of {recipe.row_length:,} tokens{each}{some}",
        "steps": f"{recipe.steps:,} steps, {readable(tokens)} tokens, {flops:.2e} FLOPs",
        "recipe": f"{recipe.schedule}, warm-up {recipe.warmup_steps:,}, learning rate {recipe.learning_rate:.3e}, "
        f"weight decay {recipe.weight_decay:g} over the run, {recipe.precision}",
        "device": shared,
    }
    if recipe.start_from is not None:
        lines["start"] = f"the weights of {recipe.start_from}" + (
            "; only frequencies and the gains of QK-norm learn" if recipe.learn == "rotation" else ""
        )
    if model.activation != "relu2":
        lines["serving"] = (
            f"activation {model.activation} runs in transformers only; --activation relu2 can be served by every engine"
        )
    if epochs > _MANY_EPOCHS:
        lines["warning"] = f"the data is read {epochs:,.0f} times; for meaningful results, prepare more text"
    if ranks.device.type == "cpu" and flops > _CPU_FLOPS:
        hours = flops / _CPU_FLOPS
        lines["note"] = (
            f"two cores take about {duration(3600 * hours)} for this, {duration(3600 * hours / recipe.steps)} a step; "
            "minutes take --steps 300 --row-length 256 --batch-tokens 2048 "
            "--learning-rate 0.004 --weight-decay 1 with the rung demo, as in `lerope demo`"
        )
    return "\n".join(f"{name:>7}  {text}" for name, text in lines.items())


def resume_command() -> str:
    """The command that started this process, to run again."""
    args = sys.argv[1:]
    if not dist.is_initialized():
        return shlex.join([program(), *args])
    here = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if here != os.environ["WORLD_SIZE"]:
        return f"the same torchrun command on every node, ... -m {shlex.join(['lerope', *args])}"
    return shlex.join(["torchrun", f"--nproc-per-node={here}", "-m", "lerope", *args])


def _micro_batch_rows(recipe: Recipe, setup: Setup, ranks: Ranks) -> int:
    rows = recipe.batch_rows // ranks.num_ranks
    if setup.micro_batch_rows is not None:
        if rows % setup.micro_batch_rows:
            raise ValueError(
                f"micro_batch_rows must divide the {rows} rows of each rank; got {setup.micro_batch_rows}."
            )
        return setup.micro_batch_rows
    if ranks.device.type == "cpu":
        most = max(1, _CPU_TOKENS // recipe.row_length)
        return max(n for n in range(1, min(rows, most) + 1) if rows % n == 0)
    return accounting.micro_batch_rows(
        recipe.model,
        row_length=recipe.row_length,
        rows_per_rank=rows,
        memory_bytes=torch.cuda.get_device_properties(ranks.device).total_memory,
        num_gpus=ranks.num_ranks,
        gpus_per_node=ranks.ranks_per_node,
        parallel=setup.parallel,
        precision=recipe.precision,
        recompute=setup.recompute,
        compiled=compiles(setup, ranks),
    )


def _result(path: Path, recipe: Recipe, loop: Loop, first: int, clock: Clock) -> Training:
    """The content of `results/training.json`."""
    metrics = read_metrics(path)
    seconds = sum(record.seconds for record in metrics.steps)
    return Training(
        run=read_run(path).label,
        settings={},
        provenance=provenance(),
        num_steps=recipe.steps,
        num_tokens=recipe.num_tokens,
        loss=metrics.steps[-1].loss,
        validation_loss=metrics.validation_loss,
        seconds=seconds,
        wait_share=sum(record.wait_seconds for record in metrics.steps) / seconds,
        peak_memory_bytes=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        last_start=clock.timeline([each for each in metrics.steps if each.step > first], loop.seconds),
    )


def _say(ranks: Ranks, text: str) -> None:
    if ranks.is_main:
        print(text, flush=True)
