"""What holds for every command."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("set_before", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_leave_their_core_to_others(set_before, expected):
    """OpenMP reads how they wait when torch loads it, so it must be said before; whoever said it is asked."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = (
        "import atexit, os, sys; atexit.register(lambda: print('waits', os.environ['OMP_WAIT_POLICY'])); "
        "from lerope.cli.main import main; assert 'torch' not in sys.modules; main(['archive', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **set_before}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"waits {expected}"
