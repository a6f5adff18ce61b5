"""What a command says and returns after Ctrl-C or SIGTERM."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lerope.data.signals import Stopped


@contextmanager
def stoppable() -> Iterator[None]:
    """Ends the process with 128 + the signal's number once its work is saved, and says how to go on."""
    try:
        yield
    except Stopped as stopped:
        command = shlex.join(["lerope", *sys.argv[1:]])
        print(f"Stopped by {stopped}; go on with `{command}`.", file=sys.stderr)
        sys.exit(128 + stopped.signum)
