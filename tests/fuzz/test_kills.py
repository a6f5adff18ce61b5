"""Every command that writes, killed at its file operations, on a full disk, and started twice at once.

Each time the same command is given again and ends as if nothing had been, with nothing left behind.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.fuzz.kills import WRITERS, end, fresh, leftovers, start, state
from tests.fuzz.world import build, measurements
from tests.ranks import children_of

KILLS = 12
"""Of each command, at operations chosen by a seed; `LEROPE_KILLS` sets another number."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Built in a process of its own: one that has trained cannot be forked."""
    path = tmp_path_factory.mktemp("kills") / "world"
    process = os.fork()
    if not process:
        code = 1
        try:
            build(path)
            code = 0
        finally:
            os._exit(code)
    assert end(process) == 0
    return path


@pytest.fixture(scope="module", params=WRITERS)
def straight(request, world):
    """(writer, the world to work in, what it leaves, its number of file operations)."""
    writer = WRITERS[request.param]
    place = fresh(world, world.parent / "place", writer)
    count = world.parent / "count"
    assert end(start(writer, place, count=count)) == 0, (world.parent / "traceback.txt").read_text()
    return writer, place, state(place / writer.out), int(count.read_text())


def moments(number, seed):
    count = min(number, int(os.environ.get("LEROPE_KILLS", KILLS)))
    return sorted(random.Random(seed).sample(range(number), count))


def check_again(writer, place, wanted):
    """The same command once more ends well, and as it should."""
    code = end(start(writer, place))
    assert code in writer.again, (code, (place.parent / "traceback.txt").read_text() if code == 1 else "")
    found = state(place / writer.out)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []
    assert leftovers(place) == []


def test_killed_at_file_operations(straight, world):
    writer, place, wanted, number = straight
    assert number > 3
    chosen = moments(number, 0)
    for at in chosen:
        fresh(world, place, writer)
        assert end(start(writer, place, at)) == -9, at
        check_again(writer, place, wanted)
    print(f"{writer.out}: killed at {len(chosen)} of {number} file operations")


def test_killed_twice(straight, world):
    """The second time while it makes good what the first has left."""
    writer, place, wanted, number = straight
    for at in moments(number, 1)[:4]:
        fresh(world, place, writer)
        assert end(start(writer, place, at)) == -9, at
        end(start(writer, place, max(1, at // 2)))
        check_again(writer, place, wanted)


def test_a_full_disk(straight, world):
    """One sentence, whenever it happens; with room again, the same end."""
    writer, place, wanted, number = straight
    for at in moments(number, 2)[:8]:
        fresh(world, place, writer)
        code = end(start(writer, place, at, full=True))
        assert code in (0, 2), (at, (place.parent / "traceback.txt").read_text())
        check_again(writer, place, wanted)


def test_two_at_once(straight, world):
    """Both end, one of them perhaps with a sentence that the other is at work."""
    writer, place, wanted, _ = straight
    for _ in range(2):
        fresh(world, place, writer)
        both = [start(writer, place) for _ in range(2)]
        assert {end(process) for process in both} <= {0, 2}, (place.parent / "traceback.txt").read_text()
        check_again(writer, place, wanted)


@pytest.mark.parametrize("name", ["eval", "extrapolate"])
def test_a_rank_is_lost(world, name):
    """The other ends too, and one process alone goes on with what both have done."""
    writer, place = WRITERS[name], world.parent / "place"
    fresh(world, place, writer)
    assert end(start(writer, place)) == 0
    wanted = state(place / writer.out)
    fresh(world, place, writer)
    words = [str(word) for word in (*measurements(place / "runs/lerope")[name], "--batch-tokens", 64)]
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "lerope", *words]
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        launched, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not any(path.stat().st_size for path in (place / writer.out).glob(".*.partial")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.0005)
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    process.communicate(timeout=90)
    assert process.returncode != 0
    check_again(writer, place, wanted)
