"""Ctrl-C is remembered whoever listens, and a second one interrupts."""

import os
import signal
from contextlib import contextmanager, suppress

import pytest

from lerope.core.signals import Signals, Stopped


@contextmanager
def nobody_reads():
    """Standard error goes into a pipe without a reader: Ctrl-C ends `tee` in `lerope train ... 2>&1 | tee log` too."""
    before = os.dup(2)
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def test_ctrl_c_is_remembered_where_nobody_reads_what_is_said_of_it():
    with nobody_reads(), Signals() as signals:
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(Stopped):
        signals.check()


def test_ctrl_c_does_not_wait_for_a_reader_that_sleeps():
    """A paused `less` leaves its pipe full, and a handler that waits for it can only be killed."""
    before = os.dup(2)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    os.dup2(writer, 2)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGINT)
    finally:
        os.dup2(before, 2)
        for number in (before, reader, writer):
            os.close(number)
    with pytest.raises(Stopped):
        signals.check()


def test_a_second_ctrl_c_interrupts(capfd):
    with Signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err.count("Ctrl-C once more stops at once") == 1
