"""Interrupts that are repeated while something is ended or removed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kernelbroker_kernel import shell
from kernelbroker_kernel.interrupts import uninterrupted
from kernelbroker_kernel.operations import agent_run


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Interrupts of this process: the first one after 0.1 s, then one every 20 ms, until one is raised."""
    over = threading.Event()

    def interrupt() -> None:
        delay = 0.1
        while not over.wait(delay):
            os.kill(os.getpid(), signal.SIGINT)
            delay = 0.02

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("end", [shell.end, agent_run._end_tree])
def test_a_stubborn_program_is_ended(end: Callable[[subprocess.Popen[bytes]], None]) -> None:
    """Programs that ignore signals are killed, however often the cell is interrupted meanwhile."""
    code = "trap '' INT TERM; echo begun; sleep 100; sleep 100"
    process = subprocess.Popen(
        ["/bin/sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as stdout:
        assert stdout.readline() == b"begun\n"
        try:
            with interrupts():
                end(process)
            # The second: the shell was faster, and ended because its last program had been killed.
            assert process.poll() in (-signal.SIGKILL, 128 + signal.SIGKILL)
            assert stdout.read() == b""  # all that had it open have ended
        finally:
            process.kill()


def test_interrupts_come_again_after_the_block() -> None:
    """The block ignores interrupts, and the handler of before is there after it."""
    reached = []
    with interrupts():
        with uninterrupted():
            time.sleep(0.3)
            reached.append("the end of the block")
        time.sleep(5)
        reached.append("more")
    assert reached == ["the end of the block"]
