"""How a command ends: normally, or after Ctrl-C or SIGTERM."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NoReturn

from lerope.core.signals import Stopped
from lerope.core.terminal import program


@contextmanager
def stoppable(quiet: bool = False) -> Iterator[None]:
    """Exits with 128 + the signal's number once the work is saved, and says how to continue.

    Args:
        quiet: keep standard output free for a result, and show progress on standard error.
    """
    try:
        with redirect_stdout(sys.stderr if quiet else sys.stdout):
            yield
    except Stopped as stopped:
        command = shlex.join([program(), *sys.argv[1:]])
        if "RANK" in os.environ:
            from lerope.train.job import resume_command

            command = resume_command()
        if os.environ.get("RANK", "0") == "0":
            print(f"Stopped by {stopped}; continue with `{command}`.", file=sys.stderr)
        leave(128 + stopped.signum)


def leave(code: int) -> NoReturn:
    """Ends the process, whether single or one of several ranks."""
    distributed, cuda = sys.modules.get("torch.distributed"), sys.modules.get("torch.cuda")
    together = distributed is not None and distributed.is_initialized()
    if distributed is not None and together:
        distributed.barrier()
    # At interpreter exit, torch's communication threads can abort a successful run, and it takes seconds to take down a
    # GPU's context and the compiler's workers.
    if together or (cuda is not None and cuda.is_initialized()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
