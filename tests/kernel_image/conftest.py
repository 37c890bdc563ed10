"""One real kernel for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.real_kernel import Kernel, Workspace


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    manager = Workspace(transport="ipc")
    manager.path = tmp_path_factory.mktemp("data")
    manager.ip = str(tmp_path_factory.mktemp("sockets") / "kernel")
    manager.start_kernel(cwd=str(manager.path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=30)
        yield Kernel(client, manager.path)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture
def kernel(started: Kernel) -> Kernel:
    """The kernel, with an empty namespace."""
    started.run("%reset -f")
    return started
