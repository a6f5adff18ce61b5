"""lerope COMMAND ...: finds the command's module, turns its function into flags, and its errors into one sentence."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

import lerope
from lerope.core.cache import keep_bytecode
from lerope.core.checks import hint

# Command: (module, what it does). A module has `COMMAND`, a function or a dictionary of functions by subcommand.
COMMANDS = {
    "demo": ("lerope.cli.demo", "the whole workflow in minutes on a CPU"),
    "data": ("lerope.cli.data", "prepare text for training, or look at prepared data"),
    "tokenizer": ("lerope.cli.tokenizer", "train a tokenizer, or look at one"),
    "plan": ("lerope.cli.plan", "what a run or a study will cost"),
    "train": ("lerope.cli.train", "train a model of the ladder with any encoding"),
    "watch": ("lerope.cli.watch", "the report page, live while runs train"),
    "eval": ("lerope.cli.eval", "loss and perplexity of runs over whole documents"),
    "compare": ("lerope.cli.compare", "whether encodings differ by more than noise"),
    "multipliers": ("lerope.cli.multipliers", "how much compute an encoding saves"),
    "needle": ("lerope.cli.needle", "whether runs find values hidden in long text"),
    "extrapolate": ("lerope.cli.extrapolate", "loss beyond the train length, with every extension"),
    "analyze": ("lerope.cli.analyze", "what a run learned: wavelengths, bands, gradients"),
    "report": ("lerope.cli.report", "one page, every figure and every table"),
    "sweep": ("lerope.cli.sweep", "search for a rung's learning rate"),
    "ladder": ("lerope.cli.ladder", "run a study: one of the paper's, or your own"),
    "archive": ("lerope.cli.archive", "what runs measured, without their weights, for git"),
    "presets": ("lerope.cli.presets", "frequencies that were learned once, for your own models"),
    "generate": ("lerope.cli.generate", "what a run writes after a prompt"),
    "export": ("lerope.cli.export", "write a run for transformers and serving engines"),
    "verify": ("lerope.cli.verify", "whether engines reproduce an exported model"),
    "bench": ("lerope.cli.bench", "how fast this machine trains, against its ceilings and peers"),
    "doctor": ("lerope.cli.doctor", "whether everything on this machine runs correctly"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command; the exit code is 0, 2 after bad input, or 128 + a signal's number."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return
    if args[0] == "--version":
        print(f"lerope {lerope.__version__}")
        return
    keep_bytecode()
    # Read when torch is loaded. Threads that wait for each other otherwise hold cores that other programs need, and
    # beside these a step takes several times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    guarded(args[0], lambda: _run(args[0], args[1:]))


def guarded(name: str, call: Callable[[], None]) -> None:
    """Calls, and turns errors that users can fix into one sentence and exit code 2."""
    try:
        call()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whatever reads our output has stopped
        sys.exit(0)
    except (ValueError, OSError) as error:
        if os.environ.get("LEROPE_TRACEBACK"):
            raise
        rank = os.environ.get("RANK", "0")
        if rank == "0":
            print(f"lerope {name}: {_sentence(error)}", file=sys.stderr)
        elif type(error).__name__ != "SharedError" and _joined():
            print(f"lerope {name}, rank {rank}: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _joined() -> bool:
    """Whether this process has joined a group: before that, an error is the same on all, and one reports it."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_initialized())


def _run(name: str, args: list[str]) -> None:
    if name not in COMMANDS:
        raise ValueError(f"command must be one of {', '.join(COMMANDS)}; got {name!r}{hint(name, COMMANDS)}")
    import tyro

    from lerope.cli.numbers import NUMBERS

    module = importlib.import_module(COMMANDS[name][0])
    command, usual = module.COMMAND, getattr(module, "USUAL", None)
    if isinstance(command, dict):
        if usual is not None and (not args or (args[0].startswith("--") and args[0] != "--help")):
            args = [usual, *args]
        if args and not args[0].startswith("-") and args[0] not in command:
            raise ValueError(f"command must be one of {', '.join(command)}; got {args[0]!r}{hint(args[0], command)}")
        tyro.extras.subcommand_cli_from_dict(command, prog=f"lerope {name}", args=args, registry=NUMBERS)
    else:
        tyro.cli(command, prog=f"lerope {name}", args=args, registry=NUMBERS)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return str(error)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: lerope COMMAND ...", "", *lines, "", "lerope COMMAND --help explains a command."])


if __name__ == "__main__":
    main()
