"""The connection to the browser's process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kernelbroker_kernel.browser import client


@contextmanager
def process(path: Path, answer: bytes) -> Iterator[None]:
    """A process that accepts one connection, sends this, and ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def converse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)

        thread = threading.Thread(target=converse)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(("answer", "is_alive"), [(b"", False), (client.GREETING, True)])
def test_a_process_that_ends_is_none(tmp_path: Path, answer: bytes, is_alive: bool) -> None:
    """A connection that nobody greets belongs to a process that ends: another one is started."""
    with process(tmp_path / "socket", answer):
        connection = client._connect(tmp_path / "socket")
    assert (connection is not None) == is_alive
    if connection is not None:
        connection.close()


def test_there_is_no_process(tmp_path: Path) -> None:
    """Nobody listens."""
    assert client._connect(tmp_path / "socket") is None
