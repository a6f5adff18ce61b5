"""The stopwatch: turns, notes, sets of inputs; never how long something takes."""

import time

import pytest
import torch

from lerope.bench.timing import Candidate, Stopwatch, Times, quartiles, reason
from lerope.core.signals import Signals, Stopped
from lerope.core.terminal import Display

CPU = torch.device("cpu")


class Calls:
    """Remembers who was called; slow enough that a sample is one call."""

    def __init__(self):
        self.made = []

    def candidate(self, name, fails_at=None, num_sets=1):
        def each(number):
            def call():
                time.sleep(0.003)
                self.made.append((name, number))
                if fails_at is not None and sum(who == name for who, _ in self.made) == fails_at:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

            return call

        return Candidate(name, lambda: {"whole": [each(number) for number in range(num_sets)]})


def watch(rounds=4, signals=None):
    return Stopwatch(CPU, rounds, signals or Signals(), Display())


def test_candidates_take_turns():
    calls = Calls()
    found = watch().measure("x", [calls.candidate(name) for name in "abc"], ["whole"])
    rounds = [name for name, _ in calls.made][-12:]
    assert [sorted(rounds[at : at + 3]) for at in range(0, 12, 3)] == [["a", "b", "c"]] * 4
    assert {key: len(times.samples) for key, times in found.items()} == {(name, "whole"): 4 for name in "abc"}
    assert found["a", "whole"].peak_bytes is None


def test_sets_of_inputs_take_turns():
    calls = Calls()
    watch().measure("x", [calls.candidate("a", num_sets=2)], ["whole"])
    last = [number for _, number in calls.made][-4:]
    assert last in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("fails_at", [1, 3, 6, 8])
def test_one_that_fails_at_any_time_has_a_note_and_no_figure(fails_at):
    calls = Calls()
    found = watch(8).measure("x", [calls.candidate("a", fails_at), calls.candidate("b")], ["whole"])
    assert found["a", "whole"] == Times(note="out of memory")
    assert len(found["b", "whole"].samples) == 8


def test_one_that_cannot_be_built_has_a_note_for_every_part():
    def build():
        raise ValueError("backend 'flex' needs a CUDA device.")

    found = watch().measure("x", [Candidate("a", build)], ["forward", "backward"])
    assert {times.note for times in found.values()} == {"backend 'flex' needs a CUDA device."}
    assert set(found) == {("a", "forward"), ("a", "backward")}
    assert found["a", "forward"].timing["median_ms"] is None


def test_a_signal_ends_the_rounds_and_then_the_work():
    signals = Signals()

    def interrupt():
        time.sleep(0.003)
        if len(made) > 6:
            signals.received = 2
        made.append(None)

    made: list[None] = []
    stopwatch = watch(50, signals)
    found = stopwatch.measure("x", [Candidate("a", lambda: {"whole": [interrupt]})], ["whole"])
    assert 1 <= len(found["a", "whole"].samples) < 50
    with pytest.raises(Stopped):
        stopwatch.measure("x", [Candidate("a", lambda: {"whole": [interrupt]})], ["whole"])


def test_an_interrupt_is_not_a_note():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch().measure("x", [Candidate("a", lambda: {"whole": [interrupt]})], ["whole"])


def test_median_and_quartiles():
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2.0, 3.0, 4.0)
    timing = Times((0.001, 0.002, 0.003)).timing
    assert timing == {"median_ms": 2.0, "q1_ms": 1.5, "q3_ms": 2.5, "note": ""}
    assert Times((0.25,)).median == 0.25


def test_reasons_are_short():
    assert reason(ModuleNotFoundError("No module named 'liger_kernel.ops'", name="liger_kernel.ops")) == (
        "liger_kernel is not installed"
    )
    assert reason(RuntimeError("")) == "RuntimeError"
    assert len(reason(RuntimeError("x" * 1000))) == 200
